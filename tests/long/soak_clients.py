"""Clients of the soak: each uses one part of the program, says what is wrong, and counts its requests for models."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
from config_files import CHAT
from kill_clients import records, text_of
from program import dechunk

REPO = "acme/tiny-GGUF"
MODELS = ("a", "b", "c")
EVENTS = ("/api/events", "/logs/stream", "/models/sse", "/api/conversations/events")
PATIENCE = 60.0


class Clients:
    """One after another at random, until the time is over."""

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
            with trio.fail_after(PATIENCE):
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


def hub_files(root: Path, write: Callable[..., object]) -> None:
    write(root / REPO / "tiny-Q8_0.gguf", weights=200_000)
