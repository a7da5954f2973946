"""The folder of builds that this program installs: what is in place, what is being prepared, what is to go.

    <root>/<platform>-<backend>/<build>/   in place, found by every search
    <root>/.staged/<platform>-<backend>/<build>/   whole and verified, and found by none
    <root>/.work/    being unpacked, or about to be removed: worth nothing after a crash
    <root>/.downloads/    archives, and what has come of them
    <root>/state.json    what is remembered of them all

A build comes into its place by one renaming and leaves it by one, so that what is found there is whole. Everything here
waits for the disk, and raises OSError.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from appliance.core.engines.builds import MANIFEST
from appliance.core.engines.events import Event, Restarted, StepDone
from appliance.core.engines.state import Journal
from appliance.errors import Conflict
from appliance.store.engine_state import StateFile
from appliance.store.model_files import sync_folder
from appliance.store.partial_file import FileTaken, claim

STAGED = ".staged"
WORK = ".work"
DOWNLOADS = ".downloads"
LOCK = ".change.lock"
MAKE_ROOM = "make it writable, make room, or name another folder with LLAMA_APPLIANCE_ENGINES_DIR"

log = logging.getLogger(__name__)


class Shelf:
    """One such folder, which need not be there yet. ``root`` is absolute."""

    verbs = "llama-appliance engines"
    """The commands that change it."""
    make_room = MAKE_ROOM
    """Return advice for a folder in which nothing can be written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = StateFile(root)
        self.downloads = root / DOWNLOADS

    @property
    def lock(self) -> Path:
        """The lock that installing, updating, removing and recovering hold."""
        return self.root / LOCK

    def place_of(self, build: str) -> Path:
        return self.root / build

    def staged_at(self, build: str) -> Path:
        return self.root / STAGED / build

    def folder_of(self, build: str) -> Path:
        """The folder of the build: in its place, or staged."""
        return self.place_of(build) if build in self.placed() else self.staged_at(build)

    def placed(self) -> list[str]:
        """Ids of the builds in place."""
        return self.builds_in(self.root)

    def staged(self) -> list[str]:
        return self.builds_in(self.root / STAGED)

    def builds_in(self, folder: Path) -> list[str]:
        """Ids of the builds below the folder; hidden folders are skipped."""
        found = [path.parent for path in folder.glob(f"*/*/{MANIFEST}")]
        return sorted(path.relative_to(folder).as_posix() for path in found if not path.parent.name.startswith("."))

    def work_folder(self, name: str) -> Path:
        """A folder to work in that is not there yet; its name comes from somewhere within `WORK`."""
        folder = self.root / WORK / "new" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        return folder

    def stage(self, folder: Path, build: str) -> Path:
        """Take a finished folder among the staged ones, whole."""
        staged = self.staged_at(build)
        self._set_aside(staged)
        staged.parent.mkdir(parents=True, exist_ok=True)
        _rename(folder, staged)
        return staged

    def put(self, build: str) -> Path:
        """Give a staged build its place. What was there (a damaged copy) goes."""
        place = self.place_of(build)
        self._set_aside(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        staged = self.staged_at(build)
        _rename(staged, place)
        _remove_if_empty(staged.parent)
        _remove_if_empty(self.root / STAGED)
        self._sweep()
        return place

    def remove(self, builds: tuple[str, ...]) -> None:
        """Remove builds from their places; those that are not there are no mistake."""
        for build in builds:
            self._set_aside(self.place_of(build))
            _remove_if_empty(self.place_of(build).parent)
        self._sweep()

    def discard(self) -> None:
        """Remove what is staged or was being worked on. Downloads stay: they go on where they were."""
        shutil.rmtree(self.root / STAGED, ignore_errors=True)
        self._sweep()

    def work(self, journal: Journal) -> None:
        """Carry out the journal's step on the disk; `engines.updating` carries out its trials."""
        match journal.step:
            case "place":
                if journal.build not in self.placed():
                    self.put(journal.build)
            case "tidy":
                self.remove(journal.surplus)
                self.discard()
            case "discard":
                self.discard()
            case _:
                raise AssertionError(journal)

    def settle(self, event: Event) -> None:
        """Report an event, and do all that follows from it, until nothing is left to be done."""
        journal = self.state.apply([event]).journal
        while journal is not None:
            self.work(journal)
            journal = self.state.apply([StepDone(time.time())]).journal

    def recover(self) -> None:
        """Clean up, or complete, what a killed program has left, at every start; nothing while another is at work."""
        if not any((self.root / name).exists() for name in (STAGED, WORK)) and self.state.read().journal is None:
            return
        try:
            lock = claim(self.lock)
        except FileTaken:
            return
        try:
            staged, placed = self.staged(), self.placed()
            if (journal := self.state.read().journal) is not None:
                log.warning("an update to %s was cut short at the step '%s'", journal.build, journal.step)
                self.settle(Restarted(is_there=journal.build in (*staged, *placed)))
                return
            for build in staged:  # an installation that was cut short is completed: it needs no test
                if build not in placed:
                    self.put(build)
            self.discard()
        finally:
            lock.release()

    def _set_aside(self, folder: Path) -> None:
        if not folder.exists() and not folder.is_symlink():
            return
        gone = self.root / WORK / "gone"
        gone.mkdir(parents=True, exist_ok=True)
        for number in range(1000):
            aside = gone / f"{folder.parent.name}-{folder.name}-{os.getpid()}-{number}"
            if not aside.exists():
                _rename(folder, aside)
                return

    def _sweep(self) -> None:
        """Remove leftovers. On Windows a folder whose program runs cannot be removed; that waits for the next time."""
        shutil.rmtree(self.root / WORK, ignore_errors=True)


def _rename(folder: Path, to: Path) -> None:
    try:
        folder.rename(to)
    except PermissionError as cause:
        if sys.platform != "win32":
            raise
        raise Conflict(f"{folder} is in use; stop the server, and do it again") from cause
    sync_folder(to.parent)
    sync_folder(folder.parent)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass


@asynccontextmanager
async def alone(shelf: Shelf) -> AsyncGenerator[None]:
    """Lock the shelf against other changes; an interrupted one is cleared up first. Raises Conflict, OSError."""
    try:
        await trio.to_thread.run_sync(shelf.recover)
        lock = await trio.to_thread.run_sync(claim, shelf.lock)
    except FileTaken:
        raise Conflict(f"another '{shelf.verbs}' command is at work now; wait until it ends") from None
    except OSError as cause:
        told = f"nothing can be changed in {shelf.root} ({cause.strerror or cause}); {shelf.make_room}"
        raise OSError(cause.errno, told) from None
    try:
        yield
    finally:
        lock.release()
