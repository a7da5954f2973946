"""What all tests share: how much of them runs, the guard against anything left behind, and processes to test with."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import sys
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gguf_files import WriteModel
from gguf_files import write_model as write_model_file
from hypothesis import HealthCheck, Phase, settings
from landing import COLLECTED, left_out
from leftovers import MARK, Leftovers
from needs import FIXTURES, advice, compiled, is_here
from waiting import wait

from appliance.features import FEATURES
from appliance.platform import ports
from appliance.platform.inside import bring_engine

ROOT = Path(__file__).resolve().parent.parent
STARTER = ROOT / "appliance" / "catalog" / "starter" / "llama-appliance-starter-Q8_0.gguf"
FAKE = ROOT / "tests" / "fakes" / "llama_server.py"
bring_engine(next((each.engine for each in FEATURES if each.engine), None))  # as `appliance.__main__` does

SETTLE = 5.0
"""Seconds that processes, sockets and threads have to be gone after the last test."""

BUSY = [HealthCheck.too_slow]  # it takes the clock's word, which says little beside other tests
settings.register_profile("few", max_examples=20, deadline=None, stateful_step_count=30, suppress_health_check=BUSY)
settings.register_profile("all", settings.get_profile("few"), max_examples=60)
settings.register_profile("deep", settings.get_profile("few"), max_examples=3000, stateful_step_count=100)
settings.register_profile("unshrunk", settings.get_profile("few"), phases=(Phase.explicit, Phase.generate))
"""For tools/mutants.py, which wants to know that a test fails, and not with how little."""


OF_PYTHON = {getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)}
"""Signals that Python ignores itself, and gives back to those it begins."""
DEFAULT_SERVER = ("127.0.0.1", 8080)
"""Where the verbs of the command line look for a server."""
BEFORE = pytest.StashKey[Leftovers]()
"""What this process held before its first test."""
LONG: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "soak": ("MINUTES", "all owners under load for so long", ("long/test_soak.py",)),
    "fuzz": ("N", "so many damaged inputs for each parser", ("long/test_fuzz.py",)),
    "kills": (
        "N",
        "so many kills of the program and of engines, a tenth of the rest",
        ("long/test_kills.py", "e2e/test_pull_kill.py", "e2e/test_update_kill.py"),
    ),
    "gains": ("TOKENS", "what kept contexts save, with prompts up to so long", ("long/test_context_gains.py",)),
}
"""The long tests: what their numbers mean, and their files. Each of them runs shortly with ``--all``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="slow tests too, more examples, the page in each look")
    parser.addoption(
        "--deep", action="store_true", help="--all, and many more examples for every property (Hypothesis)"
    )
    parser.addoption("--landing", default="", metavar="COMMIT", help="what a landing adds to the tests without --all")
    parser.addoption("--all-needs", action="store_true", help="a test fails when what it needs is not here")
    parser.addoption("--llama-page", default="", metavar="DIR", help="llama.cpp's own page, as it was built; driven")
    for name, (number, what, files) in LONG.items():
        told = f"{what}; only {' and '.join(files)} run, unless others are named"
        parser.addoption(f"--{name}", type=int, default=0, metavar=number, help=told)


def pytest_configure(config: pytest.Config) -> None:
    hear_ignored_signals()
    os.environ[MARK] = uuid.uuid4().hex
    chosen = [str(ROOT / "tests" / file) for name in LONG if config.getoption(f"--{name}") for file in LONG[name][2]]
    deep = config.getoption("--deep")
    config.option.all = config.option.all or bool(deep or chosen)
    named: str | None = config.getoption("--hypothesis-profile")
    settings.load_profile(named or ("deep" if deep else "all" if config.option.all else "few"))
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = chosen or turned(config)


def turned(config: pytest.Config) -> list[str]:
    """Let each worker begin to collect somewhere else, so that it finds what the others have compiled meanwhile.

    In a fresh clone that is a third of what it costs to begin. `pytest_collection_modifyitems` gives all workers the
    same order again.
    """
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None or config.args != ["tests"]:
        return config.args
    places = sorted(str(path) for path in ROOT.glob("tests/*") if path.is_dir() or path.name.startswith("test_"))
    begin = int(worker["workerid"].removeprefix("gw")) * len(places) // worker["workercount"]
    return places[begin:] + places[:begin]


def hear_ignored_signals() -> None:
    """Give every process that the tests begin the default answer to signals, however this one was begun.

    ``nohup COMMAND``, ``COMMAND &`` and many a CI begin a process with signals ignored, and it hands that on to those
    that it begins. A handler is not handed on: a program that is executed has the default in its place. With a handler
    that does nothing, this process goes on ignoring those signals, as it was asked to.
    """
    for number in signal.valid_signals() - OF_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test needs what its fixtures need. Its name is kept, whether this run leaves it out or not."""
    item.config.stash.setdefault(COLLECTED, set()).add(item.nodeid.partition("[")[0])
    for name in FIXTURES.keys() & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.needs(*FIXTURES[name]))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Leave slow tests to ``--all``, unless files are named; a landing has a choice of its own, after ``-m``."""
    items.sort(key=lambda item: item.path)  # pytest brings tests of one fixture together, from where it meets the first
    yield
    items.sort(key=lambda item: item.path)
    if config.option.landing:
        out = left_out(items, config.option.landing)
    elif not config.option.all and config.args_source is not pytest.Config.ArgsSource.ARGS:
        out = [item for item in items if item.get_closest_marker("slow")]
    else:
        return
    config.hook.pytest_deselected(items=out)
    gone = set(out)
    items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end, so Python need not go through it again and again for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose needs are not here, before any of its fixtures; or fail it."""
    needs = sorted({need for mark in item.iter_markers("needs") for need in mark.args})
    if missing := [advice(need) for need in needs if not is_here(need)]:
        reason = "; ".join(f"needs {each}" for each in missing)
        if item.config.getoption("--all-needs"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were skipped, a line for each reason (pytest has one for each file), and each folder's time."""
    skipped = terminalreporter.stats.get("skipped", ())
    if skipped:
        terminalreporter.section("skipped, by reason")
    told = (report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    reasons = Counter(reason for each in told for reason in re.split("; (?=needs )", each))  # one may need two things
    for reason, count in reasons.most_common():
        terminalreporter.line(f"SKIPPED [{count}] {reason}", yellow=True)
    with socket.socket() as probe:
        if terminalreporter.stats.get("failed") and probe.connect_ex(DEFAULT_SERVER) == 0:
            where = ":".join(map(str, DEFAULT_SERVER))
            terminalreporter.line(f"end what listens on {where}: verbs ask that server, in tests as well", red=True)
    seconds = Counter[str]()
    for report in (
        each for reports in terminalreporter.stats.values() for each in reports if hasattr(each, "duration")
    ):
        seconds["/".join(Path(report.nodeid.partition("::")[0]).parent.parts[:2])] += report.duration
    terminalreporter.section("seconds, by folder")
    terminalreporter.line(", ".join(f"{folder} {took:.0f}" for folder, took in seconds.most_common()))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes for each core, since tests wait more than they compute. A selection runs in this process alone."""
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS and not config.option.keyword
    return 2 * len(os.sched_getaffinity(0)) if whole and sys.platform == "linux" else 0


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Generator[None]:
    """After all tests of a worker: no process they began (orphans too), no listening port, thread or descriptor."""
    request.config.stash[BEFORE] = before = Leftovers.now()
    yield
    wait(lambda: Leftovers.now().since(before), lambda left: not left, within=SETTLE, told=lambda: "left behind")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure tells what is there that was not there at first; what tests share is among it."""
    report = yield
    before = item.config.stash.get(BEFORE, None)
    if report.failed and before is not None:
        report.sections.append(("there now", "\n".join(Leftovers.now().since(before))))
    return report


@pytest.fixture(scope="session")
def starter_model() -> Path:
    """The small chat model that ships with the program."""
    if not STARTER.is_file():
        pytest.fail(f"{STARTER.relative_to(ROOT)} is missing; it is part of the repository")
    return STARTER


BUILT = pytest.param("built", marks=(pytest.mark.needs("llama-server"), pytest.mark.slow))


@pytest.fixture(scope="session", params=["embedded", BUILT])
def engine(request: pytest.FixtureRequest) -> str:
    """A value for ``--engine``, each in turn; "any" for a test with `program.one_engine`."""
    from appliance.features import embedded  # not at the top: most tests do without

    if request.param != "embedded" and (found := next(compiled(), None)):
        return str(found)
    if not embedded.available():
        pytest.skip("the embedded engine is not on this machine")
    return "embedded"


@pytest.fixture(scope="session")
def fake_llama_server() -> tuple[str, ...]:
    """The start of an argv that behaves as `llama-server` does; flags are appended. See tests/fakes/fake_options.py."""
    return (sys.executable, "-S", "-E", str(FAKE))


@pytest.fixture
def fake_engine(tmp_path: Path, fake_llama_server: tuple[str, ...]) -> Path:
    """The fake as one executable file, for everything that wants an engine's path. It has the fake's process id."""
    if sys.platform == "win32":
        script = tmp_path / "llama-server.cmd"
        script.write_text("@" + " ".join(f'"{word}"' for word in fake_llama_server) + " %*\n", encoding="utf-8")
    else:
        script = tmp_path / "llama-server"
        script.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in fake_llama_server) + ' "$@"\n')
        script.chmod(0o755)
    return script


@pytest.fixture
def fake_model(tmp_path: Path) -> Path:
    """The least that the fake accepts as a model file; nothing else can read it."""
    path = tmp_path / "fake-model.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def open_server(fake_llama_server: tuple[str, ...], fake_model: Path) -> Callable[..., object]:
    """`http_harness.open_appliance` with the fake engine: the whole program in this process, on a free port."""
    from http_harness import open_appliance  # not at the top: it imports all of the program, and most tests do without

    return partial(open_appliance, fake_llama_server, fake_model)


@pytest.fixture
async def server(open_server: Callable[..., Any]) -> AsyncGenerator[object]:
    """Serve as `open_server` does without arguments."""
    async with open_server() as running:
        yield running


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of llama-server, no folders of the user's."""
    from program import fresh_environment  # not at the top, as above

    environment = fresh_environment(tmp_path) | {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    environment["LLAMA_CACHE"] = str(tmp_path / "cache")
    for name in os.environ.keys() - environment.keys():
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(plain_environment: None, capfd: pytest.CaptureFixture[str]) -> object:
    """Carry out command lines in this process, for a user who has just come."""
    from command_line import Command  # as above

    return Command(capfd)


@pytest.fixture
def start_server(tmp_path: Path) -> Generator[Callable[..., object]]:
    """Start ``serve`` or another verb that listens, with keywords of `program.Server`; all are ended afterwards."""
    from program import Server  # as above

    servers: list[Server] = []

    def start(*argv: str, listening: bool = True, **more: Any) -> Server:
        server = Server(argv, tmp_path, **more)
        servers.append(server)
        return server.wait_listening() if listening else server

    yield start
    for server in servers:
        with server:
            pass


@pytest.fixture
def write_model() -> WriteModel:
    """Write the smallest model file that llama.cpp's reader would accept."""
    return write_model_file


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Ask for a loopback TCP port that nothing listens on at this moment."""
    return ports.free_port
