"""Break the program in one place at a time, and list the breaks that no test notices.

    .venv/bin/python tools/mutants.py --room ROOM [-n N] [--seed S]   some mutants of one room, in three minutes
    .venv/bin/python tools/mutants.py --sample N [--seed S]           a sample of the whole program

A mutant is one change that an operator of cosmic-ray makes: `<` becomes `<=`, `and` becomes `or`, a condition gets a
`not`, a number is one more. The seed draws the places, as many in each room as it has lines; pure code and the files of
the last hundred commits count twice. A worker for each core has a copy of the checkout and a process that has imported
what the tests import from elsewhere. Tests run once as they are, and coverage notes which of them run which line, also
in the processes that they start; that is kept until one of these files changes. Then the worker forks for each mutant,
and runs tests until one fails: those of its room that run its line, the quickest first; in a sample of the whole
program then those of other rooms that run it; and while there is time, the others of its room, for a process that was
killed has noted nothing.

The share of mutants killed in each room stands in docs/reliability.md. The exit status is 1 if a room is below its
share by more than chance. A mutant that no test can see belongs in mutants_equivalent.toml, with the reason.

Why cosmic-ray, and of it the operators alone: they change source text, so a mutant is what a developer would write by
mistake, in class bodies and constants too. mutmut puts all mutants of a file into it, behind a wrapper around every
function: lease.py grew from 266 to 3,072 lines, its tests took 1.7 times as long without any mutation, and a Struct's
fields stayed as they were. cosmic-ray's own runner begins pytest anew for each mutant, and takes 17 packages with it.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import multiprocessing
import os
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import warnings
from bisect import bisect
from collections import Counter
from collections.abc import Generator, Sequence, Set
from contextlib import suppress
from functools import partial
from itertools import accumulate, count, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from msgspec import Raw, Struct, json

try:
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.operators.provider import OperatorProvider
    from coverage import Coverage
    from coverage.exceptions import NoDataError
except ImportError:
    sys.exit("first: .venv/bin/pip install --no-deps --require-hashes -r requirements/mutants.txt")

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT, RECORDED = ROOT / "tools" / "mutants_equivalent.toml", ROOT / "docs" / "reliability.md"
WORKERS = min(2, len(os.sched_getaffinity(0)))
OF_ROOM = 24
"""Mutants for ``--room``: three minutes are enough for them."""
SECONDS, MOST = 20.0, 400
"""So long the tests of a mutant's room may take without it, and so many they may be; those of others the same again."""
BATCH = 12
"""So many files of tests are watched at once, of one folder."""
CACHE = ROOT / ".cache" / "mutants"
CHANCE = 10
"""By so many of a hundred one draw may differ from another one."""
MEMORY = 4 << 30

ROOMS = {
    "catalog": "catalog http/test_model_feed.py features/downloads",
    "cli": "cli",
    "core": "core/test_*.py platform/test_machine.py store/test_unpacking.py features/metrics/test_hardware.py "
    "http/test_relay.py",
    "core/config": "features/config_editing/test_secret_places.py",
    "core/llama": "features/stand_in features/ollama/test_ollama.py",
    "core/models": "features/downloads/test_downloads.py features/fit/test_fit_estimate.py "
    "features/fit/test_fit_plan.py features/stand_in",
    "core/runs": "features/plugins/test_chain.py cli/test_server_verbs.py",
    "core/tools": "features/tools",
    "core/turns": "features/runs/test_run_routes.py features/tools/test_chat_tools.py",
    "engines": "features/engines",
    "features/conversations": "store/test_version_file.py",
    "fleet": "owners children/test_fleet*.py features/fit "
    "children/test_port_holders.py children/test_configured.py http/test_loading.py features/metrics",
    "http": "http/test_errors.py http/test_shutdown.py",
    "http/bytes": "http/test_wire.py http/test_tls.py http/test_unix_sockets.py http/test_shutdown.py "
    "features/sockets/test_websocket.py",
    "http/control": "http/test_*route*.py http/test_control.py features/llama_swap "
    "features/page http/test_under_way.py "
    "features/predict features/routers features/streams",
    "http/sockets": "features/sockets features/streams",
    "http/way": "http/test_way.py http/test_fast_path.py http/test_guard.py http/test_fallback*.py http/test_relay.py "
    "http/test_swap_upstream.py features/pool/test_pool_way.py http/test_loading.py "
    "features/streams http/test_shutdown.py http/test_hangs.py features/ollama/test_ollama.py "
    "features/plugins/test_plugin_chain.py http/test_inward.py features/tools/test_tool_runtimes.py "
    "features/pool/peers/test_peer_relay.py features/tools/test_chat_tools.py",
    "platform": "platform children/test_platform.py upstream/test_client.py http/test_unix_sockets.py",
    "plugins": "features/plugins plugins_bundled/test_plugin_shapes.py",
    "replay": "features/streams features/runs/test_run_routes.py",
    "store": "store features/downloads/test_downloads.py",
    "top": "test_trio_parts.py http/test_errors.py http/test_reload*.py e2e/test_lifetimes.py",
    "traffic": "traffic http/test_under_way.py features/metrics http/test_program_log.py features/timeline",
    "upstream": "upstream features/downloads",
}
"""The tests of each room, below tests/. A folder of core has the folder there as well, and so has a feature."""

SWAPS = (
    "Add_Sub|Sub_Add|Mul_FloorDiv|Div_Mul|FloorDiv_Mul|Mod_FloorDiv|RShift_LShift|LShift_RShift|BitOr_BitAnd|BitAnd_BitOr"
    "|Eq_NotEq|NotEq_Eq|Lt_LtE|Lt_GtE|LtE_Lt|LtE_Gt|Gt_GtE|Gt_LtE|GtE_Gt|GtE_Lt|Is_IsNot|IsNot_Is"
    "|Delete_Not|Delete_USub|Delete_Invert"
)
"""Of cosmic-ray's 200 those that nothing else resembles: `**` for `+` says no more than `-` does."""
SENSIBLE = re.compile(rf".*Operator_({SWAPS})|AddNot|Replace\w+With\w+|ExceptionReplacer|NumberReplacer|Zero\w+")
PROVIDER = OperatorProvider()
OPERATORS = {name: PROVIDER[name]() for name in PROVIDER if SENSIBLE.fullmatch(name)}
ROOM = re.compile(r"appliance/((?:(?:core|http|features)/)?[^/.]+(?=/)|(?:core|http)(?=/)|)")
NOT_HERE = re.compile(r"/(windows|win32|machine_windows|machine_macos)\w*\.py|/__main__\.py|/node_modules/")
"""Files of other systems, which no test runs here."""
UNSEEN = re.compile(
    r"^(from|import|assert)\b|\blog\.\w+\(|TYPE_CHECKING|sys\.platform|strict=|__name__|kqueue|kevent|FSCTL"
)
ELSEWHERE = re.compile(r"sys\.platform == .(win32|darwin)")
TYPE_OR_TEXT = re.compile(r"(None|[A-Z][a-z]\w*|str|bytes|int|float|dict|list|tuple|type)$|[bfr]*[\"']|,")
"""What stands beside an operator that calculates nothing."""
LIMIT = re.compile(r"0x|\d{2}")
"""A number that is one: no test has to know it to the last digit, where nothing is compared with it."""
PYTEST = ("-q", "-n", "0", "-m", "not frozen and not slow", "-p", "no:cacheprovider", "--hypothesis-seed", "0")
PYTEST += ("--hypothesis-profile", "unshrunk", "-W", "ignore::pytest.PytestAssertRewriteWarning")
PRCTL, ADOPT, DIE_WITH_PARENT = ctypes.CDLL(None).prctl, 36, 1
"""Of Linux: to be the parent of orphans below; and a signal when the parent ends."""
TIMES = count(int(time.time()) + 86400)
"""Times of change for mutants, each one's own."""


say = partial(print, flush=True)


class Mutant(NamedTuple):
    room: str
    file: str
    line: int
    operator: str
    before: str
    after: str
    source: str
    """The whole file, changed."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.operator}\n    {self.before}\n    {self.after}"


class Fate(NamedTuple):
    killed: bool
    by: str
    seconds: float


# ---- which mutants ---------------------------------------------------------------------------------------------------


def all_files() -> list[tuple[str, str]]:
    """Each file that can be mutated, behind its room."""
    names = (path.relative_to(ROOT).as_posix() for path in (ROOT / "appliance").rglob("*.py"))
    return sorted((ROOM.match(name)[1] or "top", name) for name in names if not NOT_HERE.search(name))


def drawn(number: int, seed: int, files: Sequence[tuple[str, str]]) -> list[Mutant]:
    """Mutants at even distances along all lines, beginning where the seed says."""
    command = ["git", "log", "-100", "--format=", "--name-only"]
    new = set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines())
    weights = (
        (ROOT / file).read_bytes().count(b"\n") * (1 + room.startswith("core")) * (1 + (file in new))
        for room, file in files
    )
    ends = list(accumulate(weights))
    first = random.Random(seed).random()
    hits = Counter(bisect(ends, (nth + first) * ends[-1] / number) for nth in range(number))
    known = {(each["file"], each["before"], each["after"]) for each in equivalents()}
    return [mutant for index in sorted(hits) for mutant in some_of(*files[index], hits[index], seed, known)]


def equivalents() -> list[dict[str, str]]:
    told = tomllib.loads(EQUIVALENT.read_text("utf-8"))["equivalent"]
    for each in told:
        if each["before"] not in map(str.strip, (ROOT / each["file"]).read_text("utf-8").splitlines()):
            sys.exit(f"{EQUIVALENT.name}: {each['file']} has no such line any more: {each['before']}")
    return told


def some_of(room: str, file: str, number: int, seed: int, known: Set[tuple[str, str, str]]) -> list[Mutant]:
    """Mutants of a file in a random order, which stays as it is for lines that do."""
    source = (ROOT / file).read_text("utf-8")
    lines = source.splitlines()
    alike = Counter[tuple[str, str]]()
    order: list[tuple[float, str, int, int]] = []
    for at, node in enumerate(ast_nodes(get_ast(source))):
        line = lines[min(node.start_pos[0], len(lines)) - 1].strip()
        for name, operator in OPERATORS.items():
            for index, _ in enumerate(operator.mutation_positions(node)):
                alike[name, line] += 1
                if means_something(node, line, name):
                    place = random.Random(f"{seed} {name} {alike[name, line]} {line}").random()
                    order.append((place, name, at, index))
    found = (mutated(room, file, source, *each[1:]) for each in sorted(order))
    new = (each for each in found if (file, each.before, each.after) not in known and compiles(each.source))
    return list(islice(new, number))


def compiles(source: str) -> bool:
    with suppress(SyntaxError):
        return bool(compile(source, "", "exec"))
    return False


def means_something(node: Any, line: str, name: str) -> bool:
    """Whether a test should see it: not in an annotation, words for people, a limit, or what another system runs."""
    if UNSEEN.search(line) or (name == "ExceptionReplacer" and "." in line):  # it knows no dotted names
        return False
    value = any(word in name for word in ("BinaryOperator", "Number", "True"))
    if name == "NumberReplacer" and LIMIT.match(node.value) and node.parent.type != "comparison":
        return False
    if "BinaryOperator" in name and any(  # no test is needed to notice these
        TYPE_OR_TEXT.match(leaf.value) for leaf in (node.get_previous_leaf(), node.get_next_leaf())
    ):
        return False
    child = node
    while (parent := child.parent) is not None:
        match parent.type:
            case "tfpdef" | "assert_stmt" | "decorator" | "fstring":
                return False
            case "annassign" if child is parent.children[1]:
                return False
            case "funcdef" if child is parent.annotation:
                return False
            case "classdef" if child is not parent.children[-1]:  # frozen=True and its like
                return False
            case "if_stmt" if child is parent.children[3] and ELSEWHERE.search(parent.children[1].get_code()):
                return False
            case "expr_stmt" if value and parent.search_ancestor("funcdef") is None:  # a limit or a default
                return False
        child = parent
    return True


def mutated(room: str, file: str, source: str, name: str, at: int, index: int) -> Mutant:
    tree = get_ast(source)
    node = next(islice(ast_nodes(tree), at, None))
    around, place = node.parent.children, [each is node for each in node.parent.children].index(True)
    around[place] = OPERATORS[name].mutate(node, index)
    changed = tree.get_code()
    pairs = enumerate(zip(source.splitlines(), changed.splitlines(), strict=False), 1)
    line, before, after = next((line, *pair) for line, pair in pairs if pair[0] != pair[1])
    return Mutant(room, file, line, name, before.strip(), after.strip(), changed)


# ---- what becomes of them --------------------------------------------------------------------------------------------


def begin(folder: str) -> None:
    """Make this process a worker: in a copy of the checkout, with all imported that does not belong to it."""
    copy = Path(folder) / str(os.getpid()) / "checkout"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    os.chdir(copy)
    sys.path[0] = os.environ["PYTHONPATH"] = str(copy)
    sys.executable = str(python_of(copy))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each run would compile everything
    warnings.simplefilter("ignore")
    PRCTL(ADOPT, 1)
    PRCTL(DIE_WITH_PARENT, signal.SIGKILL)


def python_of(copy: Path) -> Path:
    """Return a Python that imports the program from the copy, also without PYTHONPATH, as the own processes do."""
    site, venv = Path(sysconfig.get_path("purelib")), copy.with_name("venv")
    packages = venv / site.relative_to(sys.prefix)
    packages.mkdir(parents=True)
    for entry in site.iterdir():
        if entry.suffix == ".pth" and entry.read_text("utf-8").strip() == str(ROOT):
            (packages / entry.name).write_text(str(copy), "utf-8")
        else:
            (packages / entry.name).symlink_to(entry)
    shutil.copy2(Path(sys.prefix, "pyvenv.cfg"), venv)
    python = venv / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(Path(sys.executable).resolve())
    return python


class Seen(Struct):
    """What some tests run, unchanged."""

    tests: dict[str, float]
    """Pytest's node ids, and what each takes in seconds that passes."""
    lines: dict[str, Raw]
    """Of each file, JSON of its lines with the tests that run them, as places in ``tests``; -1 is an import."""
    imported: list[str]
    """Modules from elsewhere."""


class Watch:
    """A plugin of pytest that finds what is `Seen`, here and in processes that tests start."""

    def __init__(self, files: Sequence[str]) -> None:
        self.seconds: dict[str, float] = {}
        self.data, self.files = Path("../coverage").resolve(), [str(Path(file).resolve()) for file in files]
        told = "\n    ".join(["", *self.files])
        options = Path("../options").resolve()
        options.write_text(
            f"[run]\ndata_file = {self.data}\nparallel = true\ncontext = ${{RUNNING_TEST}}\ninclude ={told}\n", "utf-8"
        )
        os.environ |= {"COVERAGE_PROCESS_START": f"{options}", "RUNNING_TEST": ""}  # coverage's own .pth reads it
        self.coverage = Coverage(data_file=self.data, include=self.files, messages=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.coverage.switch_context(item.nodeid)
        os.environ["RUNNING_TEST"] = item.nodeid
        self.seconds[item.nodeid] = 0.0
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self.seconds.pop(report.nodeid, None)
        elif report.nodeid in self.seconds:
            self.seconds[report.nodeid] += report.duration

    def seen(self) -> Seen:
        self.coverage.save()
        with suppress(NoDataError):  # if no test has started a process
            self.coverage.combine([f"{path}" for path in self.data.parent.glob("coverage.*")])
        data = self.coverage.get_data()
        places = {"": -1} | {test: place for place, test in enumerate(self.seconds)}
        lines = {
            os.path.relpath(file): Raw(
                json.encode(
                    {
                        line: [places[test] for test in tests if test in places]
                        for line, tests in data.contexts_by_lineno(file).items()
                    }
                )
            )
            for file in data.measured_files()
        }
        modules = list(sys.modules.items())
        elsewhere = [name for name, module in modules if "/site-packages/" in str(module.__dict__.get("__file__"))]
        return Seen(self.seconds, lines, elsewhere)


class Batch(NamedTuple):
    """Tests that are watched together."""

    name: str
    tests: list[str]
    files: list[str]
    """Of the product: those whose lines count."""

    @property
    def kept(self) -> Path:
        """Where what they run is kept, until a file changes."""
        digest = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in (*self.tests, *self.files)))
        return CACHE / f"{self.name.replace('/', '-')}-{digest.hexdigest()[:16]}.json"


def batches_of(room: str | None) -> list[Batch]:
    """The tests of a room, or all that there are."""
    if room is not None:
        return [Batch(room, tests_of(room), [file for each, file in all_files() if each == room])]
    found = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py"))
    found = [path for path in found if path.parts[1] != "frozen"]
    folders = ((folder.as_posix(), list(map(str, paths))) for folder, paths in groupby(found, lambda path: path.parent))
    files = [file for _, file in all_files()]
    return [
        Batch(f"{folder}-{at}", paths[at : at + BATCH], files)
        for folder, paths in folders
        for at in range(0, len(paths), BATCH)
    ]


def watch(batch: Batch) -> str:
    """Find what tests run, if that is not known already. Returns a line about it."""
    if batch.kept.exists():
        return f"{batch.name}: known"
    fate = tried(batch.tests, 1800, 3600, watch=Watch(batch.files))
    found = Path("../seen")
    if not found.exists():
        return f"{batch.name}: its tests do not run: {fate.by}"
    CACHE.mkdir(parents=True, exist_ok=True)
    for old in CACHE.glob(f"{batch.kept.name.rpartition('-')[0]}-{'?' * 16}.json"):
        old.unlink()
    shutil.move(found, batch.kept)
    return f"{batch.name}: {fate.by or 'passed'} in {fate.seconds:.0f} s, unchanged"


def try_all(mutants: Sequence[Mutant], *, watched: Sequence[Path]) -> list[tuple[Mutant, Fate]]:
    """What became of mutants of one room."""
    seen = [json.decode(path.read_bytes(), type=Seen) for path in watched if path.exists()]
    for name in {name for each in seen for name in each.imported}:
        with suppress(Exception):
            importlib.import_module(name)
    return [(mutant, tell(mutant, *tests_for(mutant, seen))) for mutant in mutants]


def tests_for(mutant: Mutant, seen: Sequence[Seen]) -> tuple[list[str], float]:
    """The tests that run a mutant's line, those of its room first, the quickest first, and their seconds.

    For a line that an import runs, also the tests that run a line of the room with its first name.
    """
    found = dict[str, float]()
    name = re.match(r"\w*", mutant.before)
    named = re.compile(rf"\b{name[0]}\b" if name and name[0] else r"(?!)")
    for each in seen:
        of_file = json.decode(each.lines.get(mutant.file, b"{}"), type=dict[int, list[int]])
        places = set(of_file.get(max((line for line in of_file if line <= mutant.line), default=0), [-1]))
        if -1 in places:
            for file in (file for room, file in all_files() if room == mutant.room and file in each.lines):
                tests = json.decode(each.lines[file], type=dict[int, list[int]])
                text = (ROOT / file).read_text("utf-8").splitlines()
                places.update(*(tests.get(at, ()) for at, line in enumerate(text, 1) if named.search(line)))
        tests = list(each.tests.items())
        found |= (tests[place] for place in places if place >= 0)
    room = set(tests_of(mutant.room))
    near = {test: seconds for each in seen for test, seconds in each.tests.items() if test.partition("::")[0] in room}
    own = f"test_{Path(mutant.file).stem}.py"
    chosen = quickest({test: near[test] for test in found.keys() & near.keys()}, own, SECONDS)
    chosen |= quickest({test: found[test] for test in found.keys() - near.keys()}, own, SECONDS)
    chosen |= quickest(
        {test: near[test] for test in near.keys() - found.keys()}, own, 2 * SECONDS - sum(chosen.values())
    )
    return list(chosen), sum(chosen.values())


def quickest(tests: dict[str, float], first: str, seconds: float) -> dict[str, float]:
    """Tests that take so many seconds together; those of the file ``first`` come first."""
    chosen, whole = dict[str, float](), 0.0
    for test in sorted(tests, key=lambda test: (first not in test, tests[test], test))[:MOST]:
        if whole + tests[test] <= seconds:
            chosen[test] = tests[test]
            whole += tests[test]
    return chosen


def tell(mutant: Mutant, tests: Sequence[str], seconds: float) -> Fate:
    if not tests:
        say(f"SURVIVED: no test runs it\n  {mutant}")
        return Fate(False, "", 0.0)
    path = Path(mutant.file)
    original, was = path.read_text("utf-8"), path.stat()
    try:
        path.write_text(mutant.source, "utf-8")
        os.utime(path, (time.time(), next(TIMES)))  # a time that no cached bytecode has
        fate = tried(tests, 30 + 4 * seconds, 15 + int(4 * seconds))
    finally:
        path.write_text(original, "utf-8")
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    say(f"{'killed' if fate.killed else 'SURVIVED'} in {fate.seconds:.1f} s {fate.by}\n  {mutant}")
    return fate


def tests_of(room: str) -> list[str]:
    """The files of a room's tests."""
    named = [room] * room.startswith(("core/", "features/")) + ROOMS.get(room, "").split()
    patterns = (name if name.endswith(".py") else f"{name}/**/test_*.py" for name in named)
    found = {path for pattern in patterns for path in (ROOT / "tests").glob(pattern)}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def tried(tests: Sequence[str], limit: float, processor_limit: int, *, watch: Watch | None = None) -> Fate:
    """Run tests in a child of this process until one fails, and end whatever they leave behind.

    With ``watch`` all run, and what is `Seen` is written.
    """
    began = time.monotonic()
    child = os.fork()
    if not child:
        try:
            run_pytest(tests, processor_limit, watch)
        finally:
            os._exit(70)
    waited = os.pidfd_open(child)
    in_time, _, _ = select.select([waited], [], [], limit)
    os.close(waited)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    while left := psutil.Process().children(recursive=True):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, 1)
    said = Path("../log").read_text("utf-8", "replace")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", said, re.M)
    by = "" if status == 0 else "by the clock" if status < 0 else f"by {failed[1] if failed else status}"
    return Fate(status != 0, by, time.monotonic() - began)


def run_pytest(tests: Sequence[str], processor_limit: int, watch: Watch | None) -> None:
    os.setsid()
    PRCTL(DIE_WITH_PARENT, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CPU, (processor_limit, processor_limit))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    log = os.open("../log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, to in ((0, null), (1, log), (2, log)):
        os.dup2(to, number)
    options = [*PYTEST, "--basetemp", str(Path("../t").resolve()), *tests]
    if watch is not None:
        with watch.coverage.collect():
            status = pytest.main(options, [watch])
        Path("../seen").write_bytes(json.encode(watch.seen()))
    else:
        status = pytest.main(["-x", *options])
    sys.stdout.flush()
    os._exit(status)


# ---- the whole -------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sample", type=int, metavar="N", help="so many of the whole program")
    what.add_argument("--room", choices=sorted({room for room, _ in all_files()}), metavar="ROOM")
    parser.add_argument("-n", type=int, default=OF_ROOM, help=f"mutants of a room, {OF_ROOM} if it is not given")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing of it stays behind
    files = [(room, file) for room, file in all_files() if options.room in (None, room)]
    mutants = drawn(options.sample or options.n, options.seed, files)
    rooms = [[*each] for _, each in groupby(mutants, key=lambda mutant: mutant.room)]
    most = -(-len(mutants) // WORKERS) if options.room else 20
    parts = [room[at : at + most] for room in rooms for at in range(0, len(room), most)]
    batches = batches_of(options.room)
    with (
        tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder,
        multiprocessing.get_context("fork").Pool(WORKERS, begin, [folder]) as pool,
    ):
        for line in pool.imap_unordered(watch, batches):
            say(line)
        told: list[tuple[Mutant, Fate]] = []
        for part in pool.imap_unordered(partial(try_all, watched=[batch.kept for batch in batches]), parts):
            told += part
            if options.json:
                rows = ({**mutant._asdict(), **fate._asdict(), "source": None} for mutant, fate in told)
                options.json.write_bytes(json.format(json.encode(list(rows))))
    return report(told, [batch.name for batch in batches if not batch.kept.exists()])


def report(told: Sequence[tuple[Mutant, Fate]], failing: Sequence[str]) -> int:
    recorded = dict(re.findall(r"^\| `([\w/]+)` \| \d+ \| (\d+) % \|$", RECORDED.read_text("utf-8"), re.M))
    tried = Counter(mutant.room for mutant, _ in told)
    killed = Counter(mutant.room for mutant, fate in told if fate.killed)
    for mutant, fate in told:
        if not fate.killed:
            say(f"survived: {mutant}")
    for room, number in sorted(tried.items()):
        say(f"| `{room}` | {number} | {100 * killed[room] // number} % | recorded: {recorded.get(room, 'none')}")
    say(f"{killed.total()} of {tried.total()} killed, {100 * killed.total() / max(1, tried.total()):.1f} %")
    below = [room for room in tried if 100 * killed[room] < (int(recorded.get(room, 0)) - CHANCE) * tried[room]]
    if bad := sorted([*below, *failing]):
        say(f"below what is recorded, or failing without any change: {', '.join(bad)}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
