"""Which llama.cpp builds this machine has, and which one the program uses.

Looked at in this order: what the user named (``--engine``, then ``LLAMA_APPLIANCE_ENGINE``), the builds shipped beside
a frozen program, the installed ones (``engines install``), the builds in the user's cache (written by
``llama-builds/build.py``), ``llama-server`` on ``PATH``, the embedded engine. Builds lie in
``<platform>-<backend>/<build>/`` below each of these places. Finding an engine never runs it: whether it works here is
what ``engines prove`` and ``selftest`` show.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct, structs

from appliance.core.engine import EMBEDDED, Engine, EngineInside
from appliance.core.engines.builds import MANIFEST, Build, FileSum
from appliance.core.versions import numbers_of
from appliance.errors import UsageError
from appliance.platform.console import is_frozen
from appliance.platform.home import expanded, users_cache, users_data
from appliance.platform.inside import engine_inside, engine_not_found
from appliance.platform.machine import this_platform
from appliance.platform.strangers import stranger_at

MAX_MANIFEST = 1 << 20
"""A manifest has some 150 bytes for each file; anything longer than this is something else."""
LONGEST_WORD = 100
"""Characters of what a build says of itself, which is shown in tables and log lines."""
OF_ID = re.compile(r"(?:[A-Za-z0-9_](?:[.+-]?[A-Za-z0-9_])*)?")
"""A part of a build's id: no path, and nothing that an option or a shell could take it for."""
SHOWN = 3
"""Files that one line names."""

log = logging.getLogger(__name__)
ENGINE_VARIABLE = "LLAMA_APPLIANCE_ENGINE"
FOLDER_VARIABLE = "LLAMA_APPLIANCE_ENGINES_DIR"
LARGEST_SCRIPT = 1 << 20
"""Bytes of a command that Python's package managers write; a build of llama-server has more."""
EXECUTABLE = "llama-server.exe" if sys.platform == "win32" else "llama-server"
ENGINE_HELP = (
    f"llama-server program, folder with {MANIFEST}, build such as 'linux-x64-vulkan/b11434', backend such as 'vulkan', "
    f"or '{EMBEDDED}' (or {ENGINE_VARIABLE})."
)
"""The values of ``--engine``, for the help of every verb that has it."""
BACKENDS = re.compile(r"cpu|vulkan|cuda\d*|rocm|metal|sycl")
BUILD_ID = re.compile(r"[a-z0-9]+-[a-z0-9]+-[a-z0-9]+/[\w.-]+")


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
                state.st_mtime_ns > listed and not _same(path, file, state.st_mtime_ns)
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


class EngineFolders(Struct, frozen=True, kw_only=True):
    """The places to look in; the tests give their own."""

    named: str | None
    """The value of `ENGINE_VARIABLE`."""
    beside: Path | None
    """``engines/`` beside a frozen program."""
    installed: Path | None = None
    """The folder in which ``engines install`` puts builds, and their state."""
    cache: Path
    search_path: str
    inside: EngineInside | None = None
    """The engine inside the program."""

    @classmethod
    def of_this_machine(cls, environ: Mapping[str, str] = os.environ) -> EngineFolders:
        """The real ones."""
        return cls(
            named=environ.get(ENGINE_VARIABLE) or None,
            beside=Path(sys.executable).parent / "engines" if is_frozen() else None,
            installed=installed_folder(environ),
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


def installed_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder in which ``engines install`` puts builds: `FOLDER_VARIABLE`, else in the user's data folder."""
    if named := environ.get(FOLDER_VARIABLE):
        return expanded(named).absolute()
    return users_data() / "engines"


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


class Finder(Struct, frozen=True):
    """The source of the engines that a program chooses among. ``find`` lists them, best place first."""

    find: Callable[[], list[Engine]]
    only: bool = False
    """It is one that somebody named, and nothing else will do."""


def finder(explicit: str | None, places: EngineFolders | None = None) -> Finder:
    """The engine that was named (see `find_engine`), else every one that is here. Raises as `find_engine`."""
    places = places or EngineFolders.of_this_machine()
    engine = find_engine(explicit, places)
    if explicit is None and places.named is None:
        return Finder(partial(list_engines, places))
    return Finder(lambda: [engine], only=True)


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
        yield _program(on_path, "PATH")
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
        usable = folder and program.is_absolute() and _executable(program) and not _is_everybodys(program)
        if usable and not is_this_program(program) and not _strangers(program):
            return program
    return None


def is_this_program(program: Path) -> bool:
    """True for this program's own second name, which would start itself for ever.

    Frozen, it lies beside the program; installed by a package manager of Python, it is a small file that names the
    function to call, at its end on Windows.
    """
    if is_frozen() and program.resolve().parent == Path(sys.executable).resolve().parent:
        return True
    try:
        return program.stat().st_size < LARGEST_SCRIPT and b"appliance.__main__" in program.read_bytes()
    except OSError:
        return False


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
    for manifest in root.glob(f"[!.]*/[!.]*/{MANIFEST}"):
        try:
            build = read_build(manifest.parent)
            if build.platform in ("", this_platform()):
                found.append(_build(manifest.parent, build, source))
        except (OSError, ValueError, UsageError):
            continue  # one being written, or no build: `--engine FOLDER` says what is wrong with it
    return sorted(found, key=_newest_first)


def _newest_first(engine: Engine) -> tuple[object, ...]:
    special = not engine.id.endswith(f"/{engine.version}")  # made for this machine, and preferred for it
    release = numbers_of(engine.version or "") or (0,)
    return tuple(-number for number in release), engine.backend != "cpu", not special, engine.id


def _named(value: str, option: str, places: EngineFolders) -> Engine:
    if value == EMBEDDED:
        if places.inside is None:
            fetch = "'llama-appliance engines install' fetches one"
            raise UsageError(f"{option} {value}: this program has none; {fetch}, or name another with --engine PATH")
        if (engine := places.inside.find()) is None:
            raise UsageError(f"{option} {value}: it is not installed here; '{places.inside.install}' adds it")
        return structs.replace(engine, source=option)
    if BACKENDS.fullmatch(value) or (BUILD_ID.fullmatch(value) and not Path(value).exists()):
        return _whole(_by_word(value, option, list_engines(places)), option, value)
    path = expanded(value)
    if path.is_dir():
        if (path / MANIFEST).exists():
            return _whole(_named_build(path, option), option, value)
        if _executable(path / EXECUTABLE):
            return _program(path / EXECUTABLE, option)
        raise UsageError(f"{option} {value}: this folder holds neither {MANIFEST} nor {EXECUTABLE}")
    if not path.exists():
        raise UsageError(
            f"{option} {value}: no such file or folder; name a llama-server executable, a folder with {MANIFEST}, "
            f"a build or a backend, or '{EMBEDDED}'; {_known(list_engines(places))}"
        )
    if not _executable(path):
        raise UsageError(f"{option} {value}: this file is not executable; name a llama-server program")
    return _program(path, option)


def _by_word(word: str, option: str, engines: Sequence[Engine]) -> Engine:
    """The best build with this id, or of this backend; a damaged one only where there is no other."""
    prefix = word if word.isalpha() else None
    fitting = [
        engine
        for engine in engines
        if engine.folder is not None
        and (word in (engine.id, engine.backend) or (prefix and engine.backend.rstrip("0123456789") == prefix))
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


def _whole(engine: Engine, option: str, value: str) -> Engine:
    if engine.damage:
        raise UsageError(
            f"{option} {value}: {engine.damage} in {engine.folder}, so it is not started; an antivirus program's "
            "quarantine is the usual cause: restore the file there, or install or make the build again"
        )
    return engine


def _named_build(folder: Path, source: str) -> Engine:
    try:
        build = read_build(folder)
        if build.platform in ("", this_platform()):
            return _build(folder, build, source)
    except (OSError, ValueError) as cause:
        raise UsageError(f"{folder / MANIFEST} cannot be used: {cause}") from None
    raise UsageError(f"{folder} cannot be used: it is for {build.platform}, and this machine is {this_platform()}")


def _build(folder: Path, build: Build, source: str) -> Engine:
    """Raises UsageError when there is no program in the folder and its manifest lists none, OSError, ValueError."""
    program = folder / EXECUTABLE
    damage = damage_of(folder, build, (folder / MANIFEST).stat().st_mtime_ns)
    if not damage and not _executable(program):
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


def _program(path: Path, source: str) -> Engine:
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


def _executable(path: Path) -> bool:
    return os.access(path, os.X_OK) and path.is_file()  # access first: it says no, and does not raise, for hidden files
