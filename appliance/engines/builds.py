"""Builds of llama.cpp on the disk: the ``engine.json`` of one, its damage, and the engine that it is.

Reading a build never runs it. Everything here waits for the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from functools import lru_cache
from pathlib import Path, PurePosixPath

import msgspec

from appliance.core.builds import MANIFEST, Build
from appliance.core.engine import Engine
from appliance.errors import UsageError

MAX_MANIFEST = 1 << 20
"""A manifest has some 150 bytes for each file; anything longer than this is something else."""
LONGEST_WORD = 100
"""Characters of what a build says of itself, which is shown in tables and log lines."""
OF_ID = re.compile(r"(?:[A-Za-z0-9_](?:[.+-]?[A-Za-z0-9_])*)?")
"""A part of a build's id: no path, and nothing that an option or a shell could take it for."""
SHOWN = 3
"""Files that one line names."""
EXECUTABLE = "llama-server.exe" if sys.platform == "win32" else "llama-server"


def read_build(folder: Path) -> Build:
    """Read ``engine.json``. Raises OSError, ValueError (msgspec's errors are some)."""
    with (folder / MANIFEST).open("rb") as file:
        return build_of(file.read(MAX_MANIFEST))


def build_of(manifest: bytes) -> Build:
    """The same of its bytes. Raises ValueError."""
    try:
        build = msgspec.json.decode(manifest, type=Build)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    words = (build.name, build.backend, build.platform, build.build, build.version or "", build.rpc or "")
    bad = next((word for word in words if not word.isprintable() or len(word) > LONGEST_WORD), None)
    if bad is None:
        bad = next((word for word in (build.backend, build.platform, build.build) if not OF_ID.fullmatch(word)), None)
    if bad is not None:
        raise ValueError(f"{bad[:LONGEST_WORD]!r} in it can be no name")
    return build


def check_build(folder: Path, *, read_all: bool = False) -> str:
    """One line naming missing and changed files; empty: the build is whole, or lists no files.

    ``read_all``: hash every file, whatever sizes and times say; for a build that just arrived.
    """
    try:
        build = read_build(folder)
        listed = (folder / MANIFEST).stat().st_mtime_ns
    except (OSError, ValueError) as cause:
        return f"{MANIFEST} cannot be read: {cause}"
    return damage_of(folder, build, -1 if read_all else listed)


def damage_of(folder: Path, build: Build, listed: int) -> str:
    """The same where the manifest was read; ``listed`` is when it was written, in ns."""
    missing: list[str] = []
    changed: list[str] = []
    for file in build.files:
        if not is_inside(file.path):
            changed.append(file.path)
            continue
        path = folder / file.path
        try:
            state = path.stat()
            if not stat.S_ISREG(state.st_mode):
                missing.append(file.path)
            elif state.st_size != file.size or (
                state.st_mtime_ns > listed and _sha256(path, file.size, state.st_mtime_ns) != file.sha256
            ):
                changed.append(file.path)
        except OSError:
            missing.append(file.path)
    told = [f"{_names(files)} {what}" for files, what in ((missing, "missing"), (changed, "changed")) if files]
    return "; ".join(told)


def is_inside(path: str) -> bool:
    """True if a listed path stays in its folder."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not any(part in ("..", "/") or any(sign in part for sign in "\\:\0") for part in parts)


@lru_cache(maxsize=5000)
def _sha256(path: Path, size: int, changed: int) -> str:
    """Size and time of change are parts of the key: a file that stays as it is is read once per process."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _names(files: list[str]) -> str:
    more = f" and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
    shown = [name if name.isprintable() else repr(name) for name in files[:SHOWN]]
    return f"{', '.join(shown)}{more} {'is' if len(files) == 1 else 'are'}"


def engine_of_build(folder: Path, build: Build, source: str) -> Engine:
    """Return the engine. Raises UsageError if no program is there and its manifest lists none, OSError, ValueError."""
    program = folder / EXECUTABLE
    damage = damage_of(folder, build, (folder / MANIFEST).stat().st_mtime_ns)
    if not damage and not is_executable(program):
        raise UsageError(f"{folder} cannot be used: there is no executable {EXECUTABLE} beside its {MANIFEST}")
    command = str(program.absolute())
    return Engine(
        name=build.name,
        backend=build.backend,
        version=build.version,
        command=(command,),
        source=source,
        id=build.id if build.platform and build.build else command,
        digest=build.digest if build.files else _stamp(program),
        folder=str(folder.absolute()),
        damage=damage,
        rpc=build.rpc,
    )


def engine_of_program(path: Path, source: str) -> Engine:
    """Return the engine that a program alone is."""
    command = str(path.absolute())
    return Engine(
        name=path.name,
        backend="unknown",
        version=None,
        command=(command,),
        source=source,
        id=command,
        digest=_stamp(path),
    )


def _stamp(program: Path) -> str:
    """Stands for the content of a program that nobody listed: changes when it is replaced."""
    state = program.stat()
    facts = f"{program.absolute()}\n{state.st_size}\n{state.st_mtime_ns}"
    return hashlib.sha256(facts.encode(errors="surrogateescape")).hexdigest()[:16]


def is_executable(path: Path) -> bool:
    """True for a file that this user may run."""
    return os.access(path, os.X_OK) and path.is_file()  # access first: it says no, and does not raise, for hidden files
