"""The bench notices losses and lateness, counts the use of a relay, and tells its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("the bench measures Linux alone", allow_module_level=True)

from ends import Ends, compiled, run_load
from goals import Cell, Goal, combined
from processes import Failed, free_port, running, used, wait_accepting
from relays import DIRECT, NGINX, PROGRAM, Program, engine_alone
from report import BEGIN, END, Run
from swaps import Engine, swaps

pytestmark = pytest.mark.needs("cc")

RELAY = """
import socket, sys, threading, time

port, engine, what = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def answers(upstream, client):
    seen = 0
    while data := upstream.recv(65536):
        seen += 1
        if what == "late":
            time.sleep(0.03)
        if what == "loses" and seen == 3:
            continue
        if what == "cuts" and seen == 3:
            break
        client.sendall(data)
    client.shutdown(socket.SHUT_RDWR)


with socket.create_server(("127.0.0.1", port)) as listener:
    while True:
        client = listener.accept()[0]
        request = client.recv(65536)
        if request:
            upstream = socket.create_connection(("127.0.0.1", engine))
            upstream.sendall(request)
            threading.Thread(target=answers, args=(upstream, client), daemon=True).start()
"""
"""One request for each connection, relayed with a fault."""

BENCH = Path(__file__).parents[1] / "bench" / "bench.py"
STREAM = ("--streams", 3, "--pace-us", 50000, "--seconds", 0.5)
TEN_EACH = 30
BURNS = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass"


@pytest.fixture
def ends(tmp_path: Path) -> Ends:
    return compiled(tmp_path)


@pytest.fixture
def engine(ends: Ends) -> Generator[int]:
    with engine_alone(ends) as relay:
        yield relay.port


def test_every_record_and_answer_is_counted(ends: Ends, engine: int) -> None:
    assert run_load(ends, "streams", engine, *STREAM)["chunks"] == TEN_EACH
    assert run_load(ends, "streams", engine, *STREAM, "--burst", "--key", "--post", 1 << 20)["chunks"] == TEN_EACH
    for options in ((), ("--new",), ("--body", 3 << 20), ("--get", "--path", "/v1/models")):
        found = run_load(ends, "json", engine, "--connections", 2, "--seconds", 5, "--most", 20, *options)
        assert found["answers"] == 20
    slow = run_load(ends, "json", engine, "--rate", 50, "--seconds", 0.5, "--delay-us", 20000)
    assert slow["answers"] == 25
    assert slow["took_p50"] >= 20


@pytest.mark.slow
def test_what_a_relay_loses_or_holds_back_is_noticed(ends: Ends, engine: int, tmp_path: Path) -> None:
    for fault, told in (("loses", "lost"), ("cuts", "broke off")):
        with _relay(fault, engine, tmp_path) as port, pytest.raises(Failed, match=told):
            run_load(ends, "streams", port, *STREAM)
    with _relay("late", engine, tmp_path) as port:
        found = run_load(ends, "streams", port, *STREAM)
    assert min(found["late_p50"], found["first_p50"]) >= 30


@contextmanager
def _relay(fault: str, engine: int, folder: Path) -> Generator[int]:
    port = free_port()
    with running([sys.executable, "-c", RELAY, str(port), str(engine), fault], folder / "relay.log") as process:
        wait_accepting(process, port)
        yield port


@pytest.mark.slow
def test_an_answer_that_is_an_error_is_told(ends: Ends, tmp_path: Path) -> None:
    port = free_port()
    argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    with running(argv, tmp_path / "log") as process:
        wait_accepting(process, port)
        with pytest.raises(Failed, match="status 501"):
            run_load(ends, "json", port, "--connections", 1, "--seconds", 1, "--most", 1)


@pytest.mark.slow
def test_work_of_helpers_counts_and_work_of_engines_does_not(ends: Ends, tmp_path: Path) -> None:
    helper = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURNS!r}])"
    with running([sys.executable, "-c", helper], tmp_path / "log") as process:
        while (whole := used(process.pid, ends.engine).cpu) < 0.2:
            pass
        assert whole < 60
        without = used(process.pid, Path(os.path.realpath(sys.executable)))
        assert without.cpu == 0


def test_rounds_are_combined_and_held_against_goals() -> None:
    rounds = [{"cpu_us": 30.0, "took_p50": 5.0, "took_p99": 9.0}, {"cpu_us": 20.0, "took_p50": 7.0, "took_p99": 9.0}]
    base = [{"took_p50": 1.0, "took_p99": 2.0}]
    found = combined({"json": {PROGRAM: rounds, NGINX: [{"cpu_us": 10.0}], DIRECT: base}})
    assert found["json"][PROGRAM] == {"cpu_us": 20, "took_p50": 6, "took_p99": 9, "added_p50": 5, "added_p99": 7}
    own = Cell("json", "cpu_us")
    ratio = Goal("", own, 1.6, 2.0, "x", times=Cell("json", "cpu_us", NGINX))
    assert (ratio.value(found), ratio.verdict(2.0)) == (2.0, "enough")
    assert Goal("", own, 1, 3, "us", over=Cell("json", "cpu_us", NGINX)).value(found) == 10
    assert Goal("", own, 15, 12, "us", at_least=True).verdict(14) == "enough"
    assert Goal("", Cell("swap", "cold_ms"), 1, 2, "ms").verdict(None) == "not measured"


def test_figures_are_published_between_the_marks(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    Run("a machine", "a commit", "bench", {"start": {PROGRAM: [{"listening_ms": 240.0}]}}, []).publish(document)
    text = document.read_text("utf-8")
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "old" not in text
    assert "| start to listening | 240 ms | at most 250 ms (350) | met |" in text


@pytest.mark.slow
def test_a_run_measures_the_program_beside_the_engine(tmp_path: Path) -> None:
    told = tmp_path / "found.json"
    options = ["--quick", "--seconds", "0.4", "--rows", "chunk-48,settings-json,start", "--json", str(told)]
    options += ["--relays", f"{DIRECT},{PROGRAM}", "--program", f"{sys.executable} -m appliance"]
    argv = [sys.executable, str(BENCH), *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads(told.read_text())["rows"]
    assert rows["chunk-48"]["combined"][PROGRAM]["cpu_us"] > 0, done.stdout
    assert rows["settings-json"]["combined"]["llama-appliance (four plugins)"]["per_second"] > 0
    assert "start to listening" in done.stdout


@pytest.mark.slow
def test_every_way_to_a_first_token_is_measured(fake_engine: Path, tmp_path: Path) -> None:
    program = Program((sys.executable, "-m", "appliance"))
    found = swaps(program, {}, Engine((str(fake_engine),), str(fake_engine)), 1, tmp_path)
    assert list(found) == [f"llama-server: {way}" for way in ("bare", "configured", "on disk")]
    assert all(value > 0 for samples in found.values() for sample in samples for value in sample.values())
