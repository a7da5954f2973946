"""SIGKILL at random instants, again and again: no process stays behind, and nothing is lost that the docs promise.

``--kills N`` makes N kills of the program and of engines, N cuts, and a tenth of N of the rest. Kills of downloads and
of updates are in tests/e2e.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from config_files import ConfigFile, ask
from kill_clients import ENDLESS, Reader, Waits, readers, records, text_of
from leftovers import processes
from program import ANY_PORT, Server, StartServer, http, run_command
from waiting import wait

if sys.platform == "win32":
    pytest.skip("signals as POSIX has them", allow_module_level=True)

LEAST = 3
RARE = 10
"""Kills of the program for each one in a reload or an import, which take longer."""
GATHERED = 0.1
"""Seconds for which writes of kept streams are gathered, as docs/reliability.md says."""
ORPHANS = 5.0
"""Seconds that the warden has to end everything."""
PACE = {"tokens": ENDLESS, "token_delay": 0.005}


@pytest.fixture
def rare(kills: int) -> int:
    return max(LEAST, kills // RARE)


@pytest.fixture
def file(tmp_path: Path, fake_engine: Path, fake_model: Path) -> ConfigFile:
    return ConfigFile(tmp_path / "config.yaml", fake_engine, "--model", fake_model)


class Survivors:
    """Processes of this test run that were not there before."""

    def __init__(self) -> None:
        self._before = processes().keys()

    def wait_none(self) -> None:
        wait(lambda: processes().keys() - self._before, lambda left: not left, within=ORPHANS)


def check_kept(server: Server, reader: Reader, killed_at: float, waits: Waits) -> tuple[float, float]:
    """A kept stream after the kill: the client's bytes and no others, and an end.

    Returns the seconds of it that are lost, and for how many of them the program waited for a processor.
    """
    found = http(server, "GET", f"/v1/stream/{reader.conversation}?from=0")
    kept = b""
    if found.status != 404:
        assert found.status == 200, found.body
        assert "error" in records(found.body)[-1]
        before, end, _ = found.body[:-2].rpartition(b"\n\n")
        kept = before + end
    common = min(len(kept), len(reader.body))
    assert kept[:common] == reader.body[:common], "other bytes than the client had"
    lost = next((at for at, count in reader.arrived if count > len(kept)), killed_at)
    seconds, waited = max(killed_at - lost, 0.0), waits.since(lost)
    told = f"{len(reader.body) - len(kept)} bytes of {seconds:.3f} s are lost; {waited:.3f} s without a processor"
    assert seconds < GATHERED + waited, told
    return seconds, waited


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="waits for a processor as Linux counts them")
def test_kills_of_the_program(start_server: StartServer, file: ConfigFile, kills: int, chance: random.Random) -> None:
    """With kept streams under way, and sometimes in the middle of a reload; the next start has what was kept."""
    folder = file.path.parent
    kept = {"streams": {"path": str(folder / "streams"), "keep": 20}, "store": {"path": str(folder / "store.db")}}
    argv = ("serve", *ANY_PORT, "--config", file.write({"m": ()}, **kept))
    losses, row, survivors = list[tuple[float, float]](), 0, Survivors()
    server = start_server(*argv)
    for number in range(kills):
        with readers(server, *(f"k{number}-{each}" for each in range(3)), **PACE) as reading:
            waits = Waits(server.process)
            time.sleep(chance.random())
            if chance.random() < 0.3:
                server.signal(signal.SIGHUP)
                time.sleep(chance.random() / 50)
            killed_at = waits.kill()
        survivors.wait_none()
        server = start_server(*argv)
        losses += [check_kept(server, reader, killed_at, waits) for reader in reading]
        ask(server, "m")
        newest = http(server, "GET", "/api/metrics/activity?limit=1").json()["data"][0]["id"]
        assert newest > row, "an activity row that was there is gone"
        row = newest
        if chance.random() < 1 / RARE or number + 1 == kills:
            server.signal(signal.SIGTERM)
            assert server.wait(15) == 0, server.told()
            survivors.wait_none()
            server = start_server(*argv)
        most, beyond = max(lost for lost, _ in losses), max(lost - waited for lost, waited in losses)
        print(
            f"{number + 1} kills: {len(losses)} streams, {most:.3f} s lost at most, {beyond:.3f} s of them able to run"
        )


def test_kills_of_engines(start_server: StartServer, file: ConfigFile, kills: int, chance: random.Random) -> None:
    """The clients hear of it in a whole record, with nothing twice, and the next request has another process."""
    server = start_server("serve", *ANY_PORT, "--config", file.write({"m": ()}))
    whole = ask(server, "m", fake={"tokens": 3000})
    for number in range(kills):
        with readers(server, None, None, f"e{number}", **PACE) as reading:
            time.sleep(chance.random() / 5)
            engine = next(each for each in server.children() if "--port" in each.cmdline())
            engine.kill()
            for reader in reading:
                reader.thread.join(10)
                assert "error" in records(reader.body)[-1], reader.body[-300:]
                assert whole.startswith(text_of(reader.body))
        wait(lambda: http(server, "POST", "/v1/chat/completions", question()).status == 200)
        assert sum("--port" in each.cmdline() for each in living(server)) == 1
    print(f"{kills} kills of engines: {3 * kills} streams, each ended in words")


def question() -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def living(server: Server) -> Sequence[psutil.Process]:
    return [each for each in server.children() if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_cuts_of_clients(start_server: StartServer, file: ConfigFile, kills: int, chance: random.Random) -> None:
    """Ten for each kill: the engine stops to work for who has left, and the program keeps nothing of them."""
    server = start_server("serve", *ANY_PORT, "--config", file.write({"m": ("--parallel", "4")}))
    ask(server, "m")
    program = psutil.Process(server.process.pid)
    before = program.num_fds()
    for _ in range(kills * 10 // 4 + 1):
        with readers(server, None, None, None, None, **PACE):
            time.sleep(chance.random() / 20)
    wait(lambda: http(server, "GET", "/slots?model=m").json(), lambda slots: not any(busy(each) for each in slots))
    wait(lambda: program.num_fds(), lambda now: now <= before + 4)
    assert ask(server, "m")
    print(f"{4 * (kills * 10 // 4 + 1)} cuts")


def busy(slot: dict[str, object]) -> bool:
    return bool(slot["is_processing"])


@pytest.mark.slow
def test_kills_in_a_reload(start_server: StartServer, file: ConfigFile, rare: int, chance: random.Random) -> None:
    for number in range(rare):
        survivors = Survivors()
        server = start_server("serve", *ANY_PORT, "--config", file.write({"m": (), f"old{number}": ()}))
        ask(server, "m")
        file.write({"m": ("--ctx-size", str(number + 1)), f"new{number}": ()})
        written = file.path.read_bytes()
        server.signal(signal.SIGHUP)
        time.sleep(chance.random() / 10)
        server.process.kill()
        server.wait(10)
        survivors.wait_none()
        assert file.path.read_bytes() == written
    checked = run_command("config", "check", "--config", str(file.path), cwd=file.path.parent)
    assert checked.returncode == 0, checked.stderr
    print(f"{rare} kills in a reload")
