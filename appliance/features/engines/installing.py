"""A build from archives, or from a folder, to a whole and verified folder among the staged ones, and into its place.

The caller hands in the function that fetches archives: downloads are not this room's business.
"""

from __future__ import annotations

import platform
import sys
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import msgspec
import trio
from msgspec import Struct, structs

from appliance.core.archives import BadArchive
from appliance.core.builds import MANIFEST, Build, FileSum
from appliance.core.engine import Engine
from appliance.core.machine_look import MachineLook
from appliance.engines.builds import EXECUTABLE, MAX_MANIFEST, build_of, check_build, read_build
from appliance.errors import UsageError
from appliance.features.engines.core.builds import (
    Archive,
    AvailableBuild,
    Catalogue,
    EngineOffer,
    Release,
    check_entry,
    offers,
)
from appliance.features.engines.shelf import Shelf
from appliance.store.file_hashes import sha256_of
from appliance.store.model_files import sync_folder, write_whole
from appliance.store.shelf import CannotInstall, copy_folder, size_of
from appliance.store.unpacking import check_links, read_member, unpack

SHIPPED = Path(__file__).with_name("manifest.toml")
CHECKOUT = Path(__file__).parents[3] / "llama-builds" / "manifest.toml"
UNPACKED = 4  # known archives grow to at most so many times their size; says whether the disk has room
NO_SUMS: Mapping[str, str] = {}
Fetch = Callable[[Archive, Path], Awaitable[None]]
"""Have the archive at this path, whole and with its sum. Raises ApplianceError, OSError."""


class BuildSources(Struct, frozen=True, kw_only=True):
    """The source of a build's files: archives of its entry, archives here, or a folder here."""

    entry: AvailableBuild
    files: tuple[Path, ...] = ()  # archives on this machine, instead of those of ``entry``
    folder: Path | None = None  # a folder on this machine that holds the build, instead of any archive
    sums: Mapping[str, str] = NO_SUMS  # the sha256 of ``files`` by their names, where they are known


async def stage(shelf: Shelf, sources: BuildSources, fetch: Fetch) -> Path:
    """Stage the build, whole and verified; cut short, its downloads stay. Raises CannotInstall, UsageError, OSError."""
    entry = sources.entry
    await trio.to_thread.run_sync(_check_room, shelf, sources)
    files = list(sources.files)
    if not files and sources.folder is None:
        for archive in entry.archives:
            path = shelf.downloads / archive.name
            await fetch(archive, path)
            files.append(path)
    make = partial(_make, shelf, sources, files, trio.from_thread.check_cancelled)
    try:
        return await trio.to_thread.run_sync(make)
    except BadArchive as cause:
        raise CannotInstall(str(cause)) from None


async def install(shelf: Shelf, sources: BuildSources, fetch: Fetch) -> Path:
    """`stage`, and give it its place among the builds that are found."""
    await stage(shelf, sources, fetch)
    place = await trio.to_thread.run_sync(shelf.put, sources.entry.id)
    await trio.to_thread.run_sync(forget_downloads, shelf, sources.entry)
    return place


def forget_downloads(shelf: Shelf, entry: AvailableBuild) -> None:
    """The archives of a build that is in its place are not needed any more."""
    for archive in entry.archives:
        (shelf.downloads / archive.name).unlink(missing_ok=True)


def home_of(folder: Path) -> Path | None:
    """The folder of the server itself within an unpacked archive; None where there is none, or there are several."""
    for name in (MANIFEST, EXECUTABLE):
        homes = {path.parent for path in folder.rglob(name) if path.is_file()}
        if len(homes) == 1:
            return homes.pop()
    return None


def described(source: Path) -> Build | None:
    """Read the ``engine.json`` of a folder or an archive; None without one. Raises CannotInstall."""
    try:
        if source.is_dir():
            return _read_facts(source)
        text = read_member(source, MANIFEST, MAX_MANIFEST)
        return None if text is None else build_of(text)
    except BadArchive as cause:
        raise CannotInstall(str(cause)) from None
    except ValueError as cause:
        raise CannotInstall(f"{MANIFEST} in {source} is damaged: {cause}") from None


def check_sums(sources: BuildSources, files: Sequence[Path], check: Callable[[], None]) -> None:
    """Compare the archives with the sums that are known of them. Raises CannotInstall, OSError, and as ``check``."""
    sums = {archive.name: archive.sha256 for archive in sources.entry.archives} | dict(sources.sums)
    for file in files:
        if (wanted := sums.get(file.name, "")) and sha256_of(file, check) != wanted.lower():
            raise CannotInstall(f"{file} has another sum than {wanted}: it is damaged, or something else")


def _make(shelf: Shelf, sources: BuildSources, files: Sequence[Path], check: Callable[[], None]) -> Path:
    check_sums(sources, files, check)
    entry, folder = sources.entry, sources.folder
    with shelf.making(f"{entry.platform}-{entry.backend}-{entry.build}") as work:
        if folder is not None:
            copy_folder(folder, work / "0", check)
        for number, file in enumerate(files):
            unpack(file, work / str(number), check)
        build = home_of(work / "0")
        if build is None:
            raise CannotInstall(f"there is no {EXECUTABLE} in {folder or files[0]}, or there are several")
        told = _read_facts(build)
        if told is not None:
            for what in ("platform", "backend", "build"):
                is_there, wanted = getattr(told, what), getattr(entry, what)
                if is_there and is_there != wanted:
                    raise UsageError(f"its {MANIFEST} says {what} {is_there}, and {wanted} was asked for")
            if damage := check_build(build, read_all=True):
                raise CannotInstall(f"it is not what its {MANIFEST} says: {damage}")
        for number in range(1, len(files)):
            _move_beside(work / str(number), build)
        if folder is None:
            check_links(build)
        program = build / EXECUTABLE
        if sys.platform != "win32" and program.is_file():
            program.chmod(0o755)  # a zip made on Windows knows no modes
        facts = told or Build(name=f"llama-server-{entry.backend}", backend=entry.backend, needs=entry.needs)
        files_of = facts.files if told is not None and told.files and len(files) < 2 else _sums_of(build, check)
        version = facts.version or entry.build
        _write_manifest(
            build,
            structs.replace(facts, platform=entry.platform, build=entry.build, version=version, files=tuple(files_of)),
        )
        return shelf.stage(build, entry.id)


def _check_room(shelf: Shelf, sources: BuildSources) -> None:
    """Archives of a size that nobody knows are found to be too large only when the disk is full."""
    fetched = 0 if sources.files or sources.folder else sources.entry.size
    packed = fetched or sum(file.stat().st_size for file in sources.files)
    folder = sources.folder
    unpacked = size_of(folder) if folder is not None else packed * UNPACKED
    shelf.check_room(sources.entry.id, fetched + unpacked)


def _read_facts(folder: Path) -> Build | None:
    """Read ``engine.json``, where there is one."""
    if not (folder / MANIFEST).exists():
        return None
    try:
        return read_build(folder)
    except ValueError as cause:
        raise CannotInstall(f"its {MANIFEST} is damaged: {cause}") from None


def _move_beside(unpacked: Path, build: Path) -> None:
    """The runtime libraries of another archive, from wherever they are in it, to where the server looks for them."""
    for path in sorted(unpacked.rglob("*")):
        if not path.is_file() or path.name == MANIFEST:
            continue
        there = build / path.name
        if there.exists() and not there.is_symlink():
            continue  # the build's own: what it was linked with
        path.rename(there)


def _sums_of(folder: Path, check: Callable[[], None]) -> list[FileSum]:
    found: list[FileSum] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            state = path.stat()
            runs = path.suffix == ".exe" if sys.platform == "win32" else bool(state.st_mode & 0o100)
            name = path.relative_to(folder).as_posix()
            found.append(FileSum(path=name, size=state.st_size, sha256=sha256_of(path, check), executable=runs))
    return found


def _write_manifest(folder: Path, build: Build) -> None:
    """Written last: a folder without a manifest is not a build."""
    if not (folder / EXECUTABLE).is_file():
        raise CannotInstall(f"there is no {EXECUTABLE} in it")
    write_whole(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(build), indent=1) + b"\n")
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            sync_folder(path)


def manifest_file() -> Path:
    """The path of the list of builds."""
    return SHIPPED if SHIPPED.is_file() or not CHECKOUT.is_file() else CHECKOUT


class _BuildList(Struct, frozen=True, kw_only=True):
    """The file. ``base`` is the address of an archive that has none, with ``{build}`` and ``{name}``."""

    base: str
    builds: tuple[AvailableBuild, ...]
    releases: tuple[Release, ...] = ()


@cache
def versions() -> Catalogue:
    """The list as it is at the start, for what is only shown; a list that cannot be read knows nothing."""
    try:
        return read_manifest()
    except (UsageError, OSError):
        return Catalogue()


def offers_here(look: MachineLook | None, engines: Iterable[Engine]) -> tuple[EngineOffer, ...]:
    """Return what `offers` has for this machine with these engines; nothing before anybody has looked at it."""
    whole = {engine.backend for engine in engines if not engine.damage}
    return () if look is None else offers(look, versions(), whole, **system_versions())


def system_versions() -> dict[str, str]:
    """Return the versions of this system's libraries, as `unmet` takes them."""
    return {
        "libc": platform.libc_ver()[1] if sys.platform == "linux" else "",
        "macos": platform.mac_ver()[0],
    }


def read_manifest(path: Path | None = None) -> Catalogue:
    """The list. Raises UsageError for one that cannot be used, and OSError."""
    path = path or manifest_file()
    try:
        with path.open("rb") as file:
            found = msgspec.convert(tomllib.load(file), type=_BuildList)
    except FileNotFoundError:
        raise UsageError(f"there is no list of builds at {path}; name a build of your own with --from") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as cause:
        raise UsageError(f"{path} is not a valid list of builds: {cause}") from None
    return Catalogue(entries=tuple(_addressed(each, found.base) for each in found.builds), releases=found.releases)


def _addressed(entry: AvailableBuild, base: str) -> AvailableBuild:
    check_entry(entry)
    archives: list[Archive] = []
    for archive in entry.archives:
        url = archive.url or base.replace("{build}", entry.build).replace("{name}", archive.name)
        if PurePosixPath(archive.name).name != archive.name or urlsplit(url).scheme not in ("https", "http"):
            raise UsageError(f"'{archive.name}' in the list of builds has an invalid file name or address: {url}")
        archives.append(structs.replace(archive, url=url))
    return structs.replace(entry, archives=tuple(archives))
