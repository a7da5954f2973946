"""What a build for CUDA takes beside nvcc: cuBLAS and the stub of the driver, which not every toolkit holds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from bootstrap import SetupError, make_venv, pip_of, run_pip, say

TOOLKIT = Path(__file__).resolve().parents[1] / "requirements" / "cuda.txt"
"""The packages of one toolkit, with their sums."""

ARCHITECTURES = {
    12: "61-virtual;70-virtual;75-virtual;80-virtual;86-real;89-real;90-virtual",
    13: "75-virtual;80-virtual;86-real;89-real;90-virtual;120-virtual",
}
"""By the toolkit's major version: machine code for the usual cards, for the others code that the driver finishes at the
first start. llama.cpp makes 120a of 120, which cards of 12.0 alone take; one of 12.1 takes the code for 9.0."""
DRIVERS = {12: "550.54", 13: "580"}
"""The least that runs what such a toolkit makes."""
NATIVE = "native"
"""cmake's word for the cards of this machine."""
LEVELS = re.compile(r"[1-9][0-9]{1,2}[af]?(-real|-virtual)?(;[1-9][0-9]{1,2}[af]?(-real|-virtual)?)*")


def install_toolkit(venv: Path) -> str:
    """Have NVIDIA's toolkit from PyPI in an environment of its own, by its sums. Return nvcc. Raises SetupError."""
    [site] = {sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)})}
    nvcc = Path(site) / "nvidia" / "cu13" / "bin" / ("nvcc.exe" if sys.platform == "win32" else "nvcc")
    if not nvcc.is_file():
        say("installing NVIDIA's toolkit from PyPI for this build alone (0.9 GB on the disk)")
        make_venv(venv)
        status, output = run_pip(pip_of(venv), "install", "--quiet", "--require-hashes", "-r", str(TOOLKIT))
        if status != 0:
            raise SetupError(f"NVIDIA's toolkit cannot be installed through pip.\n{output.strip()}")
        if sys.platform == "linux":
            (nvcc.parents[1] / "lib64").symlink_to("lib")  # where nvcc looks, and where the packages have nothing
    return str(nvcc)


def needs(major: int) -> dict[str, object]:
    """What the build asks of the card and its driver."""
    levels = [int(level) for level in re.findall(r"[0-9]+", architectures(major))]
    return {"driver": DRIVERS[major], "compute": [f"{level // 10}.{level % 10}" for level in dict.fromkeys(levels)]}


def architectures(major: int) -> str:
    """cmake's list of the cards: what CUDAARCHS, its own variable, names; else `ARCHITECTURES`. Raises SetupError."""
    told = os.environ.get("CUDAARCHS", "").strip()
    if told == NATIVE:
        return _of_these_cards()
    if told and not LEVELS.fullmatch(told):
        raise SetupError(f"CUDAARCHS is '{told}': write native, or levels such as 90 or 86-real;89-real")
    return told or ARCHITECTURES[major]


def flags(nvcc: str, major: int, for_host: str) -> list[str]:
    """cmake's options for the toolkit of this machine; the host's compiler gets the flags ``for_host``.

    Raises SetupError where cuBLAS is missing.
    """
    found = [f"-DCMAKE_CUDA_COMPILER={nvcc}"]
    compiling = [f"-Xcompiler={flag}" for flag in for_host.split()]
    toolkit = _toolkit(nvcc)
    if not any((place / "stubs" / "libcuda.so").is_file() for place in _libraries(toolkit)):
        found.append("-DGGML_CUDA_NO_VMM=ON")  # which alone is linked to the driver's own library
    if sys.platform == "win32" or any((place / "libcublas.so").exists() for place in _libraries(toolkit)):
        return [*found, f"-DCMAKE_CUDA_FLAGS={' '.join(compiling)}"]
    wheel = _wheel(toolkit, major)
    return [
        *found,
        f"-DCUDA_cublas_LIBRARY={wheel / 'lib' / f'libcublas.so.{major}'}",
        f"-DCUDA_cublasLt_LIBRARY={wheel / 'lib' / f'libcublasLt.so.{major}'}",
        f"-DCMAKE_CUDA_FLAGS={' '.join(compiling)} -I{wheel / 'include'}",
    ]


def take_runtime(nvcc: str, major: int, stage: Path) -> None:
    """Copy the runtime libraries (0.6 GB) beside the finished build: machines have the driver, few have these."""
    toolkit = _toolkit(nvcc)
    places = [
        *_libraries(toolkit),
        toolkit / "bin",
        toolkit / "bin" / "x64",
        *(path / "lib" for path in _wheels(major)),
    ]
    for library in ("cudart", "cublas", "cublasLt"):
        name = f"{library}64_{major}.dll" if sys.platform == "win32" else f"lib{library}.so.{major}"
        found = next((place / name for place in places if (place / name).is_file()), None)
        if found is None:
            raise SetupError(f"the build needs {name}, and neither the toolkit of {nvcc} nor a wheel has it")
        shutil.copyfile(found, stage / name)
    if (toolkit / "EULA.txt").is_file():
        (stage / "licenses" / "cuda").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(toolkit / "EULA.txt", stage / "licenses" / "cuda" / "EULA.txt")


def _of_these_cards() -> str:
    """Machine code alone, for what the driver lists."""
    asked = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        told = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as cause:
        raise SetupError(f"CUDAARCHS is native, and no driver says which cards are here: {cause}") from None
    levels = sorted(
        {int(major + minor) for major, minor in re.findall(r"^([0-9]+)\.([0-9])$", told.stdout, re.MULTILINE)}
    )
    if not levels:
        raise SetupError("CUDAARCHS is native, and NVIDIA's driver lists no card with a compute capability")
    return ";".join(f"{level}-real" for level in levels)


def _toolkit(nvcc: str) -> Path:
    """As nvcc itself says, since what is on PATH may be a script that starts it."""
    dry = [nvcc, "--dryrun", "-E", "-x", "cu", os.devnull]
    told = subprocess.run(dry, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
    here = re.search(r"^#\$ _HERE_=(.+)$", told.stderr, re.MULTILINE)
    return Path(here[1]).parent if here else Path(nvcc).resolve().parent.parent


def _libraries(toolkit: Path) -> list[Path]:
    return [toolkit / "lib64", toolkit / "lib", *toolkit.glob("targets/*/lib")]


def _wheels(major: int) -> list[Path]:
    """Where pip puts NVIDIA's libraries: one folder for all since CUDA 13, one each before."""
    site = Path(sysconfig.get_path("purelib")) / "nvidia"
    return [site / f"cu{major}", site / "cublas", site / "cuda_runtime"]


def _wheel(toolkit: Path, major: int) -> Path:
    for place in (toolkit, *_wheels(major)):
        if (place / "lib" / f"libcublas.so.{major}").is_file():
            return place
    package = "nvidia-cublas" if major >= 13 else f"nvidia-cublas-cu{major}"
    raise SetupError(
        f"the CUDA toolkit here has no cuBLAS: install it with the toolkit, or for this Python: "
        f"{sys.executable} -m pip install '{package}=={major}.*' (400 MB); --toolkit pypi brings all of it"
    )
