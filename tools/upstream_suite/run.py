"""Runs llama.cpp's own server tests against the real llama-server and against `llama-appliance llama-server`.

    python3 bootstrap.py test --upstream [--suites router,stream] [--columns real,ours,embedded] [-- ARGS]

The tests come out of the source package that llama-builds/ builds the engine from; their packages go into a virtual
environment of their own. No internet: the models are generated, and a stand-in for the model hub serves them. Prints
both columns, and why tests are not passed as far as known.py says; every outcome goes to results.json. The exit status
is 1 when only the real program passes a test, and known.py has no reason for it. ARGS go to pytest. Needs Linux or
macOS.
"""
# ruff: noqa: I001 - "build" is a module here, and a folder where the program was frozen

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "llama-builds"))

from bootstrap import SetupError, exclusive, make_venv, pip_of, run_pip, say, venv_python
from build import build, folder_of, is_built
from columns import Column, Kit, Outcome, as_json
from known import NEITHER, ONLY_REAL, ONLY_REAL_EMBEDDED, stale
from layout import EXECUTABLE, cache_folder
from source import SOURCE, fetch, unpack
from table import Suites, explained, gained, lost, neither, table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FIRST = (
    "router", "stream", "security", "metrics", "sleep", "basic", "chat_completion", "completion", "compat_anthropic",
    "proxy", "tokenize", "slot_save", "embedding",
)  # fmt: skip
"""The suites that say most about what stands in front of the models; the others are run behind them."""
REQUIREMENTS = ROOT / "requirements" / "upstream.txt"
STAMP = ".requirements"
KNOWN_FILE = "tools/upstream_suite/known.py"
EMBEDDED = "embedded"
"""The column of this program on the engine of its wheel; the one called ours uses the engine of the real program."""
OURS = Path(sys.executable).with_name("llama-appliance")


def environment(folder: Path) -> Path:
    """The interpreter of the environment that has the suites' packages. Raises SetupError."""
    python = venv_python(folder)
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    stamp = folder / STAMP
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return python
    say(f"installing the packages of llama.cpp's tests into {folder}")
    make_venv(folder)
    status, output = run_pip(pip_of(folder), "install", "--quiet", "--require-hashes", "-r", str(REQUIREMENTS))
    if status != 0:
        raise SetupError(f"pip could not install what llama.cpp's tests need:\n{output.strip()}")
    stamp.write_text(wanted)
    return python


def source_tree(folder: Path) -> Path:
    """The unpacked source. Raises SetupError."""
    tree = folder / f"source-{SOURCE.version}"
    if not tree.exists():
        say(f"fetching the source of llama.cpp {SOURCE.version}")
        folder.mkdir(parents=True, exist_ok=True)
        unpack(fetch(folder / "download"), tree)
    return tree


def suites_of(source: Path) -> list[str]:
    """The names of llama.cpp's suites, in the order in which they are run."""
    files = sorted((source / "tools" / "server" / "tests" / "unit").glob("test_*.py"))
    found = [path.stem.removeprefix("test_") for path in files]
    return sorted(found, key=lambda suite: FIRST.index(suite) if suite in FIRST else len(FIRST))


def models(folder: Path, python: Path) -> tuple[Path, Path]:
    """The hub's folder and the filled cache, made anew each time, which takes a second."""
    hub, cache = folder / "hub", folder / "cache"
    for place in (hub, cache):
        shutil.rmtree(place, ignore_errors=True)
    subprocess.run([python, HERE / "models.py", hub, cache], stdin=subprocess.DEVNULL, check=True)
    return hub, cache


@contextmanager
def serving(hub: Path) -> Generator[str, None, None]:
    """The address of a stand-in for the hub."""
    command = [sys.executable, str(ROOT / "tests" / "fakes" / "model_hub.py"), "--root", str(hub)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["hub"]
        finally:
            process.kill()


def engine() -> Path:
    """The real program, built if it is not there. Raises SetupError."""
    folder = folder_of("cpu", native=False)
    if not is_built(folder, "cpu", native=False):
        build(["cpu"], native=False, jobs=os.cpu_count() or 1, clean=False)
    return folder / EXECUTABLE


def column(name: str, folder: Path, command: Sequence[str], *, model_files: bool) -> Column:
    """A program that finds no configuration of the user's and leaves nothing behind with the user."""
    own = folder / name
    env = {place: str(own / place.lower()) for place in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")}
    env |= {"LLAMA_APPLIANCE_ENGINE": EMBEDDED} if name == EMBEDDED else {}
    return Column(name, command, own, env | ({"SUITE_MODEL_FILES": "1"} if model_files else {}))


def measure(one: Column, suites: Sequence[str], kit: Kit, more: Sequence[str]) -> dict[str, list[Outcome]]:
    """Run every suite against one program."""
    one.prepare(kit.cache)
    found: dict[str, list[Outcome]] = {}
    with serving(kit.hub) as url:
        for suite in suites:
            began = time.monotonic()
            found[suite] = one.run(suite, kit, url, more)
            passed = sum(outcome.outcome == "passed" for outcome in found[suite])
            say(f"{one.name:5} {suite:20} {passed:3} of {len(found[suite]):3} in {time.monotonic() - began:5.1f} s")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", default="", help="comma-separated, such as router,stream (default: all)")
    parser.add_argument("--columns", default="real,ours", help="some of real, ours, embedded (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=cache_folder() / "upstream-suite", help="where all of it is")
    parser.add_argument("--ours", type=Path, default=OURS, help="the program in the column ours (default: %(default)s)")
    parser.add_argument("--model-files", action="store_true", help="name single models by --model, not by --hf-repo")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, for example -k props")
    args = parser.parse_args()
    folder: Path = args.folder.absolute()
    names: list[str] = args.columns.split(",")
    commands = {
        "real": lambda: [str(engine())],
        "ours": lambda: [str(args.ours.absolute()), "llama-server"],
        EMBEDDED: lambda: [str(args.ours.absolute()), "llama-server"],
    }
    if unknown := set(names) - set(commands):
        parser.error(f"there is no column {', '.join(sorted(unknown))}")
    with exclusive(folder / ".lock", "llama.cpp's tests"):
        try:
            python, source = environment(folder / "venv"), source_tree(folder)
            known = suites_of(source)
            suites = args.suites.split(",") if args.suites else known
            if missing := [suite for suite in suites if suite not in known]:
                parser.error(f"llama.cpp has no suite {', '.join(missing)}; it has {', '.join(known)}")
            kit = Kit(python, source, *models(folder, python))
            results: dict[str, dict[str, list[Outcome]]] = {}
            seconds: dict[str, float] = {}
            for name in names:
                began = time.monotonic()
                one = column(name, folder, commands[name](), model_files=args.model_files)
                results[name] = measure(one, suites, kit, args.pytest)
                seconds[name] = time.monotonic() - began
        except SetupError as error:
            sys.exit(f"error: {error}")
        (folder / "results.json").write_text(as_json(results, seconds), encoding="utf-8")
    print(table(results))
    print(f"every outcome: {folder / 'results.json'}, logs beside it")
    ours = [name for name in results if name != "real"] if "real" in results else []
    return max([compare(results["real"], results[name], name, whole=not args.pytest) for name in ours], default=0)


def compare(real: Suites, ours: Suites, name: str, *, whole: bool) -> int:
    """Print what differs and why; the exit status. ``whole``: no test of these suites was left out."""
    only_real = ONLY_REAL | (ONLY_REAL_EMBEDDED if name == EMBEDDED else {})
    for test in gained(real, ours):
        print(f"only {name}: {test}")
    both, missed = neither(real, ours), lost(real, ours)
    reasons, unknown = explained(both, NEITHER)
    print_all("neither, as is known:", reasons)
    print_all("neither:", [f"{one.test}  {one.reason}" for one in unknown])
    reasons, mistakes = explained(missed, only_real)
    print_all("only real, on purpose:", reasons)
    print_all("only real:", [f"{one.test}  {one.outcome}: {one.reason}" for one in mistakes])
    if whole:
        old = [*stale(NEITHER, both, ours), *stale(only_real, missed, ours)]
        print_all(f"true no more, to be taken out of {KNOWN_FILE}:", old)
    return 1 if mistakes else 0


def print_all(heading: str, lines: Sequence[str]) -> None:
    if lines:
        print("\n  ".join([heading, *lines]))


if __name__ == "__main__":
    sys.exit(main())
