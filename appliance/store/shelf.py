"""A folder of versions: what is in place, what is being prepared, what is to go.

    <root>/<version>/           in place, found by every search
    <root>/.staged/<version>/   whole and verified, and found by none
    <root>/.work/               being unpacked, or about to be removed: worth nothing after a crash
    <root>/state.json           what is remembered of them all

A version comes into its place by one renaming and leaves it by one, so that what is found there is whole. It is called
a build, as in `core.versions`. Everything here waits for the disk, and raises OSError.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Generic, TypeVar

import trio

from appliance.core.versions import Journal, Restarted, StepDone, VersionEvent, VersionState
from appliance.errors import Conflict
from appliance.store.model_files import free_bytes, sync_folder
from appliance.store.partial_file import FileTaken, claim
from appliance.store.version_file import VersionFile

STAGED = ".staged"
WORK = ".work"
LOCK = ".change.lock"
SPARE = 512 << 20  # bytes that stay free

S = TypeVar("S", bound=VersionState)
E = TypeVar("E")

log = logging.getLogger(__name__)


class CannotInstall(Exception):
    """A version that is not what it should be, or for which there is no room; the message says what and what to do."""


class VersionShelf(ABC, Generic[S, E]):
    """One such folder, which need not be there yet. ``root`` is absolute."""

    verbs: str  # the commands that change it
    variable: str  # the one that names another folder

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    @abstractmethod
    def state(self) -> VersionFile[S, E]:
        """The file that remembers them."""

    @property
    def make_room(self) -> str:
        """Return advice for a folder in which nothing can be written."""
        return f"make it writable, make room, or name another folder with {self.variable}"

    @property
    def lock(self) -> Path:
        """The lock that installing, updating, removing and recovering hold."""
        return self.root / LOCK

    @abstractmethod
    def builds_in(self, folder: Path) -> list[str]:
        """Ids of the builds below the folder; hidden folders are skipped."""

    def folder_name(self, build: str) -> str:
        """The path of a build below the folder: its id, where nothing else is said."""
        return build

    def place_of(self, build: str) -> Path:
        return self.root / self.folder_name(build)

    def staged_at(self, build: str) -> Path:
        return self.root / STAGED / self.folder_name(build)

    def folder_of(self, build: str) -> Path:
        """The folder of the build: in its place, or staged."""
        return self.place_of(build) if build in self.placed() else self.staged_at(build)

    def placed(self) -> list[str]:
        """Ids of the builds in place."""
        return self.builds_in(self.root)

    def staged(self) -> list[str]:
        return self.builds_in(self.root / STAGED)

    def check_room(self, name: str, size: int) -> None:
        """Raise CannotInstall where a build of this name, with ``size`` bytes, does not fit."""
        needed, free = size + SPARE, free_bytes(self.root)
        if free < needed:
            raise CannotInstall(
                f"{name} may need {needed / 1e9:.1f} GB in {self.root}, where {free / 1e9:.1f} GB are free; make room, "
                f"or name another folder with {self.variable}"
            )

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
        """Carry out the journal's step on the disk; `store.updating` carries out its trials."""
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

    def settle(self, event: VersionEvent) -> None:
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
async def alone(shelf: VersionShelf[S, E]) -> AsyncGenerator[None]:
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


def copy_folder(folder: Path, to: Path, check: Callable[[], None]) -> None:
    """Copy a version that lies unpacked here, its links as they are. ``check`` is called often, and may raise."""

    def copy(source: str, target: str) -> str:
        check()
        shutil.copyfile(source, target)
        with Path(target).open("r+b") as file:  # Windows writes only what may be written to the disk
            os.fsync(file.fileno())
        shutil.copystat(source, target)
        return target

    shutil.copytree(folder, to, symlinks=True, copy_function=copy)


def size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))
