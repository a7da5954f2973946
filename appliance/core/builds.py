"""The ``engine.json`` of a build of llama.cpp, which ``llama-builds/build.py`` and installing write."""

from __future__ import annotations

import hashlib

from msgspec import Struct

MANIFEST = "engine.json"


class FileSum(Struct, frozen=True, kw_only=True):
    """One file of a build, at the time when the build was made or unpacked. ``path`` is relative, with ``/``."""

    path: str
    size: int
    sha256: str
    executable: bool = False


class BuildNeeds(Struct, frozen=True, kw_only=True):
    """The requirements of a build. Empty: no requirement is known."""

    driver: str = ""
    """Least version of the GPU's driver, such as ``550.54``."""
    compute: tuple[str, ...] = ()
    """CUDA compute capabilities that it was compiled for, such as ``8.9``; a later one of the same major runs it."""
    cpu: tuple[str, ...] = ()
    """Features that the processor must have, such as ``avx2``."""
    libraries: tuple[str, ...] = ()
    """Shared libraries that the system must have, such as ``libvulkan.so.1``."""
    targets: tuple[str, ...] = ()
    """AMD's cards that it was compiled for, such as ``gfx1100``; no others can run it."""
    libc: str = ""
    """Least version of glibc."""
    macos: str = ""
    """Least version of macOS."""


class Build(Struct, frozen=True, kw_only=True):
    """``engine.json``. Unknown keys are ignored, so that a newer program's builds can be read."""

    name: str
    backend: str
    """cpu, vulkan, cuda12, cuda13, rocm, metal, sycl."""
    platform: str = ""
    build: str = ""
    """llama.cpp's own name of the release, ``b11434``; with another word behind it if it was built in another way."""
    version: str | None = None
    needs: BuildNeeds = BuildNeeds()
    files: tuple[FileSum, ...] = ()
    """Every file of the build except ``engine.json``."""
    rpc: str | None = None
    """Version of its RPC protocol, ``7.0.0``; None if it has none."""

    @property
    def id(self) -> str:
        """``linux-x64-vulkan/b11434``: also its place below a folder of builds."""
        return f"{self.platform}-{self.backend}/{self.build}"

    @property
    def digest(self) -> str:
        """Changes when any file of the build does; results about the build are remembered under it."""
        sums = "\n".join(f"{file.sha256} {file.path}" for file in sorted(self.files, key=lambda file: file.path))
        return hashlib.sha256(sums.encode()).hexdigest()[:16]
