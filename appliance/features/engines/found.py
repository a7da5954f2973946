"""Which llama.cpp builds this machine has, and which one the program uses.

Looked at in this order: what the user named (``--engine``, then ``LLAMA_APPLIANCE_ENGINE``), the builds shipped beside
a frozen program, the installed ones (``engines install``), the builds in the user's cache (written by
``llama-builds/build.py``), ``llama-server`` on ``PATH``, the embedded engine. Builds lie in
``<platform>-<backend>/<build>/`` below each of these places. Finding an engine never runs it: whether it works here is
what ``engines prove`` and ``selftest`` show.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

from appliance.core.builds import MANIFEST, Build
from appliance.core.engine import EMBEDDED, Engine, EngineInside
from appliance.core.versions import numbers_of
from appliance.engines.builds import EXECUTABLE, engine_of_build, engine_of_program, is_executable, read_build
from appliance.engines.named import ENGINE_VARIABLE, engine_at, is_this_program, whole
from appliance.errors import UsageError
from appliance.platform.console import is_frozen
from appliance.platform.home import engines_folder, users_cache
from appliance.platform.inside import engine_inside, engine_not_found
from appliance.platform.machine import this_platform
from appliance.platform.strangers import stranger_at

log = logging.getLogger(__name__)
BACKENDS = re.compile(r"cpu|vulkan|cuda\d*|rocm|metal|sycl")
BUILD_ID = re.compile(r"[a-z0-9]+-[a-z0-9]+-[a-z0-9]+/[\w.-]+")


class EngineFolders(Struct, frozen=True, kw_only=True):
    """The places to look in; the tests give their own."""

    named: str | None  # the value of `ENGINE_VARIABLE`
    beside: Path | None  # ``engines/`` beside a frozen program
    installed: Path | None = None  # the folder in which ``engines install`` puts builds, and their state
    cache: Path
    search_path: str
    inside: EngineInside | None = None  # the engine inside the program

    @classmethod
    def of_this_machine(cls, environ: Mapping[str, str] = os.environ) -> EngineFolders:
        """The real ones."""
        return cls(
            named=environ.get(ENGINE_VARIABLE) or None,
            beside=Path(sys.executable).parent / "engines" if is_frozen() else None,
            installed=engines_folder(environ),
            cache=users_cache() / "engines",
            search_path=environ.get("PATH", os.defpath),
            inside=engine_inside(),
        )

    def roots(self) -> list[tuple[Path, str]]:
        """The folders of builds, best first, with what is said of builds found there."""
        roots = (
            (self.beside, "shipped with the program"),
            (self.installed, "installed"),
            (self.cache, "built on this machine"),
        )
        return [(root, source) for root, source in roots if root is not None]


def find_engine(explicit: str | None, places: EngineFolders | None = None) -> Engine:
    """The engine to use. ``explicit`` is the value of ``--engine``: see `ENGINE_HELP`. Never one that is damaged.

    Raises UsageError when what the user named cannot be used (nothing else is tried then), EngineNotFound when nothing
    was named and nothing here is whole.
    """
    places = places or EngineFolders.of_this_machine()
    if explicit is not None:
        return _named(explicit, "--engine", places)
    if places.named is not None:
        return _named(places.named, ENGINE_VARIABLE, places)
    damaged: list[str] = []
    for engine in _discovered(places):
        if not engine.damage:
            return engine
        damaged.append(f"{engine.folder}, where {engine.damage}")
    roots = [str(root) for root, _ in places.roots()]
    inside = () if places.inside is None else ("the embedded engine",)
    raise engine_not_found([*damaged, *roots, f"{EXECUTABLE} on PATH", *inside])


def _named(value: str, option: str, places: EngineFolders) -> Engine:
    if value == EMBEDDED and places.inside is None:
        fetch = "'llama-appliance engines install' fetches one"
        raise UsageError(f"{option} {value}: this program has none; {fetch}, or name another with --engine PATH")
    if BACKENDS.fullmatch(value) or (BUILD_ID.fullmatch(value) and not Path(value).exists()):
        return whole(_by_word(value, option, list_engines(places)), option, value)
    others = lambda: f", a build or a backend, or '{EMBEDDED}'; {_known(list_engines(places))}"  # noqa: E731
    return engine_at(value, option, places.inside, others)


def is_named(explicit: str | None) -> bool:
    """True if the user named an engine, by the value of ``--engine`` or by the environment."""
    return explicit is not None or EngineFolders.of_this_machine().named is not None


def list_engines(places: EngineFolders | None = None) -> list[Engine]:
    """Every engine found without being named, best place first, also those with `Engine.damage`."""
    return list(_discovered(places or EngineFolders.of_this_machine()))


def _discovered(places: EngineFolders) -> Iterator[Engine]:
    """A build that lies in two places is named once, unless the better placed one is damaged."""
    seen: set[tuple[str, str]] = set()
    for root, source in places.roots():
        for engine in _builds(root, source) if root is places.beside or not _strangers(root) else ():
            if (engine.id, engine.digest) not in seen:
                yield engine
            if not engine.damage:
                seen.add((engine.id, engine.digest))
    if on_path := _on_path(places.search_path):
        yield engine_of_program(on_path, "PATH")
    if places.inside is not None and (engine := places.inside.find()):
        yield engine


def _on_path(search_path: str) -> Path | None:
    """The program in a folder of ``PATH``, as what is found is also run without being asked for.

    Skip programs that another user may have put there: in relative folders, which depend on the current one, in folders
    and files that everybody may write to, and for root all that another user could have changed. To use such a program,
    name it.
    """
    for folder in search_path.split(os.pathsep):
        program = Path(folder) / EXECUTABLE
        usable = folder and program.is_absolute() and is_executable(program) and not _is_everybodys(program)
        if usable and not is_this_program(program) and not _strangers(program):
            return program
    return None


def _is_everybodys(program: Path) -> bool:
    """Windows tells it in another way than by modes; there PATH is what its owner made of it."""
    places = (program, program.parent, program.resolve())
    return sys.platform != "win32" and any(place.stat().st_mode & stat.S_IWOTH for place in places)


def _strangers(path: Path) -> bool:
    """True if this is root, which may have been given a user's HOME or PATH, and another user could have changed it."""
    if sys.platform == "win32" or os.geteuid() != 0 or not path.exists():
        return False
    if why := stranger_at(path):
        _warn(path, why)
    return bool(why)


@cache
def _warn(path: Path, why: str) -> None:
    log.warning("root uses no engine of %s: %s; set HOME to root's own, as 'sudo -H' does, or name it", path, why)


def _builds(root: Path, source: str) -> list[Engine]:
    """The builds for this platform in the folders of ``root``, newest first; of one release the processor's come first,
    which work everywhere. Incomplete folders are skipped."""
    found: list[Engine] = []
    for folder, build in builds_below(root):
        if build.platform in ("", this_platform()):
            with suppress(OSError, ValueError, UsageError):  # its program is missing, or it goes while we look
                found.append(engine_of_build(folder, build, source))
    return sorted(found, key=_newest_first)


def builds_below(root: Path) -> Iterator[tuple[Path, Build]]:
    """Every build in the folders of ``root``, whatever it is for, and whole or not."""
    for manifest in sorted(root.glob(f"[!.]*/[!.]*/{MANIFEST}")):
        try:
            build = read_build(manifest.parent)
        except (OSError, ValueError):
            continue  # one being written, or no build: `--engine FOLDER` says what is wrong with it
        yield manifest.parent, build


def _newest_first(engine: Engine) -> tuple[object, ...]:
    special = not engine.id.endswith(f"/{engine.version}")  # made for this machine, and preferred for it
    release = numbers_of(engine.version or "") or (0,)
    return tuple(-number for number in release), engine.backend != "cpu", not special, engine.id


def _by_word(word: str, option: str, engines: Sequence[Engine]) -> Engine:
    """The best build with this id, or of this backend; a damaged one only where there is no other."""
    fitting = [
        engine
        for engine in engines
        if engine.folder is not None and word in (engine.id, engine.backend, engine.backend.rstrip("0123456789"))
    ]
    if not fitting:
        raise UsageError(
            f"{option} {word}: there is no such build; {_known(engines)}; "
            "'llama-appliance engines install' fetches others"
        )
    return next((engine for engine in fitting if not engine.damage), fitting[0])


def _known(engines: Sequence[Engine]) -> str:
    ids = list(dict.fromkeys(engine.id for engine in engines))
    return f"here are {', '.join(ids)}" if ids else "there is no engine here"
