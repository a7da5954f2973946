"""Build llama.cpp's llama-server from its pinned source into the user's cache, and print the paths of the programs.

    python3 llama-builds/build.py [--backend cpu|vulkan|cuda ...] [--toolkit pypi] [--native] [--print-path] [--jobs N]
                                  [--clean]

Needs a C++ compiler and make (or ninja), no root; Vulkan also its headers and glslc, CUDA its toolkit, which --toolkit
pypi fetches. cmake is taken from PATH, or installed for the build alone. Each build lands in

    <user cache>/llama-appliance/engines/<platform>-<backend>/<build>/

where llama-appliance looks for engines. A second run finds it there; two at once share one; one that was interrupted
goes on where it stopped. The backends share a work folder (half a gigabyte) that makes the second one a matter of
minutes; --clean deletes it at the end.

A build runs on every CPU of its platform: it has a library for each level of them, and takes the best at start.
Each build is tried before it is kept and when it is found there; a CPU library that it dies of here is taken out.
--native makes one small program for the CPU of this machine alone.

A build for CUDA is for every card of some years. CUDAARCHS=native makes one for the cards of this machine alone, in a
fraction of the time; CUDAARCHS='86-real;90-real' names those of others. Both are cmake's words.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cuda
import recipe
from layout import (
    EXECUTABLE,
    build_folder,
    engines_folder,
    is_whole,
    platform_name,
    publish,
    read_manifest,
    write_manifest,
)
from source import SOURCE, fetch, unpack
from trial import try_out

from bootstrap import SetupError, exclusive, make_venv, pip_of, run_pip, say, venv_python

HERE = Path(__file__).resolve().parent
SHIM = HERE / "shim"
SUFFIX = ".exe" if sys.platform == "win32" else ""
LIBRARIES = re.compile(r"\.(dll|dylib|so(\.\d+)*)$")
LONG_NAME = re.compile(r"(?P<short>.+?\.so\.\d+)\.\d+\.\d+|(?P<stem>.+?)(?P<major>\.\d+)\.\d+\.\d+\.dylib")
"""The name that a library's file has after its whole version; it is loaded under the first number alone."""


def build_name(*, native: bool) -> str:
    """llama.cpp's own name of the release, with a word behind it where the build is for one machine."""
    return f"{SOURCE.version}-native" if native else SOURCE.version


def folder_of(backend: str, *, native: bool) -> Path:
    """Where the finished build lies, or would. Raises SetupError."""
    return build_folder(engines_folder(), platform_name(), recipe.backend_name(backend), build_name(native=native))


def facts_of(backend: str, *, native: bool) -> dict[str, object]:
    """What tells this build from one that was made in another way."""
    facts: dict[str, object] = {
        "source": SOURCE.sha256,
        "options": list(recipe.options(backend, native=native)),
        "headers": headers_sum(),
    }
    return facts | ({"machine": platform.node()} if native else {})


def headers_sum() -> str:
    """One sum of all that `give_shim` gives."""
    whole = hashlib.sha256()
    for path in shim_headers():
        whole.update(path.relative_to(SHIM).as_posix().encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()


def is_built(folder: Path, backend: str, *, native: bool) -> bool:
    """Whether the build is there, whole, from this source and with these options."""
    found = read_manifest(folder)
    wanted = facts_of(backend, native=native)
    return is_whole(folder) and all(found.get(key) == value for key, value in wanted.items())


def build(backends: list[str], *, native: bool, jobs: int, clean: bool) -> None:
    """Make the folders of ``backends``, each whole or not at all. Raises SetupError."""
    root = engines_folder()
    name = f".build-{build_name(native=native)}-{platform_name()}"
    with exclusive(root / f"{name}.lock", f"building llama.cpp {SOURCE.version}"):
        work = root / name
        for backend in backends:
            folder = folder_of(backend, native=native)
            label = f"{folder.parent.name}/{folder.name}"
            if is_built(folder, backend, native=native):
                try_out(folder, label)
                continue
            began = time.monotonic()
            make(work, folder, backend, native=native, jobs=jobs)
            say(f"built {label} in {time.monotonic() - began:.0f} s")
        if clean or native:
            shutil.rmtree(work, ignore_errors=True)


def make(work: Path, folder: Path, backend: str, *, native: bool, jobs: int) -> None:
    """One build, from whatever an earlier run left in ``work``."""
    recipe.check_tools(backend)
    cmake = find_cmake(work)
    tree = work / "source"
    if not tree.exists():
        say(f"fetching the source of llama.cpp {SOURCE.version}")
        unpack(fetch(work / "download"), tree)
    cost = minutes(backend, native=native)
    say(f"compiling for {backend} with {jobs} jobs (at most {cost}), log in {work / 'build.log'}")
    compiled = compile_all(cmake, tree, work, backend, native=native, jobs=jobs)
    stage = work / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir()
    for path in sorted(compiled.iterdir()):
        take(path, stage, backend)
    if backend == "cuda":
        cuda.take_runtime(*recipe.nvcc(), stage)
    copy_licenses(tree, stage)
    if not native and (
        missing := {f"{target}{SUFFIX}" for target in recipe.TARGETS} - {p.name for p in stage.iterdir()}
    ):
        raise SetupError(f"the build succeeded, but there is no {' and no '.join(sorted(missing))} in {compiled}")
    start_once(stage / EXECUTABLE)
    word = recipe.backend_name(backend)
    facts: dict[str, object] = {
        "name": f"llama-server-{word}{'-native' if native else ''}",
        "backend": word,
        "platform": platform_name(),
        "build": folder.name,
        "version": SOURCE.version,
        "needs": recipe.needs(backend),
        **({} if native else {"rpc": recipe.protocol(tree)}),
        **facts_of(backend, native=native),
    }
    write_manifest(stage, facts)
    try_out(stage, f"{folder.parent.name}/{folder.name}")
    publish(stage, folder)


def minutes(backend: str, *, native: bool) -> str:
    """What a whole build costs, in words. Each level of NVIDIA's cards takes an hour of one core."""
    if backend == "cuda":
        return f"{25 + 60 * (1 + cuda.architectures(recipe.nvcc()[1]).count(';'))} CPU minutes"
    return "ten CPU minutes" if native else {"cpu": "20 CPU minutes", "vulkan": "25 CPU minutes"}[backend]


def find_cmake(work: Path) -> str:
    """cmake from PATH, else the pinned wheel in an environment of the work folder."""
    if found := shutil.which("cmake"):
        return found
    venv = work / "cmake"
    installed = venv_python(venv).with_name(f"cmake{SUFFIX}")
    if not installed.exists():
        say("there is no cmake on PATH; installing the one packaged for pip, for this build alone")
        make_venv(venv)
        lock = HERE.parent / "requirements" / "cmake.txt"
        status, output = run_pip(pip_of(venv), "install", "--quiet", "--require-hashes", "-r", str(lock))
        if status != 0:
            raise SetupError(f"cannot install cmake through pip; install it by hand.\n{output.strip()}")
    return str(installed)


def compile_all(cmake: str, tree: Path, work: Path, backend: str, *, native: bool, jobs: int) -> Path:
    """Configure and build; the folder of the results. Raises SetupError with the last lines of the log."""
    shim, out = work / "shim", work / "out"
    give_shim(shim, out)
    options = [*recipe.options(backend, native=native)]
    options += cuda.flags(*recipe.nvcc(), recipe.MAPPED) if backend == "cuda" else []
    flags = [option.replace(recipe.WORK, str(work)) for option in options]
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(work)}  # a repository around it is not llama.cpp's
    targets = recipe.TARGETS[:1] if native else recipe.TARGETS
    build_targets = [word for target in targets for word in ("--target", target)]
    for step in (
        [cmake, "-S", str(tree), "-B", str(out), *recipe.generator(), *flags],
        [cmake, "--build", str(out), "--config", "Release", *build_targets, "--parallel", str(jobs)],
    ):
        with (work / "build.log").open("a+", encoding="utf-8", errors="replace") as log:
            status = subprocess.run(
                step, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
            ).returncode
            log.seek(0)
            if status != 0:
                tail = "".join(log.readlines()[-30:])
                raise SetupError(f"'{' '.join(step[:2])} ...' failed with status {status}; the end of its log:\n{tail}")
    for place in (out / "bin", out / "bin" / "Release"):
        if (place / EXECUTABLE).is_file():
            return place
    raise SetupError(f"the build succeeded, but there is no {EXECUTABLE} under {out / 'bin'}")


def shim_headers() -> list[Path]:
    """Headers that stand in front of those of the compiler and of Vulkan, to mend them."""
    return sorted(path for path in SHIM.rglob("*") if path.suffix in (".h", ".hpp"))


def give_shim(shim: Path, out: Path) -> None:
    """Lay the headers into ``shim``. Rewritten only where they changed: what includes them is compiled again.

    What was compiled before a header was there does not know of it, and would not be: then ``out`` is begun anew.
    """
    for path in shim_headers():
        target = shim / path.relative_to(SHIM)
        if not target.is_file():
            shutil.rmtree(out, ignore_errors=True)
        elif target.read_bytes() == path.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def take(path: Path, stage: Path, backend: str) -> None:
    """Copy one result under the name that it is loaded by, if it belongs to this build. Links are names of others."""
    others = [library for name, library in recipe.GPU_LIBRARIES.items() if name != backend]
    if path.is_symlink() or not path.is_file() or any(library in path.name for library in others):
        return
    program = path.name in {f"{target}{SUFFIX}" for target in recipe.TARGETS}
    if not program and not LIBRARIES.search(path.name):
        return
    long = LONG_NAME.fullmatch(path.name)
    name = (long["short"] or f"{long['stem']}{long['major']}.dylib") if long else path.name
    shutil.copyfile(path, stage / name)
    (stage / name).chmod(0o755 if program else 0o644)


def copy_licenses(tree: Path, stage: Path) -> None:
    """The licences of llama.cpp and of what it brings along, one folder each."""
    for text in (tree / "LICENSE", *tree.glob("licenses/*"), *tree.glob("vendor/*/LICENSE*")):
        folder = stage / "licenses" / ("llama.cpp" if text.parent == tree else text.parent.name)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(text, folder / text.name)


def start_once(program: Path) -> None:
    """Raises SetupError when the program cannot run here: it is then not worth keeping."""
    try:
        subprocess.run(
            [str(program), "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as cause:
        raise SetupError(f"the program was built but does not start: {cause}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--backend",
        action="append",
        choices=recipe.BACKENDS,
        help="what it computes on; may be repeated (default: cpu)",
    )
    parser.add_argument(
        "--print-path", action="store_true", help="print where the programs are or would be; build nothing"
    )
    parser.add_argument(
        "--toolkit",
        choices=("system", "pypi"),
        default="system",
        help="for cuda: the toolkit of this machine, or NVIDIA's packages of PyPI (requirements/cuda.txt)",
    )
    parser.add_argument("--native", action="store_true", help="use every instruction of this machine's CPU")
    parser.add_argument("--portable", dest="native", action="store_false", help="the opposite, and the default")
    parser.add_argument("--clean", action="store_true", help="delete the work folder when all is built")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time (default: %(default)s)"
    )
    args = parser.parse_args()
    native: bool = args.native
    backends: list[str] = list(dict.fromkeys(args.backend or ["cpu"]))
    if native and backends != ["cpu"]:
        parser.error("--native is for --backend cpu: a GPU build takes the best library of each CPU anyway")
    try:
        if args.toolkit == "pypi":
            os.environ["CUDACXX"] = cuda.install_toolkit(engines_folder() / ".cuda-toolkit")
        folders = [folder_of(backend, native=native) for backend in backends]
        if not args.print_path:
            build(backends, native=native, jobs=args.jobs, clean=args.clean)
    except (SetupError, OSError) as error:
        sys.exit(f"error: {error}")
    for folder in folders:
        print(folder / EXECUTABLE)


if __name__ == "__main__":
    main()
