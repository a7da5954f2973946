"""Which llama.cpp builds this machine has, and which one the program uses.

Looked at in this order: what the user named (``--engine``, then ``LLAMA_APPLIANCE_ENGINE``), the builds shipped beside
a frozen program, the builds in the user's cache (written by ``llama-builds/build.py``), ``llama-server`` on ``PATH``,
the embedded engine. Finding an engine never runs it: whether it works here is what ``selftest`` proves.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import platformdirs
from msgspec import Struct

from appliance.engines import embedded
from appliance.errors import EngineNotFound, UsageError

APP_NAME = "llama-appliance"
ENGINE_VARIABLE = "LLAMA_APPLIANCE_ENGINE"
EMBEDDED = "embedded"
WHEEL = "xllamacpp"
MANIFEST = "engine.json"
EXECUTABLE = "llama-server.exe" if sys.platform == "win32" else "llama-server"
ENGINE_HELP = f"llama-server program, folder with {MANIFEST}, or '{EMBEDDED}' (or {ENGINE_VARIABLE})."
"""What ``--engine`` takes, for the help of every verb that has it."""

MAX_MANIFEST = 1 << 20
"""A manifest is a few hundred bytes; anything longer than this is something else."""


class Engine(Struct, frozen=True, kw_only=True):
    """One way to start llama-server. ``command`` is the start of its argv; ``args`` and then flags are appended."""

    name: str
    backend: str
    """cpu, cuda12, vulkan, metal ... or ``unknown`` for a program the user named."""
    version: str | None
    command: tuple[str, ...]
    source: str
    """Where it was found, in words for the user."""
    id: str = ""
    """`Build.id`, ``embedded``, or the path of a program that is no build."""
    digest: str = ""
    """Changes when its files do; what is remembered of it is remembered under this."""
    folder: str | None = None
    """Of a build."""
    damage: str = ""
    """What is wrong with its files, one line; empty: nothing that a look at sizes and times shows."""
    rpc: str | None = None
    """Version of the RPC protocol that it speaks."""
    seat: str = ""
    """`Seat.id`, where its devices were chosen, too: ``args`` then name them."""
    args: tuple[str, ...] = ()


class Manifest(Struct, frozen=True):
    """``engine.json``: what a build says about itself. Keys that are not needed here are ignored."""

    name: str
    backend: str
    version: str | None = None


class Places(Struct, frozen=True, kw_only=True):
    """Where to look; the tests give their own."""

    named: str | None
    """The value of `ENGINE_VARIABLE`."""
    beside: Path | None
    """``engines/`` beside a frozen program."""
    cache: Path
    search_path: str

    @classmethod
    def of_this_machine(cls, environ: Mapping[str, str] = os.environ) -> Places:
        """The real ones."""
        return cls(
            named=environ.get(ENGINE_VARIABLE) or None,
            beside=Path(sys.executable).parent / "engines" if getattr(sys, "frozen", False) else None,
            cache=Path(platformdirs.user_cache_dir(APP_NAME, appauthor=False)) / "engines",
            search_path=environ.get("PATH", os.defpath),
        )


def find_engine(explicit: str | None, places: Places | None = None) -> Engine:
    """The engine to use. ``explicit`` is the value of ``--engine``: an executable, a folder, or ``embedded``.

    Raises UsageError when what the user named cannot be used (nothing else is tried then), EngineNotFound when nothing
    was named and nothing is here.
    """
    places = places or Places.of_this_machine()
    if explicit is not None:
        return _named(explicit, "--engine")
    if places.named is not None:
        return _named(places.named, ENGINE_VARIABLE)
    for engine in _discovered(places):
        return engine
    beside = [str(places.beside)] if places.beside else []
    raise EngineNotFound([*beside, str(places.cache), f"{EXECUTABLE} on PATH", "the embedded engine"])


def list_engines(places: Places | None = None) -> list[Engine]:
    """Every engine found without being named, best first; the first is the one `find_engine` takes by itself."""
    return list(_discovered(places or Places.of_this_machine()))


def _discovered(places: Places) -> Iterator[Engine]:
    if places.beside is not None:
        yield from _builds(places.beside, "shipped with the program")
    yield from _builds(places.cache, "built on this machine")
    if on_path := shutil.which(EXECUTABLE, path=places.search_path):
        yield _program(Path(on_path), "PATH")
    if embedded.available():
        yield _embedded("the Python environment")


def _builds(root: Path, source: str) -> list[Engine]:
    """The usable builds in the folders of ``root``, newest version first; broken ones are passed over."""
    found: list[Engine] = []
    for manifest in root.glob(f"*/{MANIFEST}"):
        try:
            found.append(_build(manifest.parent, source))
        except UsageError:
            continue  # half a build, or one being written: `--engine FOLDER` says what is wrong with it
    return sorted(found, key=lambda engine: (_age(engine.version), engine.name), reverse=True)


def _age(version: str | None) -> tuple[int, ...]:
    """``b11434`` -> (11434,): versions compare by their numbers."""
    return tuple(int(digits) for digits in re.findall(r"\d{1,18}", version or ""))


def _named(value: str, option: str) -> Engine:
    if value == EMBEDDED:
        if not embedded.available():
            raise UsageError(
                f"{option} {value}: it is not installed here; 'pip install llama-appliance[embedded]' adds it"
            )
        return _embedded(option)
    path = Path(value).expanduser()
    if path.is_dir():
        if (path / MANIFEST).exists():
            return _build(path, option)
        if _executable(path / EXECUTABLE):
            return _program(path / EXECUTABLE, option)
        raise UsageError(f"{option} {value}: this folder holds neither {MANIFEST} nor {EXECUTABLE}")
    if not path.exists():
        raise UsageError(
            f"{option} {value}: no such file or folder; name a llama-server executable, a folder with {MANIFEST}, "
            f"or '{EMBEDDED}'"
        )
    if not _executable(path):
        raise UsageError(f"{option} {value}: this file is not executable; name a llama-server program")
    return _program(path, option)


def _build(folder: Path, source: str) -> Engine:
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            manifest = msgspec.json.decode(file.read(MAX_MANIFEST), type=Manifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as cause:
        raise UsageError(f"{path} cannot be used: {cause}") from None
    program = folder / EXECUTABLE
    if not _executable(program):
        raise UsageError(f"{folder} cannot be used: there is no executable {EXECUTABLE} beside its {MANIFEST}")
    return Engine(
        name=manifest.name,
        backend=manifest.backend,
        version=manifest.version,
        command=(str(program.absolute()),),
        source=source,
    )


def _program(path: Path, source: str) -> Engine:
    return Engine(name=path.name, backend="unknown", version=None, command=(str(path.absolute()),), source=source)


def _embedded(source: str) -> Engine:
    from importlib.metadata import version  # thirty modules, which no other engine needs

    return Engine(
        name=EMBEDDED, backend="cpu", version=version(WHEEL), command=tuple(embedded.command()), source=source
    )


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
