"""How each build is made: cmake's options, the tools it takes, what the finished build needs of a machine.

All portable builds of a version share one tree: the server, a library for each level of CPU, and the RPC backend are
the same for all of them, and a GPU backend is one more library beside these.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cuda
from source import SOURCE

from bootstrap import SetupError

BACKENDS = ("cpu", "vulkan", "cuda")
TARGETS = ("llama-server", "ggml-rpc-server")
GPU_LIBRARIES = {"vulkan": "ggml-vulkan", "cuda": "ggml-cuda"}
"""Of each GPU backend: its library, and cmake's target."""

WORK = "@WORK@"
"""Stands in options for the folder that a build works in. The facts of a build keep the word: builds that were made in
two folders are equal."""
MAPPED = f"/experimental:deterministic /pathmap:{WORK}=." if sys.platform == "win32" else f"-ffile-prefix-map={WORK}=."
"""The compiler's flags that keep the folder's path out of what it makes: asserts and logs name their source files."""

COMMON = (
    f"-DCMAKE_C_FLAGS={MAPPED}",
    f"-DCMAKE_CXX_FLAGS={MAPPED} -isystem {WORK}/shim",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # would be downloaded
    "-DLLAMA_OPENSSL=OFF",  # llama-appliance downloads models itself
    "-DGGML_OPENMP=OFF",  # one shared library less to need; ggml then uses its own thread pool
    "-DGGML_CCACHE=OFF",
    "-DGGML_METAL=OFF",
    f"-DLLAMA_BUILD_NUMBER={SOURCE.version.removeprefix('b')}",  # the source is no git tree that could tell
)
MODULAR = (
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_CPU_ALL_VARIANTS=ON",
    "-DGGML_NATIVE=OFF",
    "-DGGML_RPC=ON",
    f"-DCMAKE_INSTALL_RPATH={'@loader_path' if sys.platform == 'darwin' else '$ORIGIN'}",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
)
STATIC = ("-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON")
STRIPPED = tuple(f"-DCMAKE_{kind}_LINKER_FLAGS=-s" for kind in ("EXE", "SHARED", "MODULE"))
STATIC_RUNTIME = ("-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc",)

COMPILER_HINT = {
    "linux": "on Debian and Ubuntu: sudo apt-get install g++ make; on Fedora: sudo dnf install gcc-c++ make",
    "darwin": "install Apple's command line tools: xcode-select --install",
    "win32": "install the Visual Studio Build Tools with 'Desktop development with C++'",
}
VULKAN_HINT = {
    "linux": "on Debian and Ubuntu: sudo apt-get install libvulkan-dev glslc spirv-headers; "
    "on Fedora: sudo dnf install vulkan-devel glslc spirv-headers-devel",
    "darwin": "the Vulkan SDK of vulkan.lunarg.com has all of it",
    "win32": "the Vulkan SDK of vulkan.lunarg.com has all of it",
}
CUDA_HINT = (
    "--toolkit pypi fetches NVIDIA's from PyPI, and the CUDA toolkit 12 or 13 of developer.nvidia.com has it; CUDACXX "
    "names an nvcc that is not on PATH"
)


def options(backend: str, *, native: bool) -> tuple[str, ...]:
    """cmake's options of a build on this platform, but for the paths of this machine: `WORK`. Raises SetupError."""
    if native:
        return (*COMMON, *STATIC, *(STATIC_RUNTIME if sys.platform == "linux" else ()))
    gpu = tuple(f"-DGGML_{name.upper()}={'ON' if name == backend else 'OFF'}" for name in GPU_LIBRARIES)
    cards = (f"-DCMAKE_CUDA_ARCHITECTURES={cuda.architectures(nvcc()[1])}",) if backend == "cuda" else ()
    return (*COMMON, *MODULAR, *(STRIPPED if sys.platform == "linux" else ()), *gpu, *cards)


def check_tools(backend: str) -> None:
    """Raises SetupError, naming the packages, when something that the build takes is not here."""
    check_compiler()
    if backend == "vulkan":
        check_vulkan()
    elif backend == "cuda":
        nvcc()


def check_compiler() -> None:
    """A C++ compiler, and a program to drive it with."""
    if sys.platform == "win32":
        return  # cmake finds Visual Studio by the registry, and says when it does not
    missing: list[str] = []
    if not os.environ.get("CXX") and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        missing.append("a C++ compiler")
    if not _has_make() and not shutil.which("ninja"):
        missing.append("make")
    if missing:
        hint = COMPILER_HINT.get(sys.platform, COMPILER_HINT["linux"])
        raise SetupError(f"building llama.cpp needs {' and '.join(missing)}: {hint}")


def generator() -> tuple[str, ...]:
    """cmake's words for ninja where there is no make: left alone it asks for make, and for nothing else."""
    told = sys.platform == "win32" or "CMAKE_GENERATOR" in os.environ
    return () if told or _has_make() or not shutil.which("ninja") else ("-G", "Ninja")


def _has_make() -> bool:
    return any(shutil.which(name) for name in ("make", "gmake"))


def check_vulkan() -> None:
    """The headers of Vulkan and SPIR-V, and the compiler of shaders."""
    sdk = os.environ.get("VULKAN_SDK")
    if sys.platform != "linux" or sdk:
        if not sdk and not shutil.which("glslc"):
            raise SetupError(f"building for Vulkan needs glslc: {VULKAN_HINT[sys.platform]}")
        return
    roots = [Path(root) for root in os.environ.get("CMAKE_PREFIX_PATH", "").split(os.pathsep) if root]
    roots += [Path("/usr"), Path("/usr/local")]
    wanted = {
        "the headers of Vulkan": "include/vulkan/vulkan.hpp",
        "those of SPIR-V": "share/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake",
    }
    missing = [what for what, place in wanted.items() if not any((root / place).is_file() for root in roots)]
    missing += [] if shutil.which("glslc") else ["glslc"]
    if missing:
        raise SetupError(f"building for Vulkan needs {' and '.join(missing)}: {VULKAN_HINT['linux']}")


def nvcc() -> tuple[str, int]:
    """The compiler of CUDA and its major version. Raises SetupError."""
    usual = Path("/usr/local/cuda/bin/nvcc")
    program = os.environ.get("CUDACXX") or shutil.which("nvcc") or (str(usual) if usual.is_file() else None)
    if program is None:
        raise SetupError(f"building for CUDA needs nvcc, and there is none: {CUDA_HINT}")
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as cause:
        raise SetupError(f"{program} cannot be run: {cause}; {CUDA_HINT}") from None
    release = re.search(r"release (\d+)\.", told)
    if release is None or int(release[1]) not in (12, 13):
        raise SetupError(f"{program} is of no CUDA that this source is built with: {CUDA_HINT}")
    return program, int(release[1])


def backend_name(backend: str) -> str:
    """The word for the finished build: CUDA's has its major version in it."""
    return f"cuda{nvcc()[1]}" if backend == "cuda" else backend


def needs(backend: str) -> dict[str, object]:
    """What the build asks of a machine: keys of `appliance.core.builds.BuildNeeds`."""
    libraries = ["libstdc++.so.6"] if sys.platform == "linux" else []
    if backend == "vulkan":
        libraries.append("vulkan-1.dll" if sys.platform == "win32" else "libvulkan.so.1")
    return {"libraries": libraries, **(cuda.needs(nvcc()[1]) if backend == "cuda" else {})}


def protocol(tree: Path) -> str:
    """Version of the RPC protocol that the source speaks. Raises SetupError."""
    header = tree / "ggml" / "include" / "ggml-rpc.h"
    text = header.read_text(encoding="utf-8") if header.is_file() else ""
    parts = [re.search(rf"#define\s+RPC_PROTO_{part}_VERSION\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    found = [match[1] for match in parts if match]
    if len(found) != 3:
        raise SetupError(f"{header} does not say which RPC protocol it speaks")
    return ".".join(found)
