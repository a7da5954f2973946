"""Finds the system's GPU libraries by name without loading any: drivers' code may crash its process.

``root`` is where the files are looked for. Sources: ld.so(8), and LoaderDriverInterface.md of the Vulkan loader.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from appliance.core.lenient_json import UNREADABLE

ROOT = Path("/")
SYSTEM = (
    "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu",
    "usr/lib64", "lib64", "usr/lib", "lib", "usr/lib/wsl/lib", "usr/local/lib", "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib", "run/opengl-driver/lib", "opt/rocm/lib",
)  # fmt: skip
"""Folders of libraries on Linux besides those of ld.so.conf.d: Debian, Fedora, WSL, Docker, NixOS, ROCm."""
NVML = ("nvml.dll",) if sys.platform == "win32" else ("libnvidia-ml.so.1",)
WANTED: Mapping[str, Sequence[str]] = (
    {"vulkan": ("vulkan-1.dll",), "cuda": ("nvcuda.dll",), "rocm": ("amdhip64_7.dll", "amdhip64_6.dll")}
    if sys.platform == "win32"
    else {
        "vulkan": ("libvulkan.so.1",),
        "cuda": ("libcuda.so.1",),
        "rocm": ("libamdhip64.so.7", "libamdhip64.so.6", "libhsa-runtime64.so.1"),
    }
)
"""The libraries that GPU builds need from the system: the driver's, or Vulkan's loader."""
MANIFESTS = ("usr/local/etc/vulkan/icd.d", "usr/local/share/vulkan/icd.d", "etc/vulkan/icd.d", "usr/share/vulkan/icd.d")
DRIVER_FILES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
MAX_MANIFEST = 1 << 16
MAX_DRIVERS = 32
MESA = re.compile(rb"Mesa ([0-9]{2}\.[0-9]+\.[0-9]+(?:[-~][0-9A-Za-z.+~-]+)?)")
MOST_SEARCHED = 64 << 20


class Icd(Struct, frozen=True):
    """The part of a driver's entry that is used."""

    library_path: str
    api_version: str = ""


class DriverManifest(Struct, frozen=True):
    """A Vulkan driver's file."""

    ICD: Icd


def find_library(names: Sequence[str], root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the first of these libraries that a program started here would find; empty: none."""
    for name in names:
        for folder in _folders(root, environ):
            path = folder / name
            if path.is_file():
                return str(path)
    return ""


def has_nvml(environ: Mapping[str, str] = os.environ) -> bool:
    """True if NVIDIA's driver may be here: then it is worth starting a process that asks it."""
    return bool(find_library(NVML, environ=environ))


def loaders(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return `WANTED`, each with its path or nothing; and ``vulkan/NAME`` for every installed Vulkan driver."""
    found = {name: find_library(names, root, environ) for name, names in WANTED.items()}
    return found | {f"vulkan/{name}": told for name, told in vulkan_drivers(root, environ)}


def vulkan_drivers(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> Iterator[tuple[str, str]]:
    """Return name and version of the drivers that Vulkan's loader knows: ``lvp``, ``Mesa 22.3.6``. Only on Linux."""
    # The drivers' files are read and never loaded: a loaded driver runs its own code, and may crash or hang this
    # process.
    for manifest in sorted(_manifests(root, environ))[:MAX_DRIVERS]:
        name = re.split(r"_icd|\.", manifest.name)[0]
        try:
            with manifest.open("rb") as file:
                icd = msgspec.json.decode(file.read(MAX_MANIFEST), type=DriverManifest).ICD
        except (OSError, *UNREADABLE):
            continue
        path = _resolved(icd.library_path, manifest, root, environ)
        told = f"{icd.library_path} is missing" if path is None else _mesa(path) or _dated(path, icd.api_version)
        yield name, told


def _folders(root: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    if sys.platform == "win32":
        yield Path(environ.get("SYSTEMROOT", r"C:\Windows")) / "System32"
        yield Path(environ.get("ProgramFiles", r"C:\Program Files")) / "NVIDIA Corporation" / "NVSMI"
        yield from (Path(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder)
        return
    yield from (Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder)
    yield from (root / folder for folder in SYSTEM)
    for file in sorted((root / "etc/ld.so.conf.d").glob("*.conf")):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        yield from (root / line.strip().lstrip("/") for line in lines if line.strip().startswith("/"))


def _manifests(root: Path, environ: Mapping[str, str]) -> set[Path]:
    for variable in DRIVER_FILES:
        # As in Vulkan's loader, these variables replace the search and do not add to it.
        if told := environ.get(variable):
            named = [Path(part) for part in told.split(os.pathsep) if part]
            return {path for part in named for path in (part.glob("*.json") if part.is_dir() else [part])}
    home = Path(environ.get("XDG_DATA_HOME") or Path(environ.get("HOME", "/nonexistent")) / ".local/share")
    folders = [root / folder for folder in MANIFESTS] + [home / "vulkan/icd.d"]
    return {path for folder in folders for path in folder.glob("*.json")}


def _resolved(library: str, manifest: Path, root: Path, environ: Mapping[str, str]) -> Path | None:
    """A path in a manifest is absolute, relative to the manifest, or a bare name that the system's linker finds."""
    if library.startswith("/"):
        path = root / library.lstrip("/")
    elif "/" in library:
        path = manifest.parent / library
    else:
        path = Path(find_library((library,), root, environ) or "/nonexistent")
    return path if path.is_file() else None


def _dated(path: Path, version: str) -> str:
    """Changes with the file of a driver that does not say its version."""
    try:
        return f"{version}, {path.stat().st_size} bytes"
    except OSError:
        return version


def _mesa(path: Path) -> str:
    """Return the version that Mesa's drivers carry in their text; empty for others."""
    try:
        with path.open("rb") as file:
            found = MESA.search(file.read(MOST_SEARCHED))
    except OSError:
        return ""
    return f"Mesa {found[1].decode()}" if found else ""
