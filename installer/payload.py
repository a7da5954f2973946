"""The payload of every package, and what the packages of all kinds need: its facts, its needs, tidy trees."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packaging"))
import contents

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NAME = "llama-appliance"
PAYLOAD = ROOT / "dist" / NAME
PACKAGES = ROOT / "dist" / "packages"
PLACE = f"usr/lib/{NAME}"
MACHINES = {"linux-x64": ("amd64", "x86_64"), "linux-arm64": ("arm64", "aarch64")}
"""Platform to what Debian, container images (amd64) and RPM, AppImages (x86_64) call the machine."""
MAKERS = "The Llama Appliance developers"
"""Who makes the packages, as LICENSE calls them. They have no address yet."""
OPTIONAL = {"libvulkan.so.1": "libvulkan1"}
"""Libraries that one engine needs and the others do not; without them the program uses another engine."""


@dataclass(frozen=True)
class Payload:
    """The facts of payload.json that packages state, and the project's address. ``time`` in seconds since 1970."""

    version: str
    platform: str
    time: int
    homepage: str = ""


def read_payload(*, any_system: bool) -> Payload:
    """Return the payload's facts; ends with an error where there is none."""
    try:
        facts = json.loads((PAYLOAD / "payload.json").read_bytes())
    except OSError:
        sys.exit(f"error: there is no {PAYLOAD / 'payload.json'}; 'python3 bootstrap.py freeze' makes it")
    made = datetime.datetime.strptime(facts["made"], "%Y-%m-%dT%H:%M:%S%z")
    if facts["platform"] not in MACHINES and not any_system:
        sys.exit(f"error: the payload is for {facts['platform']}; Linux packages are for {', '.join(MACHINES)}")
    return Payload(facts["version"], facts["platform"], int(made.timestamp()))


def run(command: list[str]) -> str:
    """Run a tool and return what it printed; ends with an error if it is missing or fails."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as cause:
        sys.exit(f"error: {command[0]} is needed: {cause}")
    if done.returncode != 0:
        sys.exit(f"error: {command[0]} failed:\n{(done.stdout + done.stderr).strip()}")
    return done.stdout


# ---- trees -----------------------------------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def settle(stage: Path, seconds: int) -> None:
    """Give every file the commit's time and plain modes; settings in etc/default may hold a key."""
    for path in (stage, *stage.rglob("*")):
        if not path.is_symlink():
            plain = 0o600 if path.parent == stage / "etc" / "default" else 0o644
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else plain)
        os.utime(path, (seconds, seconds), follow_symlinks=False)


def pack(file: IO[bytes] | GzipFile, tree: Path, seconds: int, place: Callable[[Path], tuple[str, int]]) -> None:
    """Write the tree to a tar, sorted. ``place`` gives an entry's name there and its owner's number."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in (tree, *sorted(tree.rglob("*"))):
            name, owner = place(path)

            def plain(entry: tarfile.TarInfo, owner: int = owner) -> tarfile.TarInfo:
                entry.uid = entry.gid = owner
                entry.uname = entry.gname = "" if owner else "root"
                entry.mtime = seconds
                return entry

            archive.add(path, name, recursive=False, filter=plain)


def copy_licenses(folder: Path, files: Sequence[Path]) -> list[contents.Component]:
    """Copy the licences of this machine's files, and return their Debian packages."""
    parts, nobodys = contents.of_debian(files)
    if nobodys:
        sys.exit(f"error: no Debian package has {', '.join(map(str, nobodys))}, so its licence is not known")
    contents.copy_licenses(folder, parts)
    return parts


# ---- what the system must have ---------------------------------------------------------------------------------------


def needed(files: Iterable[Path]) -> tuple[set[str], tuple[int, int]]:
    """Return the shared libraries that programs and libraries among the files name, and the least version of glibc."""
    wanted: set[str] = set()
    floor = (2, 17)
    for path in files:
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        shown = run(["objdump", "-p", str(path)])
        wanted |= set(re.findall(r"NEEDED\s+(\S+)", shown))
        versions = re.findall(r"GLIBC_(\d+)\.(\d+)", shown)
        floor = max([floor, *((int(major), int(minor)) for major, minor in versions)])
    return wanted, floor


def needed_of_system() -> tuple[set[str], str]:
    """Return the same for what the payload does not hold itself.

    The program finds nothing in the payload before it runs. Its Python and each engine find what is in their own
    folder, and an engine does not find the libraries of the program.
    """
    wanted, floor = needed([PAYLOAD / NAME])
    for folder in (PAYLOAD / "_internal", *PAYLOAD.glob("engines/*/*")):
        files = [path for path in folder.rglob("*") if path.is_file()]
        found, version = needed(path for path in files if not path.is_symlink())
        wanted |= found - {path.name for path in files}
        floor = max(floor, version)
    return wanted, f"{floor[0]}.{floor[1]}"


def library(name: str) -> tuple[str, Path] | None:
    """Return the Debian package of a library of this machine, and its file; None if there is none."""
    command = ["dpkg-query", "--search", f"*/{name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    for line in sorted(found.splitlines()):
        package, _, path = line.partition(": ")
        if path.endswith(f"linux-gnu/{name}") or path.startswith("/lib64/"):
            return package.partition(":")[0], Path(path)
    return None
