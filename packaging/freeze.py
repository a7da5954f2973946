"""Make the payload: dist/llama-appliance/, the folder that every installer, bundle and application carries.

    python3 bootstrap.py freeze [--engines cpu,vulkan] [--variants x64,haswell] [--sign KEY.pem] [--twice]

    dist/llama-appliance/
        llama-appliance          the program; start it from anywhere, without Python
        llama-server             the same program, standing in for llama-server
        llama-appliance-desktop  the same program with the page and an icon, for a double click
        _internal/               its Python and libraries, the starter model, the plugins
        nats-server              the server of a pool's bus, byte for byte as its package has it
        engines/PLATFORM-BACKEND/BUILD/   llama-server, its libraries and engine.json, byte for byte as they were built
        licenses/ sbom.cdx.json payload.json payload.json.sig    see contents.py

An engine is a backend or a folder that llama-builds made: a backend is taken from the cache, else built (cpu, vulkan,
cuda) or fetched by its sums (others). ``--engines none`` ships none; the program then looks for one on PATH.
An engine has a library for each family of processors, and loads the best of those that are there. ``--variants`` ships
these alone, and the one that runs everywhere.
Equal commits give equal payloads, in any folder and for any user: --twice makes it a second time from nothing and
compares, and builder_paths.py refuses a file that tells where it was built.
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
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import cast

import contents
import python_build
from builder_paths import refuse_builder_paths
from contents import NAME, ROOT

sys.path.insert(0, str(ROOT / "llama-builds"))
from layout import leave_out, platform_name

DESKTOP = f"{NAME}-desktop"
EXE_SUFFIX = ".exe" if sys.platform == "win32" else ""
BUILT = ("cpu", "vulkan", "cuda")
"""Backends that llama-builds/build.py makes; `llama-appliance engines install` fetches the others."""

BASELINES = {"x64", "armv8.0_1", "apple_m1"}
"""The variant that every processor of an architecture runs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="cpu", metavar="LIST", help="backends or folders, with commas; or none")
    parser.add_argument("--variants", metavar="LIST", help="variants of the engine for processors; all by default")
    parser.add_argument("--sign", type=Path, metavar="KEY.pem", help="an ed25519 key, as openssl genpkey makes it")
    parser.add_argument("--twice", action="store_true", help="make it again from nothing, and compare")
    args = parser.parse_args()
    words = [word for word in str(args.engines).split(",") if word and word != "none"]
    wanted = None if args.variants is None else {word for word in str(args.variants).split(",") if word}
    engines = {engine: unwanted(engine, wanted) for engine in map(find_engine, words)}
    made_from = contents.commit()
    staged = make(ROOT / "build", engines, made_from)
    if args.twice:
        compare(staged, make(ROOT / "build" / "again", engines, made_from))
    if args.sign is not None:
        contents.sign(staged, args.sign)
    finished = ROOT / "dist" / NAME
    shutil.rmtree(finished, ignore_errors=True)
    finished.parent.mkdir(exist_ok=True)
    staged.rename(finished)
    report(finished)


def make(work: Path, engines: Mapping[Path, Sequence[str]], made_from: contents.Commit) -> Path:
    """The whole payload but for its signature, somewhere below ``work``. ``engines``: without which of their files."""
    staged = run_pyinstaller(work)
    for engine, left_out in engines.items():
        copy_engine(engine, staged / "engines", left_out)
    give_other_names(staged, work)
    copy_bus_server(staged)
    lists = work / "pyinstaller" / NAME
    parts = contents.components(lists)
    contents.copy_licenses(staged / "licenses", parts)
    contents.settle(staged, made_from.time)
    prove(staged, shipped=bool(engines))
    refuse_builder_paths(staged, lists)
    contents.write_sbom(staged, parts, made_from)
    digest = contents.write_list(staged, platform_name(), made_from)
    contents.settle(staged, made_from.time)
    print(f"  payload {digest} of commit {made_from.word}")
    return staged


def compare(one: Path, other: Path) -> None:
    """End with an error unless both payloads hold the same files."""
    lists = [{str(entry["path"]): entry for entry in contents.entries(each)} for each in (one, other)]
    differ = sorted(path for path in {*lists[0], *lists[1]} if lists[0].get(path) != lists[1].get(path))
    if differ:
        sys.exit(f"error: two payloads of one commit differ in {len(differ)} files: {', '.join(differ[:20])}")
    print(f"  made twice: all {len(lists[0])} files are equal")


def give_other_names(payload: Path, work: Path) -> None:
    """Add the executables of other names: links. Where those need a privilege, a copy, and an executable of its own."""
    if sys.platform == "win32":
        shutil.copyfile(payload / f"{NAME}.exe", payload / "llama-server.exe")
        shutil.copyfile(work / "pyinstaller" / DESKTOP / f"{DESKTOP}.exe", payload / f"{DESKTOP}.exe")
        return
    for name in ("llama-server", DESKTOP):
        (payload / name).symlink_to(NAME)


def copy_bus_server(payload: Path) -> None:
    """Put it beside the program. PyInstaller would rewrite what it calls a library, and its sum would be another."""
    name = f"nats-server{EXE_SUFFIX}"
    shutil.copy(Path(sysconfig.get_path("scripts")) / name, payload / name)


def find_engine(word: str) -> Path:
    """The folder of a build; one that is not there is made or fetched now."""
    if (folder := Path(word)).is_dir():
        return folder
    fetched = ROOT / "build" / "engines"
    command = [sys.executable, str(ROOT / "llama-builds" / "build.py"), "--backend", word]
    if word not in BUILT:
        command = [sys.executable, "-m", "appliance", "engines", "install", word]
    environment = os.environ | {"LLAMA_APPLIANCE_ENGINES_DIR": str(fetched)}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment, check=False
    )
    if done.returncode != 0:
        sys.exit(f"error: there is no engine {word} to ship; see above, or name others with --engines")
    if word in BUILT:
        return Path(done.stdout.strip()).parent
    return max((fetched / f"{platform_name()}-{word}").glob("b*"), key=lambda each: each.stat().st_mtime)


def unwanted(engine: Path, wanted: Set[str] | None) -> list[str]:
    """The libraries of the variants that are not ``wanted``; none if that is None. Ends with an error for an unknown
    variant.
    """
    if wanted is None:
        return []
    variants = contents.variants(engine)
    if unknown := sorted(wanted - variants.keys()):
        names = ", ".join(sorted(variants)) or "none"
        sys.exit(f"error: {engine} has no variant {', '.join(unknown)} for --variants; those that it has: {names}")
    return [path for name, path in variants.items() if name not in wanted | BASELINES]


def run_pyinstaller(work: Path) -> Path:
    """The frozen program without its engines, under ``work``."""
    shutil.rmtree(work / "staged", ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--clean", "--distpath", str(work / "staged")]
    command += ["--workpath", str(work / "pyinstaller")]
    log = work / "freeze.log"
    for name in (NAME, DESKTOP) if sys.platform == "win32" else (NAME,):
        spec = ROOT / "packaging" / f"{name}.spec"
        with log.open("wb") as file:  # a fixed hash seed: equal sources give equal files
            environment = os.environ | {"PYTHONHASHSEED": "0"}
            status = subprocess.run(
                [*command, str(spec)], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, check=False
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


def copy_engine(engine: Path, engines: Path, left_out: Sequence[str] = ()) -> Path:
    """Put the engine below ``engines``, where builds are looked for; refuses one that is not what its list says.

    Returns its folder there, which has all of its files but those ``left_out``.
    """
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
    for name in left_out:
        leave_out(place, name)
    return place


def prove(program: Path, *, shipped: bool) -> None:
    """Start the staged program once, far from this checkout's environment: it must name the engines shipped with it."""
    command = [str(program / f"{NAME}{EXE_SUFFIX}"), "version", "--json"]
    environment = {name: value for name, value in os.environ.items() if name in ("HOME", "SYSTEMROOT")}
    done = subprocess.run(command, cwd=program.anchor, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: the frozen program does not start: {done.stderr.strip()}")
    if shipped and str(program / "engines") not in " ".join(json.loads(done.stdout)["engine"]["command"]):
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
    if not python_build.is_optimised():
        print(f"  made with {python_build.in_words()}: some 15 % slower than with an optimised Python")


def size(folder: Path) -> int:
    """Bytes of all files under ``folder``; a link counts for nothing, its target counts once."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


if __name__ == "__main__":
    main()
