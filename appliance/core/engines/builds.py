"""What an engine build is: the words of its ``engine.json``, which ``llama-builds/build.py`` and ``fetch.py`` write."""

from __future__ import annotations

import hashlib
import re

from msgspec import Struct

MANIFEST = "engine.json"

SYSTEMS = {"linux": "linux", "darwin": "macos", "win32": "windows"}
MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def platform_of(system: str, machine: str) -> str:
    """``linux-x64``, ``linux-arm64``, ``macos-arm64``, ``windows-x64`` ... from ``sys.platform`` and ``uname -m``."""
    return f"{SYSTEMS.get(system, system)}-{MACHINES.get(machine.lower(), machine.lower())}"


def numbers_of(version: str) -> tuple[int, ...]:
    """``b11434`` -> (11434,), ``550.54.14`` -> (550, 54, 14): versions compare by their numbers."""
    return tuple(int(digits) for digits in re.findall(r"[0-9]{1,18}", version))


class FileSum(Struct, frozen=True, kw_only=True):
    """One file of a build, as it was when the build was made or unpacked. ``path`` is relative, with ``/``."""

    path: str
    size: int
    sha256: str
    executable: bool = False


class Needs(Struct, frozen=True, kw_only=True):
    """What a build asks of the machine. Empty: nothing is known to be needed."""

    driver: str = ""
    """Least version of the GPU's driver, such as ``550.54``."""
    compute: tuple[str, ...] = ()
    """CUDA compute capabilities that it was compiled for, such as ``8.9``; a later one of the same major runs, too."""
    cpu: tuple[str, ...] = ()
    """Features of the processor without which it cannot run, such as ``avx2``."""
    libraries: tuple[str, ...] = ()
    """Shared libraries that the system has to have, such as ``libvulkan.so.1``."""


class Build(Struct, frozen=True, kw_only=True):
    """``engine.json``. Keys that are not here are ignored, so that a newer program's builds can be read."""

    name: str
    backend: str
    """cpu, vulkan, cuda12, cuda13, rocm, metal, sycl."""
    platform: str = ""
    build: str = ""
    """llama.cpp's own name of the release, ``b11434``; with a word behind it where it was built in another way."""
    version: str | None = None
    needs: Needs = Needs()
    files: tuple[FileSum, ...] = ()
    """Every file of the build but ``engine.json``."""
    rpc: str | None = None
    """Version of the RPC protocol that it speaks, ``7.0.0``; None where it speaks none."""

    @property
    def id(self) -> str:
        """``linux-x64-vulkan/b11434``: also its place below a folder of builds."""
        return f"{self.platform}-{self.backend}/{self.build}"

    @property
    def digest(self) -> str:
        """Changes when any file of the build does; what is remembered of a build is remembered under it."""
        sums = "\n".join(f"{file.sha256} {file.path}" for file in sorted(self.files, key=lambda file: file.path))
        return hashlib.sha256(sums.encode()).hexdigest()[:16]
