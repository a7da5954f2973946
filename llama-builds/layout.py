"""What a folder of a build looks like, and how one comes into being: whole or not at all.

    <engines>/<platform>-<backend>/<build>/llama-server, its libraries, licenses/, engine.json

``engine.json`` is `appliance.core.builds.Build`, written here without importing the program: the scripts of this
folder run on a bare Python. ``tests/test_llama_builds.py`` holds the two together.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

MANIFEST = "engine.json"
EXECUTABLE = "llama-server.exe" if sys.platform == "win32" else "llama-server"
SYSTEMS = {"linux": "linux", "darwin": "macos", "win32": "windows"}
MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def platform_name(system: str = sys.platform, machine: str = "") -> str:
    """``linux-x64``, ``macos-arm64``, ``windows-x64`` ...: of this machine, unless told of another."""
    machine = (machine or platform.machine()).lower()
    return f"{SYSTEMS.get(system, system)}-{MACHINES.get(machine, machine)}"


def cache_folder() -> Path:
    """Where this program keeps what it can make again; the same place as platformdirs' user_cache_dir."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
        return Path(local) / "llama-appliance" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "llama-appliance"
    xdg = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(xdg) if xdg else Path.home() / ".cache") / "llama-appliance"


def engines_folder() -> Path:
    """Where builds made on this machine lie, and where the program looks for them."""
    return cache_folder() / "engines"


def build_folder(root: Path, platform: str, backend: str, build: str) -> Path:
    """The place of one build below a folder of builds."""
    return root / f"{platform}-{backend}" / build


def read_manifest(folder: Path) -> dict[str, object]:
    """What ``engine.json`` says; empty when there is none that can be read."""
    try:
        found: object = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return cast(dict[str, object], found) if isinstance(found, dict) else {}  # JSON's keys are words


def listed(folder: Path) -> list[dict[str, object]]:
    """The files that the build lists; none when it lists none, or nonsense."""
    files = read_manifest(folder).get("files")
    entries = cast(list[object], files) if isinstance(files, list) else []
    return [cast(dict[str, object], entry) for entry in entries if isinstance(entry, dict)]


def is_whole(folder: Path) -> bool:
    """Whether the build's files are all there, with the sizes they were listed with."""
    try:
        sizes = {str(entry["path"]): entry["size"] for entry in listed(folder)}
        return bool(sizes) and all((folder / path).stat().st_size == size for path, size in sizes.items())
    except (OSError, KeyError):
        return False


def write_manifest(folder: Path, facts: Mapping[str, object]) -> None:
    """Write ``engine.json`` over the finished files of ``folder``: ``facts``, and the list of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    _write(folder, {**facts, "files": [_entry(path, folder) for path in files]})


def leave_out(folder: Path, name: str) -> None:
    """Take one file out of a finished build, off the list first: a kill in between leaves a build that is whole."""
    _write(folder, read_manifest(folder) | {"files": [entry for entry in listed(folder) if entry.get("path") != name]})
    (folder / name).unlink()


def publish(stage: Path, folder: Path) -> None:
    """Move the finished ``stage`` to ``folder``, on the same disk, in place of what may be there."""
    former = stage.with_name(f"{stage.name}.former")
    shutil.rmtree(former, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        folder.rename(former)
    stage.rename(folder)
    shutil.rmtree(former, ignore_errors=True)


def _write(folder: Path, content: Mapping[str, object]) -> None:
    new = folder / f"{MANIFEST}.new"
    new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    new.replace(folder / MANIFEST)


def _entry(path: Path, folder: Path) -> dict[str, object]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    state = path.stat()
    entry: dict[str, object] = {
        "path": path.relative_to(folder).as_posix(),
        "size": state.st_size,
        "sha256": digest,
    }
    if path.suffix == ".exe" or (sys.platform != "win32" and state.st_mode & 0o100):
        entry["executable"] = True
    return entry
