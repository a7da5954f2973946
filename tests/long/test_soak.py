"""Everything at once for a long time: memory, descriptors and tasks do not grow, nothing fails, and counters agree.

``--soak MINUTES`` says how long; without it the same runs for some seconds.
"""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
import pytest
import trio
from config_files import CHAT, ConfigFile
from gguf_files import write_model
from hub_process import fake_hub
from kill_clients import records, text_of
from msgspec import Struct
from program import ANY_PORT, Server, StartServer, dechunk, http
from waiting import until

SHORT, SHORTEST = 8.0, 2.0
"""Seconds, where no time is asked for: with ``--all``, and without."""
BESIDE = 3
"""Clients at a time."""
PAUSE = 0.25
"""Seconds between two uses by one client, on average."""
WARM = 600.0
"""Seconds after which memory counts: buffers of captures, logs and streams fill up until then."""
SLOPE = 0.1
"""MiB a minute that the program may grow, in a soak that is long enough to tell: LEAST seconds after WARM."""
LEAST = 1200.0
MOST = 60.0
"""MiB that it may grow altogether."""
SPARE = 6
"""Descriptors, and tasks: connections that are kept for the next request."""
SETTLE = 90.0
"""Seconds until idle connections are closed."""
USE = 60.0
"""Seconds for one use; it only bounds a failure."""
REPO = "acme/tiny-GGUF"
MODELS = ("a", "b", "c")
EVENTS = ("/api/events", "/logs/stream", "/models/sse", "/api/conversations/events")


class Sample(Struct, frozen=True):
    at: float
    mib: float
    descriptors: int
    tasks: int


class Watched:
    """The program as seen from outside, and its number of tasks as its own Trio tells it."""

    def __init__(self, server: Server, tasks: Path) -> None:
        self._process = psutil.Process(server.process.pid)
        self._tasks = tasks
        self._began = time.monotonic()
        self.samples: list[Sample] = []

    def look(self) -> Sample:
        tasks = int(self._tasks.read_text() or 0)
        memory = self._process.memory_info().rss / 2**20
        return Sample(time.monotonic() - self._began, memory, self._process.num_fds(), tasks)

    async def sample(self, every: float) -> None:
        while True:
            self.samples.append(self.look())
            await trio.sleep(every)


def slope(samples: Sequence[Sample]) -> float:
    """MiB a minute, by least squares."""
    at, mib = fmean(each.at for each in samples), fmean(each.mib for each in samples)
    spread = sum((each.at - at) ** 2 for each in samples)
    return 60 * sum((each.at - at) * (each.mib - mib) for each in samples) / spread if spread else 0.0


def counted(server: Server) -> int:
    """Requests for models that the program has counted."""
    text = http(server, "GET", "/metrics").body.decode()
    return sum(
        int(float(each)) for each in re.findall(r"^llama_appliance_model_requests_total\{.*\} (\S+)$", text, re.M)
    )


class Clients:
    """One after another at random, until the time is over.

    Each uses one part of the program, says what is wrong, and counts its requests for models.
    """

    def __init__(self, port: int, puller: int, write: Callable[[int], object], chance: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.asked = 0
        """Requests for a model that had an answer to their end."""
        self._port = port
        self._puller = puller  # the port of a program that may download
        self._write = write
        self._chance = chance
        self._number = 0
        self.kinds: list[Callable[[], Awaitable[None]]] = [
            *(self.plain, self.plain, self.stream, self.stream, self.json, self.kept, self.abandoned, self.feed),
            *(self.agent, self.conversation, self.reload, self.pull, self.lists),
        ]

    async def work(self, until: float, pause: float) -> None:
        """One client at a time; several of these run beside each other."""
        while trio.current_time() < until:
            await self.one(self._chance.choice(self.kinds))
            await trio.sleep(self._chance.random() * 2 * pause)

    async def one(self, kind: Callable[[], Awaitable[None]]) -> None:
        name = getattr(kind, "__name__", "?")
        self.done[name] += 1
        try:
            with trio.fail_after(USE):
                await kind()
        except (AssertionError, OSError, ValueError, KeyError, IndexError, trio.TooSlowError) as error:
            self.wrong.append(f"{name}: {error!r}"[:500])

    # ---- what they do ------------------------------------------------------------------------------------------------

    async def plain(self) -> None:
        status, body = await self._ask("POST", CHAT, self._chat(tokens=self._chance.randint(1, 40)))
        assert status == 200, body
        assert json.loads(body)["choices"][0]["message"]["content"]
        self.asked += 1

    async def stream(self) -> None:
        tokens = self._chance.randint(1, 200)
        status, body = await self._ask("POST", CHAT, self._chat(stream=True, tokens=tokens, token_delay=0.002))
        assert status == 200, body
        assert body.endswith(b"data: [DONE]\n\n"), body[-200:]
        assert len(records(body)) >= tokens
        self.asked += 1

    async def json(self) -> None:
        """A whole answer of a route that is not chat, with a body of some kilobytes."""
        body = {
            "model": self._chance.choice(MODELS),
            "prompt": "x" * self._chance.randint(1, 20_000),
            "fake": {"tokens": 3},
        }
        status, answer = await self._ask("POST", "/v1/completions", body)
        assert status == 200, answer
        self.asked += 1

    async def kept(self) -> None:
        """The client leaves, comes back, and has what one that stayed would have."""
        self._number += 1
        name = f"soak-{self._number}"
        body = self._chat(stream=True, tokens=100, token_delay=0.003)
        first = await self._part(CHAT, body, self._chance.randint(1, 3), f"X-Conversation-Id: {name}\r\n")
        begun = dechunk(first, whole=False)
        status, rest = await self._ask("GET", f"/v1/stream/{name}?from={len(begun)}")
        assert status == 200, rest
        assert (begun + rest).endswith(b"data: [DONE]\n\n"), rest[-200:]
        assert len(text_of(begun + rest).split()) >= 100
        self.asked += 1

    async def abandoned(self) -> None:
        await self._part(CHAT, self._chat(stream=True, tokens=5000, token_delay=0.005), self._chance.randint(1, 4))
        self.asked += 1

    async def feed(self) -> None:
        """Somebody looks at a page for a while, and closes it."""
        async with await self._sent("GET", self._chance.choice(EVENTS)) as stream:
            with trio.move_on_after(self._chance.random() * 5):
                while await stream.receive_some(1 << 16):
                    pass

    async def agent(self) -> None:
        model = {"fake": {"script": json.dumps([{"text": "done"}])}}
        status, body = await self._ask("POST", "/api/runs", {"model": "a", "user_prompt": "Go.", "params": model})
        assert status == 202, body
        run = json.loads(body)["id"]
        await self._ask("GET", f"/api/runs/{run}/events")
        status, body = await self._ask("GET", f"/api/runs/{run}/result")
        assert status == 200, body
        self.asked += 1

    async def conversation(self) -> None:
        self._number += 1
        path = f"/api/conversations/s{self._number}"
        for method, rest, body in (
            ("PUT", "", {"settings": {"model": "a"}}),
            ("PUT", f"/messages/q{self._number}", {"id": f"q{self._number}", "role": "user", "content": "x" * 500}),
            ("GET", "", None),
            ("DELETE", "", None),
        ):
            status, answer = await self._ask(method, path + rest, body)
            assert status in (200, 204), (method, status, answer)

    async def reload(self) -> None:
        """Another model comes or goes; those in use stay as they are."""
        self._number += 1
        self._write(self._number % 3)
        status, body = await self._ask("POST", "/api/config/reload", {})
        assert status == 200 or b"is being read at this moment" in body, body

    async def pull(self) -> None:
        """A download; half of them are left before they are whole."""
        status, body = await self._ask("POST", "/models", {"model": f"{REPO}:Q8_0"}, port=self._puller)
        assert status == 200 or b"exists" in body or b"already" in body or b"under way" in body, body
        await trio.sleep(self._chance.random() * 2)
        status, body = await self._ask("DELETE", f"/models?model={REPO}:Q8_0", port=self._puller)
        assert status in (200, 404), body  # another client was faster

    async def lists(self) -> None:
        for path in ("/v1/models", "/running", "/health", "/metrics", "/api/metrics/activity", "/api/performance"):
            status, body = await self._ask("GET", path)
            assert status == 200, body

    # ---- how ---------------------------------------------------------------------------------------------------------

    def _chat(self, *, stream: bool = False, **fake: Any) -> dict[str, object]:
        question = {"messages": [{"role": "user", "content": "x"}], "stream": stream, "fake": fake}
        return {"model": self._chance.choice(MODELS), **question}

    async def _sent(
        self, method: str, path: str, body: object = None, headers: str = "", port: int = 0
    ) -> trio.SocketStream:
        sent = b"" if body is None else json.dumps(body).encode()
        port = port or self._port
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n{headers}"
        head += f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(head.encode() + sent)
        return stream

    async def _ask(self, method: str, path: str, body: object = None, port: int = 0) -> tuple[int, bytes]:
        received = bytearray()
        async with await self._sent(method, path, body, port=port) as stream:
            async for chunk in stream:
                received += chunk
        top, _, rest = bytes(received).partition(b"\r\n\r\n")
        chunked = b"transfer-encoding: chunked" in top.lower()
        return int(top.split(b" ", 2)[1]), dechunk(rest) if chunked else rest

    async def _part(self, path: str, body: object, pieces: int, headers: str = "") -> bytes:
        """Some pieces of the answer's body as they came; then the client is gone."""
        received = b""
        async with await self._sent("POST", path, body, headers) as stream:
            while b"data: " not in received:
                more = await stream.receive_some(4096)
                assert more, received
                received += more
            for _ in range(pieces):
                received += await stream.receive_some(4096)
        return received.partition(b"\r\n\r\n")[2]


def configuration(tmp_path: Path, fake_engine: Path, fake_model: Path, **top: object) -> Callable[[int], str]:
    """What writes it, with so many models that nobody uses."""
    file = ConfigFile(tmp_path / "config.yaml", fake_engine, "--model", fake_model, "--log-lines", "300")

    def write(extra: int) -> str:
        models = {name: () for name in (*MODELS, *(f"extra{each}" for each in range(extra)))}
        return file.write(
            models,
            modelsMax=2,
            streams={"path": str(tmp_path / "streams")},
            # Runs wait for each other, so none is refused. What is kept fills within minutes, logs too: a store that
            # fills for an hour looks like a leak.
            runs={"slots": 1, "queue": BESIDE, "keepMax": 20},
            captureBuffer=1,
            metricsMaxInMemory=200,
            performance={"every": "60s"},
            logToStdout="none",
            **top,
        )

    return write


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="descriptors and memory as Linux counts them")
async def test_all_owners_at_once(
    start_server: StartServer, fake_engine: Path, fake_model: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seconds = request.config.getoption("--soak") * 60.0 or (SHORT if request.config.getoption("--all") else SHORTEST)
    seed = random.randrange(1 << 30)
    write = configuration(tmp_path, fake_engine, fake_model)
    tasks, path = tmp_path / "tasks", tmp_path / "watch"
    path.mkdir()
    (path / "sitecustomize.py").write_text(Path(__file__).with_name("watch_tasks.py").read_text())
    write_model(tmp_path / "hub" / REPO / "tiny-Q8_0.gguf", weights=200_000)
    with fake_hub(tmp_path / "hub") as hub:
        hub.behave(rate=1_000_000)
        hub_at = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(path)}
        server = start_server("serve", *ANY_PORT, "--config", write(1), env={**hub_at, "TASKS_FILE": str(tasks)})
        other = start_server("serve", *ANY_PORT, "--no-starter", env={**hub_at, "TASKS_FILE": f"{tasks}-other"})
        clients = Clients(server.port, other.port, write, random.Random(seed))
        for kind in dict.fromkeys(clients.kinds):
            await clients.one(kind)
        await quiet(server)
        watched = [Watched(server, tasks), Watched(other, Path(f"{tasks}-other"))]
        await trio.sleep(2)  # what the clients have begun is over
        starts = [each.look() for each in watched]
        end = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            for each in watched:
                nursery.start_soon(each.sample, max(0.5, seconds / 500))
            async with trio.open_nursery() as working:
                for _ in range(BESIDE):
                    working.start_soon(clients.work, end, PAUSE)
            nursery.cancel_scope.cancel()
        told = f"seed {seed}, {sum(clients.done.values())} uses {dict(clients.done)}"
        await quiet(server)
        print(
            f"{told}; {counted(server)} requests of models counted, {clients.asked} made; wrong: {clients.wrong[:10]}"
        )
        for each, start in zip(watched, starts, strict=True):
            await check(each, start, seconds)
        assert not clients.wrong, (len(clients.wrong), clients.wrong[:10], told)
        assert counted(server) == clients.asked, told


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sets a limit of another process")
async def test_a_disk_that_is_full_ends_nothing(
    start_server: StartServer, fake_engine: Path, fake_model: Path, tmp_path: Path
) -> None:
    """What needs no file works meanwhile, and everything works afterwards."""
    write = configuration(tmp_path, fake_engine, fake_model, store={"path": str(tmp_path / "store.db")})
    write_model(tmp_path / "hub" / REPO / "tiny-Q8_0.gguf", weights=200_000)
    with fake_hub(tmp_path / "hub") as hub:
        hub_at = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "cache")}
        servers = [
            start_server("serve", *ANY_PORT, "--config", write(1), env=hub_at),
            start_server("serve", *ANY_PORT, "--no-starter", env=hub_at),
        ]
        clients = Clients(servers[0].port, servers[1].port, write, random.Random(1))
        kinds = list(dict.fromkeys(clients.kinds))
        for kind in kinds:
            await clients.one(kind)
        assert not clients.wrong
        limits = [(psutil.Process(server.process.pid), psutil.RLIMIT_FSIZE) for server in servers]
        for process, limit in limits:
            process.rlimit(limit, (0, process.rlimit(limit)[1]))
        for kind in kinds * 2:
            await clients.one(kind)
        assert {each.partition(":")[0] for each in clients.wrong} <= {"conversation", "pull"}
        for process, limit in limits:
            process.rlimit(limit, (process.rlimit(limit)[1],) * 2)
        clients.wrong.clear()

        async def is_kept() -> bool:
            await clients.kept()
            return any((tmp_path / "streams").glob("stream-*"))

        await until(is_kept, within=60)
        for kind in kinds * 2:
            await clients.one(kind)
        assert not clients.wrong
        for server in servers:
            assert http(server, "GET", "/health").status == 200
            server.signal(signal.SIGTERM)
            assert server.wait(15) == 0, server.told()


async def check(watched: Watched, start: Sample, seconds: float) -> None:
    """All that was opened is closed, and what memory has grown is no leak."""
    back = await until(
        watched.look,
        lambda now: now.descriptors <= start.descriptors + SPARE and now.tasks <= start.tasks + SPARE,
        within=SETTLE,
        told=lambda: start,
    )
    warm = min(WARM, seconds / 3)
    later = [each for each in watched.samples if each.at >= warm]
    grown = slope(later)
    print(f"{start} to {back}; from {warm:.0f} s on {grown:+.3f} MiB a minute")
    assert back.mib < start.mib + MOST
    if seconds - warm >= LEAST:
        assert grown < SLOPE


async def quiet(server: Server) -> None:
    """Every model is unloaded, and every request over."""

    def under_way() -> float:
        text = http(server, "GET", "/metrics").body.decode()
        found = re.search(r"^llama_appliance_requests_under_way (\S+)$", text, re.M)
        return float(found[1]) if found else 99

    await until(under_way, lambda now: now <= 1, within=30)
    http(server, "POST", "/api/models/unload", {})
    await until(lambda: http(server, "GET", "/running").json()["running"], lambda left: not left, within=30)
