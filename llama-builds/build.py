"""Build llama.cpp's llama-server from its pinned source into the user's cache, and print the path of the program.

    python3 llama-builds/build.py [--print-path] [--native] [--jobs N]

Needs a C++ compiler and make (or ninja), no root. cmake is taken from PATH, or installed for the build alone. The
program lands in <user cache>/llama-appliance/engines/<key>/ beside its engine.json, where llama-appliance looks for
engines. A second run finds it there; two at once share one build; one that was interrupted goes on where it stopped.

By default the program runs on every CPU with AVX2 (x86-64, since about 2013) and needs no library but the C library's,
so that it can be shipped. --native builds for the CPU of this machine alone.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from source import SOURCE, fetch, unpack

from bootstrap import SetupError, exclusive, make_venv, pip_of, run_pip, say, venv_python

ROOT = Path(__file__).resolve().parents[1]
EXECUTABLE = "llama-server.exe" if sys.platform == "win32" else "llama-server"
MANIFEST = "engine.json"

OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
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
STATIC_RUNTIME = ("-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc",)

COMPILER_HINT = {
    "linux": "on Debian and Ubuntu: sudo apt-get install g++ make; on Fedora: sudo dnf install gcc-c++ make",
    "darwin": "install Apple's command line tools: xcode-select --install",
    "win32": "install the Visual Studio Build Tools with 'Desktop development with C++'",
}


def options(*, native: bool) -> tuple[str, ...]:
    """The cmake options of a build on this platform."""
    runtime = STATIC_RUNTIME if sys.platform == "linux" else ()
    return (*OPTIONS, f"-DGGML_NATIVE={'ON' if native else 'OFF'}", *runtime)


def engine_name(*, native: bool) -> str:
    """What the build is called in engine.json; the native one sorts behind, and is preferred for it."""
    return "llama-server-cpu-native" if native else "llama-server-cpu"


def cache_folder() -> Path:
    """Where this program keeps what it can make again; the same place as platformdirs' user_cache_dir."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
        return Path(local) / "llama-appliance" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "llama-appliance"
    xdg = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(xdg) if xdg else Path.home() / ".cache") / "llama-appliance"


def engine_folder(*, native: bool) -> Path:
    """The folder of this build: a new one for another version, platform, or set of options."""
    machine = platform.machine().lower()
    facts = "\n".join(
        [SOURCE.sha256, sys.platform, machine, platform.node() if native else "", *options(native=native)]
    )
    digest = hashlib.sha256(facts.encode()).hexdigest()[:8]
    return cache_folder() / "engines" / f"{SOURCE.version}-cpu-{machine}{'-native' if native else ''}-{digest}"


def build(folder: Path, *, native: bool, jobs: int) -> None:
    """Make ``folder`` with the program and its manifest, whole or not at all. Raises SetupError."""
    work = folder.parent / f".build-{folder.name}"
    with exclusive(folder.parent / f".{folder.name}.lock", f"building {folder.name}"):
        if is_built(folder):
            return
        began = time.monotonic()
        compiler()
        cmake = find_cmake(work)
        tree = work / "source"
        if not tree.exists():
            say(f"fetching the source of llama.cpp {SOURCE.version}")
            unpack(fetch(work / "download"), tree)
        say(f"compiling with {jobs} jobs (about ten CPU minutes), log in {work / 'build.log'}")
        program = compile_server(cmake, tree, work, options(native=native), jobs)
        stage = work / "stage"
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir()
        shutil.copy2(program, stage / EXECUTABLE)
        for text in (tree / "LICENSE", *tree.glob("licenses/*"), *tree.glob("vendor/*/LICENSE*")):
            (stage / "licenses" / text.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(text, stage / "licenses" / text.parent.name / text.name)
        (stage / MANIFEST).write_text(json.dumps(manifest(stage / EXECUTABLE, native=native), indent=2) + "\n")
        if folder.exists():
            shutil.rmtree(folder)  # no manifest in it, or it would have been found
        stage.rename(folder)
        shutil.rmtree(work)
        say(f"built in {time.monotonic() - began:.0f} s")


def is_built(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() and (folder / EXECUTABLE).is_file()


def compiler() -> None:
    """Raises SetupError when there is no C++ compiler or no program to drive it with."""
    if sys.platform == "win32":
        return  # cmake finds Visual Studio by the registry, and says when it does not
    missing: list[str] = []
    if not os.environ.get("CXX") and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        missing.append("a C++ compiler")
    if not any(shutil.which(name) for name in ("make", "gmake", "ninja")):
        missing.append("make")
    if missing:
        hint = COMPILER_HINT.get(sys.platform, COMPILER_HINT["linux"])
        raise SetupError(f"building llama.cpp needs {' and '.join(missing)}: {hint}")


def find_cmake(work: Path) -> str:
    """cmake from PATH, else the pinned wheel in an environment that is deleted with the build."""
    if found := shutil.which("cmake"):
        return found
    venv = work / "cmake"
    installed = venv_python(venv).with_name("cmake.exe" if sys.platform == "win32" else "cmake")
    if not installed.exists():
        say("there is no cmake on PATH; installing the one packaged for pip, for this build alone")
        make_venv(venv)
        lock = ROOT / "requirements" / "cmake.txt"
        status, output = run_pip(pip_of(venv), "install", "--quiet", "--require-hashes", "-r", str(lock))
        if status != 0:
            raise SetupError(f"cannot install cmake through pip; install it by hand.\n{output.strip()}")
    return str(installed)


def compile_server(cmake: str, tree: Path, work: Path, flags: tuple[str, ...], jobs: int) -> Path:
    """Configure and build the one target; the finished program. Raises SetupError with the last lines of the log."""
    out = work / "out"
    steps = [
        [cmake, "-S", str(tree), "-B", str(out), *flags],
        [cmake, "--build", str(out), "--config", "Release", "--target", "llama-server", "--parallel", str(jobs)],
    ]
    for step in steps:
        with (work / "build.log").open("a+", encoding="utf-8", errors="replace") as log:
            status = subprocess.run(step, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False).returncode
            log.seek(0)
            if status != 0:
                tail = "".join(log.readlines()[-30:])
                raise SetupError(f"'{' '.join(step[:2])} ...' failed with status {status}; the end of its log:\n{tail}")
    for place in (out / "bin" / EXECUTABLE, out / "bin" / "Release" / EXECUTABLE):
        if place.is_file():
            return place
    raise SetupError(f"the build succeeded, but there is no {EXECUTABLE} under {out / 'bin'}")


def manifest(program: Path, *, native: bool) -> dict[str, object]:
    """What engine.json says. Starts the program once: one that cannot run here is not worth keeping."""
    try:
        subprocess.run(
            [str(program), "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as cause:
        raise SetupError(f"the program was built but does not start: {cause}") from None
    return {
        "name": engine_name(native=native),
        "backend": "cpu",
        "version": SOURCE.version,
        "options": list(options(native=native)),
        "sha256": hashlib.sha256(program.read_bytes()).hexdigest(),
        "built": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--print-path", action="store_true", help="print where the program is or would be; build nothing"
    )
    parser.add_argument("--native", action="store_true", help="use every instruction of this machine's CPU")
    parser.add_argument("--portable", dest="native", action="store_false", help="the opposite, and the default")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time (default: %(default)s)"
    )
    args = parser.parse_args()
    native: bool = args.native
    folder = engine_folder(native=native)
    if not args.print_path and not is_built(folder):
        try:
            build(folder, native=native, jobs=args.jobs)
        except SetupError as error:
            sys.exit(f"error: {error}")
    print(folder / EXECUTABLE)


if __name__ == "__main__":
    main()
