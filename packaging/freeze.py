"""Make the program that needs no Python: dist/llama-appliance/, with a llama.cpp engine and the starter model in it.

    python3 bootstrap.py freeze [--engine FOLDER | --without-engine]

    dist/llama-appliance/
        llama-appliance          the program; start it from anywhere
        _internal/               its Python and libraries, and the starter model
        engines/PLATFORM-BACKEND/BUILD/   llama-server, its libraries and engine.json, byte for byte as they were built
        licenses/                the licences of the packages inside

FOLDER is one that llama-builds/build.py made; without the option that build is taken from the cache, or made first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parents[1]
NAME = "llama-appliance"
EXE_SUFFIX = ".exe" if sys.platform == "win32" else ""
NOT_INSIDE = {"editables", "hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers", NAME}
"""Packages of requirements/serve.txt that install the program and are no part of it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--engine", type=Path, metavar="FOLDER", help="the engine to ship")
    which.add_argument("--without-engine", action="store_true", help="ship none; the program looks for one on PATH")
    args = parser.parse_args()
    engine: Path | None = None if args.without_engine else (args.engine or built_engine())
    staged = run_pyinstaller(ROOT / "build")
    if engine is not None:
        copy_engine(engine, staged / "engines")
    copy_licenses(staged / "licenses")
    prove(staged, engine)
    finished = ROOT / "dist" / NAME
    shutil.rmtree(finished, ignore_errors=True)
    finished.parent.mkdir(exist_ok=True)
    staged.rename(finished)
    report(finished)


def built_engine() -> Path:
    """The folder of the cached build, made now if it is not there."""
    build = [sys.executable, str(ROOT / "llama-builds" / "build.py")]
    done = subprocess.run(build, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit("error: there is no engine to ship; see above, or use --without-engine")
    return Path(done.stdout.strip()).parent


def run_pyinstaller(work: Path) -> Path:
    """The frozen program without its engines, under ``work``."""
    work.mkdir(exist_ok=True)
    spec = ROOT / "packaging" / f"{NAME}.spec"
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--distpath", str(work / "staged")]
    command += ["--workpath", str(work / "pyinstaller"), str(spec)]
    log = work / "freeze.log"
    with log.open("wb") as file:  # a fixed hash seed: equal sources give equal files
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        status = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, check=False
        )
    if status.returncode != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
        sys.exit(f"{tail}\nerror: PyInstaller failed; its whole log is {log}")
    refuse_broken_imports(work / "pyinstaller" / NAME / f"warn-{NAME}.txt")
    return work / "staged" / NAME


def refuse_broken_imports(warnings: Path) -> None:
    """The recipe leaves modules out; one that is imported unconditionally would be missed on the day it is reached."""
    for line in warnings.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("excluded module") and "(top-level)" in line and "_frozen_importlib" not in line:
            sys.exit(f"error: {NAME}.spec leaves out what is needed: {line}")


def copy_engine(engine: Path, engines: Path) -> None:
    """Put the engine beside the program, where builds are looked for; refuses one that is not what its list says."""
    try:
        manifest: dict[str, object] = json.loads((engine / "engine.json").read_bytes())
        files = cast(list[dict[str, str]], manifest["files"])
        place = engines / f"{manifest['platform']}-{manifest['backend']}" / str(manifest["build"])
        sums = {name["path"]: hashlib.sha256((engine / name["path"]).read_bytes()).hexdigest() for name in files}
    except (OSError, ValueError, KeyError, TypeError) as cause:
        sys.exit(f"error: {engine} is no folder of an engine: {cause!r}")
    if changed := [name["path"] for name in files if sums[name["path"]] != name["sha256"]]:
        sys.exit(f"error: {', '.join(changed)} in {engine} changed after the engine was built; build it again")
    shutil.copytree(engine, place)


def copy_licenses(folder: Path) -> None:
    """The licences of the program, of Python, and of every package that may be inside, one folder each."""
    for name, path in {NAME: ROOT / "LICENSE", "python": Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"}.items():
        if path.is_file():
            (folder / name).mkdir(parents=True)
            shutil.copyfile(path, folder / name / path.name)
    wanted = {name for name in locked_names() if name not in NOT_INSIDE}
    for distribution in distributions():
        name = distribution.metadata["Name"].lower().replace("_", "-")
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            if name in wanted and path.name.lower().startswith(("licen", "copying", "notice")) and path.is_file():
                (folder / name).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / name / path.name)


def locked_names() -> Iterator[str]:
    """The packages pinned for the server."""
    for line in (ROOT / "requirements" / "serve.txt").read_text(encoding="utf-8").splitlines():
        if line[:1].isalnum():
            yield line.partition("==")[0]


def prove(program: Path, engine: Path | None) -> None:
    """Start the staged program once, far from this checkout's environment: it must name the engine shipped with it."""
    command = [str(program / f"{NAME}{EXE_SUFFIX}"), "version", "--json"]
    environment = {name: value for name, value in os.environ.items() if name == "SYSTEMROOT"}
    done = subprocess.run(command, cwd=program.anchor, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: the frozen program does not start: {done.stderr.strip()}")
    if engine is not None and str(program / "engines") not in " ".join(json.loads(done.stdout)["engine"]["command"]):
        sys.exit(f"error: the frozen program does not use its own engine but says {done.stdout}")


def report(program: Path) -> None:
    """Say what was made, and how large its parts are."""
    parts = {
        "engines": program / "engines",
        "starter model": program / "_internal" / "appliance" / "catalog" / "starter",
    }
    whole = size(program)
    for name, folder in parts.items():
        print(f"  {size(folder) / 1e6:7.1f} MB  {name}")
    print(f"  {(whole - sum(map(size, parts.values()))) / 1e6:7.1f} MB  program, Python, libraries")
    print(f"  {whole / 1e6:7.1f} MB  {program}")


def size(folder: Path) -> int:
    """Bytes of all files under ``folder``; a link counts for nothing, its target counts once."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


if __name__ == "__main__":
    main()
