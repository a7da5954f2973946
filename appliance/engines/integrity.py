"""Whether a build's files are what its ``engine.json`` lists: sizes and times, and hashes where these say nothing.

A file that is as long as it should be and no newer than the list is taken for unchanged. Any other is read, once per
process as long as it stays as it is: a copied folder is all newer, and whole.
"""

from __future__ import annotations

import hashlib
import re
import stat
from functools import lru_cache
from pathlib import Path, PurePosixPath

import msgspec

from appliance.core.engines.builds import MANIFEST, Build, FileSum

MAX_MANIFEST = 1 << 20
"""A manifest has some 150 bytes for each file; anything longer than this is something else."""
LONGEST_WORD = 100
"""Characters of what a build says of itself, which is shown in tables and log lines."""
OF_ID = re.compile(r"(?:[A-Za-z0-9_](?:[.+-]?[A-Za-z0-9_])*)?")
"""A part of a build's id: no path, and nothing that an option or a shell could take it for."""
SHOWN = 3
"""Files that one line names."""


def read_build(folder: Path) -> Build:
    """What ``engine.json`` says. Raises OSError, ValueError (msgspec's errors are some)."""
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
                state.st_mtime_ns > listed and not _same(path, file, state.st_mtime_ns)
            ):
                changed.append(file.path)
        except OSError:
            missing.append(file.path)
    told = [f"{_names(files)} {what}" for files, what in ((missing, "missing"), (changed, "changed")) if files]
    return "; ".join(told)


def is_inside(path: str) -> bool:
    """Whether a listed path stays in its folder."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not any(part in ("..", "/") or any(sign in part for sign in "\\:\0") for part in parts)


def _same(path: Path, file: FileSum, changed: int) -> bool:
    return _sha256(path, file.size, changed) == file.sha256


@lru_cache(maxsize=5000)
def _sha256(path: Path, size: int, changed: int) -> str:
    """Size and time of change are parts of the key: a file that stays as it is is read once per process."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _names(files: list[str]) -> str:
    more = f" and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
    shown = [name if name.isprintable() else repr(name) for name in files[:SHOWN]]
    return f"{', '.join(shown)}{more} {'is' if len(files) == 1 else 'are'}"
