"""Refuse a payload that tells where, and so by whom, it was built: no file may hold the path of a builder's folder.

Searched are the bytes of every file, of the modules inside the program (Python notes the source file of each function)
and of those in zip archives. Libraries that others compiled are left out: a wheel tells where its makers built it, and
so does a Python. An engine that was fetched is such a library; one that llama-builds made is not.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePath
from typing import cast

import contents
from PyInstaller.archive.readers import ArchiveReadError, CArchiveReader

sys.path.insert(0, str(contents.ROOT / "llama-builds"))
from layout import MANIFEST, cache_folder

MODULES = "PYZ.pyz"
"""PyInstaller's archive of modules, inside the program."""
BUILD_OF_PYTHON = "_sysconfigdata"
"""The beginning of the module that says how its makers built Python."""


def refuse_builder_paths(payload: Path, work: Path) -> None:
    """End with an error that names every file with a path of this checkout, its environment, the cache or the home.

    ``work`` holds PyInstaller's lists.
    """
    others = compiled_by_others(work) | set(fetched_engines(payload))
    found = traces(payload, (contents.ROOT, Path(sys.prefix), cache_folder(), Path.home()), others)
    if told := [f"{file} ({place})" for file, place in found]:
        sys.exit(
            f"error: {len(told)} files of the payload tell where they were built: {', '.join(told[:10])}\n"
            "Build an engine again with llama-builds/build.py; keep another file out in "
            f"packaging/{contents.NAME}.spec, or have the tool that makes it leave the path out."
        )
    if Path(sys.base_prefix).is_relative_to(Path.home()):
        print(f"  note: Python's own libraries name {sys.base_prefix}: for others, freeze with the system's Python")


def compiled_by_others(work: Path) -> set[str]:
    """Return the names, in the payload, of the libraries of Python and its packages."""
    [entries] = cast(tuple[list[tuple[str, str, str]]], ast.literal_eval((work / "COLLECT-00.toc").read_text("utf-8")))
    return {f"_internal/{PurePath(name).as_posix()}" for name, _, kind in entries if kind in ("BINARY", "EXTENSION")}


def fetched_engines(payload: Path) -> Iterator[str]:
    """Yield the files of engines that llama-builds did not make: it notes the compiler's options."""
    for manifest in payload.glob(f"engines/*/*/{MANIFEST}"):
        if "options" not in json.loads(manifest.read_bytes()):
            yield from (path.relative_to(payload).as_posix() for path in manifest.parent.rglob("*"))


def traces(payload: Path, places: Sequence[Path], left_out: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each file that holds the path of something in one of the places, and that place."""
    pattern = _pattern(places)
    for path in sorted(payload.rglob("*")):
        name = path.relative_to(payload).as_posix()
        if path.is_file() and not path.is_symlink() and name not in left_out:
            for part, content in _parts(path):
                if (found := pattern.search(content)) is not None:
                    yield f"{name}{part}", found[0].decode()


def _pattern(places: Sequence[Path]) -> re.Pattern[bytes]:
    """Find a place as the beginning of a longer path, as its system, a web address or a JSON string spells it."""
    real = [place for place in places if place != place.parent]
    spelt = {word for place in real for word in (str(place), place.as_posix(), json.dumps(str(place))[1:-1])}
    words = b"|".join(re.escape(word.encode()) for word in sorted(spelt, key=len, reverse=True))
    return re.compile(rb"(?<![\w.-])(?:" + words + rb")(?=[/\\])", re.IGNORECASE if sys.platform == "win32" else 0)


def _parts(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the file's bytes, and those of everything that is packed into it."""
    yield "", path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from ((f": {name}", archive.read(name)) for name in archive.namelist())
    try:
        program = CArchiveReader(str(path))
    except ArchiveReadError:
        return
    yield from ((f": {name}", program.extract(name)) for name in program.toc)
    modules = program.open_embedded_archive(MODULES)
    for name in modules.toc:
        if not name.startswith(BUILD_OF_PYTHON):
            yield f": {name}", modules.extract(name, raw=True) or b""
