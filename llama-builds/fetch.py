"""Fetch a build of llama.cpp that its authors made, and print the path of its program.

    python3 llama-builds/fetch.py --backend vulkan [--platform linux-x64] [--build b11457] [--into FOLDER]
    python3 llama-builds/fetch.py --backend vulkan --from PLACE
    python3 llama-builds/fetch.py --list

manifest.toml beside this file says what there is, and the size and sha256 of each archive; anything else is refused.
PLACE is a folder with the archives, one archive, the address of a folder of archives, or the address of one archive.
A folder that holds a finished build (with its engine.json) is taken, too, and every file of it checked.

The build lands in FOLDER/<platform>-<backend>/<build>/, whole or not at all; FOLDER is where llama-appliance looks for
builds made on this machine. A fetch that was cut off goes on where it stopped. Nothing is started: that a build works
here is what `llama-appliance engines prove` shows.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from archives import SUFFIXES, Archive, check, download, is_archive, unpack
from layout import (
    MANIFEST,
    build_folder,
    damage,
    engines_folder,
    is_whole,
    platform_name,
    publish,
    read_manifest,
    write_manifest,
)

from bootstrap import SetupError, exclusive, say

LIST = Path(__file__).resolve().parent / "manifest.toml"
SERVER = ("llama-server", "llama-server.exe")


class Entry(NamedTuple):
    """One ``[[builds]]`` of manifest.toml."""

    platform: str
    backend: str
    build: str
    licence: str
    archives: tuple[Archive, ...]
    needs: dict[str, object]

    @property
    def id(self) -> str:
        return f"{self.platform}-{self.backend}/{self.build}"


def read_list(path: Path = LIST) -> list[Entry]:
    """Everything that is listed. Raises OSError, ValueError, KeyError, TypeError for a list that is none."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    base: str = content["base"]
    return [
        Entry(
            each["platform"],
            each["backend"],
            each["build"],
            each["licence"],
            tuple(
                Archive(
                    one["name"],
                    one.get("url") or base.format(build=each["build"], name=one["name"]),
                    one.get("size", 0),
                    one.get("sha256", ""),
                )
                for one in each["archives"]
            ),
            each.get("needs", {}),
        )
        for each in content["builds"]
    ]


def find(entries: list[Entry], platform: str, backend: str, build: str | None) -> Entry:
    """The newest that is meant. Raises SetupError with what there is instead."""
    here = [entry for entry in entries if entry.platform == platform]
    kind = [entry for entry in here if entry.backend == backend]
    found = [entry for entry in kind if build in (None, entry.build)]
    if found:
        return max(found, key=lambda entry: [int(digits) for digits in re.findall(r"\d+", entry.build)])
    if kind:
        raise SetupError(f"no {backend} build {build} for {platform} is listed, but {', '.join(e.build for e in kind)}")
    others = ", ".join(sorted({entry.backend for entry in here})) or "nothing"
    raise SetupError(f"no {backend} build for {platform} is listed, but {others}")


def with_sums(entry: Entry, sums: list[str]) -> Entry:
    """``--sha256`` for the archives of which the list does not tell it, in their order. Raises SetupError."""
    given = [one.lower() for one in sums]
    if bad := [one for one in given if not re.fullmatch(r"[0-9a-f]{64}", one)]:
        raise SetupError(f"'{bad[0]}' is no sha256: it has 64 digits from 0 to f")
    if given and all(archive.sha256 for archive in entry.archives):
        raise SetupError(f"the list tells the sha256 of every archive of {entry.id}; leave --sha256 away")
    archives = [
        archive if archive.sha256 or not given else archive._replace(sha256=given.pop(0)) for archive in entry.archives
    ]
    if without := [archive.name for archive in archives if not archive.sha256]:
        raise SetupError(
            f"nobody has told the sha256 of {without[0]}; take it from a place that you trust and give it by --sha256"
        )
    return entry._replace(archives=tuple(archives))


def fetch(entry: Entry, into: Path, place: str | None) -> Path:
    """The folder of the build, whole. Raises SetupError."""
    folder = build_folder(into, entry.platform, entry.backend, entry.build)
    name = f".fetch-{entry.platform}-{entry.backend}-{entry.build}"
    with exclusive(into / f"{name}.lock", f"fetching {entry.id}"):
        if is_whole(folder):
            return folder
        work = into / name
        finished = finished_build(place)
        stage = copy_finished(finished, work) if finished else assemble(entry, work, place)
        publish(stage, folder)
        shutil.rmtree(work, ignore_errors=True)
    return folder


def finished_build(place: str | None) -> Path | None:
    """The folder that is a build already, if it is one that was named."""
    folder = Path(place).expanduser() if place and "://" not in place else None
    return folder if folder and (folder / MANIFEST).is_file() else None


def entry_of(folder: Path, platform: str, backend: str, build: str | None) -> Entry:
    """What a finished build says that it is. Raises SetupError where something else was asked for."""
    told = {key: str(value) for key, value in read_manifest(folder).items()}
    entry = Entry(told.get("platform", ""), told.get("backend", ""), told.get("build", ""), "", (), {})
    if (entry.platform, entry.backend) != (platform, backend) or build not in (None, entry.build):
        raise SetupError(f"{folder} is {entry.id}, and {platform}-{backend}/{build or '...'} was asked for")
    if any(re.fullmatch(r"[a-z0-9][\w.-]*", word) is None for word in entry[:3]):
        raise SetupError(f"the {MANIFEST} in {folder} does not say what it is")
    return entry


def copy_finished(folder: Path, work: Path) -> Path:
    """A copy of a finished build, every file as its list says. Raises SetupError."""
    stage = work / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    shutil.copytree(folder, stage)
    if problem := damage(stage):
        raise SetupError(f"{folder} is not whole: {problem}")
    return stage


def assemble(entry: Entry, work: Path, place: str | None) -> Path:
    """Have the archives, unpack them, and write ``engine.json``. Raises SetupError."""
    for number, archive in enumerate(entry.archives):
        file = have(archive, entry.archives, work / "download", place)
        shutil.rmtree(work / f"unpacked-{number}", ignore_errors=True)
        say(f"unpacking {archive.name}")
        unpack(file, work / f"unpacked-{number}")
    homes = {path.parent for name in SERVER for path in (work / "unpacked-0").rglob(name) if path.is_file()}
    if len(homes) != 1:
        raise SetupError(f"{entry.archives[0].name} has no llama-server in it, or several")
    stage = homes.pop()
    for number in range(1, len(entry.archives)):
        for path in sorted((work / f"unpacked-{number}").rglob("*")):
            if path.is_file() and not (stage / path.name).exists():
                path.rename(stage / path.name)
    for name in SERVER:
        if (stage / name).is_file():
            (stage / name).chmod(0o755)  # a zip made on Windows knows no modes
    facts: dict[str, object] = {
        "name": f"llama-server-{entry.backend}",
        "backend": entry.backend,
        "platform": entry.platform,
        "build": entry.build,
        "version": entry.build,
        "licence": entry.licence,
        "needs": entry.needs,
        "archives": {archive.name: archive.sha256 for archive in entry.archives},
        "fetched": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    write_manifest(stage, facts)
    return stage


def have(archive: Archive, all_archives: tuple[Archive, ...], downloads: Path, place: str | None) -> Path:
    """The archive, checked: from ``place``, or from where the list says. Raises SetupError."""
    if place is None:
        say(f"fetching {archive.url}" + (f" ({archive.size / 1e6:.0f} MB)" if archive.size else ""))
        return download(archive, downloads)
    if "://" in place:
        one = place.lower().endswith(SUFFIXES)
        if one and archive is not all_archives[0]:
            place, one = place.rpartition("/")[0], False
        url = place if one else f"{place.rstrip('/')}/{archive.name}"
        say(f"fetching {url}")
        return download(archive._replace(url=url), downloads)
    path = Path(place).expanduser()
    if path.is_file() and is_archive(path.name):
        path = path if archive is all_archives[0] else path.parent / archive.name
    elif path.is_dir():
        path = path / archive.name
    if not path.is_file():
        raise SetupError(f"{path} is not there; {archive.name} is looked for in {place}")
    check(path, archive)
    return path


def show(entries: list[Entry]) -> None:
    for entry in entries:
        size = sum(archive.size for archive in entry.archives)
        print(f"{entry.id:28} {size / 1e6:7.0f} MB  {entry.licence}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", help="cpu, vulkan, cuda12, cuda13, rocm, metal or sycl")
    parser.add_argument("--platform", default=platform_name(), help="what it is for (default: %(default)s)")
    parser.add_argument("--build", help="the release (default: the newest that is listed)")
    parser.add_argument("--from", dest="place", metavar="PLACE", help="where the archives are, in place of upstream")
    parser.add_argument("--into", type=Path, default=engines_folder(), metavar="FOLDER", help="(default: %(default)s)")
    parser.add_argument(
        "--sha256",
        action="append",
        default=[],
        help="of an archive of which the list does not tell it; may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="show what there is")
    args = parser.parse_args()
    if args.list:
        show(read_list())
        return
    if args.backend is None:
        parser.error("which --backend?")
    try:
        if finished := finished_build(args.place):
            entry = entry_of(finished, args.platform, args.backend, args.build)
        else:
            entry = with_sums(find(read_list(), args.platform, args.backend, args.build), args.sha256)
        folder = fetch(entry, args.into.expanduser().absolute(), args.place)
    except (SetupError, OSError) as error:
        sys.exit(f"error: {error}")
    print(next(folder / name for name in SERVER if (folder / name).is_file()))


if __name__ == "__main__":
    main()
