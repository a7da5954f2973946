"""The folder of kept contexts: a file from an engine and a manifest for each, and nothing else.

``<name>.part``  an engine writes it.
``<name>.kv``    a file that is whole. Renaming its ``.part`` makes it one.
``<name>.json``  its manifest, which is written last and removed first: a file without one is never given back.

A program that dies leaves any of these, after any of the steps, and the next one removes all that do not belong
together. No file is flushed to the disk: its length and checksums are in the manifest, and are checked before an engine
gets the file. The folder belongs to the program that holds ``lock`` in it, and only its user may read it.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import sys
import time
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import trio
from msgspec import Struct, structs

from appliance.core.config.types import KeepContext
from appliance.core.lenient_json import UNREADABLE
from appliance.core.llama.flags import Option
from appliance.core.models.identity import FileIdentity
from appliance.core.sizes import GIB, MIB
from appliance.errors import Conflict
from appliance.features.contexts.core.kept import (
    MAX_AGE,
    PIECE,
    KeptContext,
    Room,
    limits_of,
    manifest_of,
    pieces_of,
    read_manifest,
    victims,
)
from appliance.features.contexts.core.origin import Origin, files_named, origin_of
from appliance.platform.console import PROGRAM
from appliance.platform.home import users_cache, users_data
from appliance.platform.machine import free_memory, here
from appliance.platform.strangers import take_folder
from appliance.store.model_files import open_regular, read_start, space_of, stat_regular, unlink, write_whole
from appliance.trio_parts import WriteBehind

if TYPE_CHECKING:
    from filelock import BaseFileLock

PART, WHOLE, MANIFEST = ".part", ".kv", ".json"
LOCK = "lock"
FOLDER = "contexts"
LEAST_MEMORY = GIB  # a smaller file system in memory, such as the 64 MiB of a container, has room for nothing
MAX_MANIFEST = 16 * MIB
READ_SIZE = MIB
HOUR = 3600.0
_OURS = re.compile(r"\.?([0-9a-f]{32})\.[a-z.]+")

log = logging.getLogger(__name__)
Tier = Literal["ram", "disk"]


class ContextPlace(Struct, frozen=True):
    folder: Path
    in_memory: bool  # its files take memory instead of room on a disk


def context_places(data: Path) -> dict[Tier, ContextPlace]:
    """Return the folders of the contexts of the program whose data folder this is.

    Where files cannot be kept in memory there is no "ram", but for systems that have no such files at all.
    """
    places: dict[Tier, ContextPlace] = {"disk": ContextPlace(data / FOLDER, in_memory=False)}
    memory = here.memory_folder()
    if sys.platform != "linux":
        places["ram"] = ContextPlace(users_cache() / FOLDER, in_memory=False)
    elif memory is not None and space_of(memory).total >= LEAST_MEMORY:
        home = hashlib.sha256(os.fsencode(data.absolute())).hexdigest()[:8]
        places["ram"] = ContextPlace(memory / f"{PROGRAM}-{os.getuid()}-{home}", in_memory=True)
    return places


def find_origin(options: Sequence[Option], engine: str, *, build: str = "", seat: str = "") -> Origin | None:
    """Return the `origin_of` a process with these options; None: a later one might have another model's file.

    Waits for the disk.
    """
    try:
        found = [(path, Path(path).stat()) for path in files_named(options)]
    except OSError:
        return None
    files = [FileIdentity(path, it.st_size, it.st_mtime_ns, it.st_ino) for path, it in found]
    return origin_of(files, options, engine, build=build, seat=seat) if files else None


@asynccontextmanager
async def open_kept_contexts(
    keep: KeepContext, places: Mapping[Tier, ContextPlace]
) -> AsyncGenerator[KeptContexts | None]:
    """Own the folder of contexts for the length of the block; None: none are kept.

    Contexts in the other ``places``, where an earlier setting has kept them, are removed.
    """
    for tier, place in places.items():
        if tier != keep:
            try:
                await _clear_place(place, None)
            except Conflict as error:
                log.warning("%s", error)
    if keep == "off" or keep not in places:
        if places and keep == "ram":
            log.info(
                "contexts are not kept: /dev/shm has not %d MiB; give it more ('--shm-size' of a container), or say "
                "'keepContext: disk'",
                LEAST_MEMORY // MIB,
            )
        yield None
        return
    kept = KeptContexts(places[keep])
    try:
        if await trio.to_thread.run_sync(kept.folder.exists):
            await kept.open()
        yield kept
    finally:
        kept.close()


async def clear_kept(model: str | None) -> list[KeptContext]:
    """Remove every context of this home, or those of one model, and return them; no server may run.

    Raises Conflict where another program has the folder, or the system refuses it.
    """
    return [gone for place in context_places(users_data()).values() for gone in await _clear_place(place, model)]


async def read_kept() -> list[KeptContext]:
    """Return every context of this home; no server may run. Raises as `clear_kept`."""
    found = list[KeptContext]()
    for place in context_places(users_data()).values():
        async with _taken(place) as kept:
            found += kept.entries() if kept is not None else []
    return found


class KeptContexts:
    """Made by `open_kept_contexts`. A disk that fails is one line in the log, until it works again.

    Private methods that do not wait run in the worker thread, one at a time.
    """

    def __init__(self, place: ContextPlace) -> None:
        self.folder = place.folder
        self._in_memory = place.in_memory
        self._contexts: Mapping[str, KeptContext] = {}  # a new one for each change: threads change it
        self._written: deque[tuple[float, int]] = deque()
        self._lock: BaseFileLock | None = None
        self._failing = False
        self._turns = WriteBehind()
        self._checks = trio.CapacityLimiter(os.cpu_count() or 1)

    async def open(self) -> bool:
        """Make the folder, which an engine needs when it starts; False: nothing is kept, as a line in the log says."""
        why = await self.take()
        return not why or self._fail(why)

    async def take(self) -> str:
        """Make the folder, and take it from other programs; return the reason why that cannot be, empty if it is so."""
        return await self._turns.in_turn(self._take)

    def entries(self, key: str | None = None) -> list[KeptContext]:
        """Return all contexts, or those with this key."""
        return [each for each in self._contexts.values() if key in (None, each.key)]

    def part(self, name: str) -> Path:
        """Return the file that an engine writes for a new context."""
        return self.folder / (name + PART)

    def whole(self, name: str) -> Path:
        """Return the file that an engine reads."""
        return self.folder / (name + WHOLE)

    async def make_room(self, size: int) -> bool:
        """Remove contexts until about so many bytes may be written; False: that many are not possible now."""
        return await self.open() and await self._turns.in_turn(partial(self._make_room, size, 0))

    async def keep(self, context: KeptContext) -> bool:
        """Take over the part that an engine has written, of ``context.size`` bytes as it has said.

        False: it could not be kept, and is gone.
        """
        sums = await self._checksums(self.part(context.name), context.size)
        if sums is None:
            await self.forget(context.name, "its file is not what the engine said")
            return False
        now = time.time()
        whole = structs.replace(context, pieces=sums, made=now, used=now)
        return await self._turns.in_turn(partial(self._finish, whole))

    async def check(self, name: str) -> bool:
        """True if the context's file is what was written; another one is removed. Call it before each restore."""
        context = self._contexts.get(name)
        if context is None:
            return False
        if await self._checksums(self.whole(name), context.size) == context.pieces:
            return True
        await self.forget(name, "its file has changed")
        return False

    async def used(self, name: str, saved_tokens: int) -> None:
        """An engine has taken it, and did not have to read so many tokens."""
        await self._turns.in_turn(partial(self._use, name, saved_tokens))

    async def forget(self, name: str, why: str) -> None:
        """Remove a context, or a part that did not become one."""
        await self._turns.in_turn(partial(self._remove, name, why))

    async def clear(self, model: str | None = None) -> list[KeptContext]:
        """Remove all contexts, or those of one model, and return them."""
        return await self._turns.in_turn(partial(self._clear, model))

    def close(self) -> None:
        """Let another program have the folder, which goes if nothing is in it."""
        if self._lock is None:
            return
        self._lock.release()
        if not self._contexts:
            with suppress(OSError):
                unlink(self.folder / LOCK)
                self.folder.rmdir()

    async def _checksums(self, path: Path, size: int) -> tuple[int, ...] | None:
        """Return the checksum of each piece; None: the file is not there, or has another size."""
        found: dict[int, int | None] = {}

        async def add(number: int) -> None:
            found[number] = await trio.to_thread.run_sync(_checksum, path, number, size, limiter=self._checks)

        async with trio.open_nursery() as nursery:
            for number in range(max(1, pieces_of(size))):
                nursery.start_soon(add, number)
        sums = [each for _, each in sorted(found.items()) if each is not None]
        return tuple(sums) if len(sums) == pieces_of(size) else None

    def _take(self) -> str:
        if self._lock is not None:
            return ""
        from filelock import FileLock, Timeout  # several milliseconds that an idle server does not need

        lock = FileLock(self.folder / LOCK, timeout=0, thread_local=False)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if why := take_folder(self.folder):
                raise PermissionError(errno.EPERM, why)
            lock.acquire()
            self._sweep()
        except Timeout:
            return "another llama-appliance keeps its contexts there; stop that one first"
        except OSError as error:
            lock.release()
            return error.strerror or str(error)
        self._lock = lock
        return ""

    def _sweep(self) -> None:
        """Read what is there, and remove everything that does not belong together or is too old."""
        oldest = time.time() - MAX_AGE
        paths = [(path, match[1]) for path in self.folder.iterdir() if (match := _OURS.fullmatch(path.name))]
        found = {name: self._read(name) for _, name in paths}
        self._contexts = {name: it for name, it in found.items() if it is not None and it.used >= oldest}
        for path, name in paths:
            if name not in self._contexts or path.suffix not in (WHOLE, MANIFEST) or path.stem != name:
                unlink(path)

    def _read(self, name: str) -> KeptContext | None:
        try:
            context = read_manifest(read_start(self._manifest(name), MAX_MANIFEST))
            there = stat_regular(str(self.whole(name))).st_size
        except OSError:
            return None
        return context if context is not None and (context.name, context.size) == (name, there) else None

    def _make_room(self, incoming: int, there: int) -> bool:
        """``there``: bytes of it that are on the file system already."""
        try:
            space = space_of(self.folder)
        except OSError as error:
            return self._fail(error)
        now, kept = time.time(), self.entries()
        while self._written and self._written[0][0] < now - HOUR:
            self._written.popleft()
        size, free = sum(each.size for each in kept), free_memory()
        limits = limits_of(in_memory=self._in_memory, available=free, kept=size, total=space.total)
        room = Room(free=space.free + there, written=sum(size for _, size in self._written), now=now)
        if (gone := victims(kept, incoming, limits, room)) is None:
            return self._fail(f"there is no room for {incoming} bytes more")
        for each in gone:
            self._remove(each.name, "another one needs its room, or it is too old")
        return True

    def _finish(self, context: KeptContext) -> bool:
        part = self.part(context.name)
        if not self._make_room(context.size, context.size):
            self._remove(context.name, "there is no room for it")
            return False
        try:
            part.chmod(0o600)
            part.replace(self.whole(context.name))
            self._write(context)
        except OSError as error:
            self._remove(context.name, "it could not be written")
            return self._fail(error)
        self._written.append((context.made, context.size))
        self._failing = False
        return True

    def _use(self, name: str, saved_tokens: int) -> None:
        if (it := self._contexts.get(name)) is not None:
            try:
                self._write(structs.replace(it, used=time.time(), saved_tokens=it.saved_tokens + saved_tokens))
            except OSError as error:
                self._fail(error)

    def _write(self, context: KeptContext) -> None:
        try:
            manifest = manifest_of(context)
        except UNREADABLE:
            manifest = b""
        if len(manifest) > MAX_MANIFEST or read_manifest(manifest) != context:
            raise OSError(None, "its manifest could not be read again")
        write_whole(self._manifest(context.name), manifest, private=True)
        self._contexts = {**self._contexts, context.name: context}

    def _remove(self, name: str, why: str) -> None:
        context = self._contexts.get(name)
        self._contexts = {each: kept for each, kept in self._contexts.items() if each != name}
        log.info("a context of %s is not kept: %s", context.model if context is not None else "a model", why)
        try:
            for path in (self._manifest(name), self.whole(name), self.part(name)):
                unlink(path)
        except OSError as error:
            self._fail(error)

    def _clear(self, model: str | None) -> list[KeptContext]:
        gone = [each for each in self._contexts.values() if model in (None, each.model)]
        for each in gone:
            self._remove(each.name, "it was asked for")
        return gone

    def _fail(self, why: str | OSError) -> bool:
        if not self._failing:
            log.warning("contexts are not kept in %s: %s", self.folder, why)
        self._failing = True
        return False

    def _manifest(self, name: str) -> Path:
        return self.folder / (name + MANIFEST)


async def _clear_place(place: ContextPlace, model: str | None) -> list[KeptContext]:
    async with _taken(place) as kept:
        return await kept.clear(model) if kept is not None else []


@asynccontextmanager
async def _taken(place: ContextPlace) -> AsyncGenerator[KeptContexts | None]:
    """Own a folder where no server does; None: it is not there. Raises Conflict."""
    if not await trio.to_thread.run_sync(place.folder.exists):
        yield None
        return
    kept = KeptContexts(place)
    try:
        if why := await kept.take():
            raise Conflict(f"the contexts in {place.folder} cannot be reached: {why}")
        yield kept
    finally:
        kept.close()


def _checksum(path: Path, number: int, size: int) -> int | None:
    """Return the checksum of one piece; None: the file cannot be read, or has not this size."""
    try:
        with open_regular(str(path)) as file:
            if os.fstat(file.fileno()).st_size != size:
                return None
            file.seek(number * PIECE)
            found = 0
            for _ in range(PIECE // READ_SIZE):
                found = zlib.crc32(file.read(READ_SIZE), found)
            return found
    except OSError:
        return None
