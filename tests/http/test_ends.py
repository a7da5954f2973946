"""A stream that ends without its own end says so: each way to end one, in each dialect, over the program's own HTTP.

What is found here is the table in docs/reliability.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import h11
import msgspec
import pytest
import trio
import trio.testing
from http_harness import CHAT, Appliance, Client, OpenServer, chat, model
from waiting import PATIENCE, until

from appliance.core.bodies.sse import Decoder
from appliance.core.config.additions import HangsConfig
from appliance.core.config.types import Config, Peer
from appliance.core.settings import FleetSettings
from appliance.features.streams.keys import StreamsConfig
from appliance.fleet import failures
from appliance.http.bytes import server as listening

DOCS = Path(__file__).parents[2] / "docs" / "reliability.md"
HI = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, tuple[str, dict[str, object]]] = {
    "chat": (CHAT, {"messages": HI}),
    "completions": ("/v1/completions", {"prompt": "hi"}),
    "`/completion`": ("/completion", {"prompt": "hi"}),
    "Responses": ("/v1/responses", {"input": "hi"}),
    "Anthropic": ("/v1/messages", {"messages": HI, "max_tokens": 1000}),
    "Ollama chat": ("/api/chat", {"messages": HI}),
    "Ollama generate": ("/api/generate", {"prompt": "hi"}),
}
READ = "read again"
IN_TASK = ("X-Appliance-Fallback", "none")


class Stream:
    """One that has begun, and what its client sees of it. A client that ``waits`` reads on when it is told to."""

    def __init__(self, dialect: str, label: str, conversation: str = "") -> None:
        self.dialect = dialect
        self.label = label
        self.conversation = conversation
        self.body = b""
        self.status = 0
        self.cut = False
        self.begun, self.goes_on, self.ended = trio.Event(), trio.Event(), trio.Event()

    async def read(self, client: Client, begins: bytes) -> None:
        try:
            self.status = (await client.head()).status_code
            while (begins not in self.body or await self.begin()) and (data := await client.data()):
                self.body += data
        except (h11.RemoteProtocolError, trio.BrokenResourceError):
            self.cut = True
        self.begun.set()
        self.ended.set()

    async def begin(self) -> bool:
        self.begun.set()
        await self.goes_on.wait()
        return True

    def seen(self) -> str:
        """What its end tells its client."""
        if self.cut or self.status != 200:
            return "cut off" if self.cut else str(self.status)
        if self.dialect.startswith("Ollama"):
            last = json.loads(self.body.splitlines()[-1])
            assert isinstance(last.get("error", ""), str)
            return "whole" if last.get("done") else "its text" if last.get("error") else "nothing"
        *others, event = Decoder().feed(self.body)
        assert all(json.loads(other.data) for other in others), "a record was passed on that is not whole"
        match self.dialect, event.name, {} if event.data == "[DONE]" else json.loads(event.data):
            case "Responses", "response.failed", {"type": "response.failed", "response": {"error": error}}:
                return f"`{'engine' if error['code'] == 'server_error' else error['code']}`"
            case "Anthropic", "error", {"type": "error", "error": error}:
                return f"`{error.get('reason', 'engine')}`"
            case (("chat" | "completions" | "`/completion`" | "Responses"), (None | "error"), {"error": error}):
                return f"`{error.get('reason', 'engine')}`"
            case _, _, {"type": "message_stop" | "response.completed" | "response.incomplete"} | {"stop": True}:
                return "whole"
            case _:
                return "whole" if event.data == "[DONE]" else "nothing"


class Way:
    """One way to end streams. ``act`` ends those that have begun; its server is opened with ``opened``."""

    def __init__(
        self,
        act: Callable[[Appliance, Sequence[Stream]], Awaitable[None]],
        *args: str,
        asked: str = "alpha",
        begins: bytes = b"upon",
        kinds: Sequence[bool] = (False, True),
        tasks: Sequence[bool] = (False, True),
        **opened: object,
    ) -> None:
        self.act, self.args, self.asked, self.begins = act, args, asked, begins
        self.kinds, self.tasks, self.opened = kinds, tasks, opened

    async def begin(self, server: Appliance, nursery: trio.Nursery) -> list[Stream]:
        """Each dialect: with an id or without, with a task of its own or without, and below /upstream/."""
        streams: list[Stream] = []

        async def ask(stream: Stream, *asked: object) -> None:
            streams.append(stream)
            async with server.connect() as client:
                await client.send(*asked)
                await stream.read(client, self.begins)

        for dialect, (path, given) in ROUTES.items():
            body = {"model": self.asked, "stream": True, **given}
            for kept in self.kinds:
                for task in self.tasks:
                    label = f"{dialect}{', kept' * kept}{', in a task' * task}"
                    headers = [("X-Conversation-Id", label)] * kept + [IN_TASK] * task
                    nursery.start_soon(ask, Stream(dialect, label, label * kept), "POST", path, body, headers)
            if False in self.kinds and self.asked == "alpha" and "Ollama" not in dialect:
                stream = Stream(dialect, f"{dialect}, below /upstream/")
                nursery.start_soon(ask, stream, "POST", f"/upstream/alpha{path}", body)
        await trio.testing.wait_all_tasks_blocked()
        for stream in tuple(streams):
            await stream.begun.wait()
            if stream.conversation:
                again = Stream(stream.dialect, f"{stream.label}, {READ}")
                nursery.start_soon(ask, again, "GET", f"/v1/stream?conv_id={quote(stream.conversation)}")
                await again.begun.wait()
        return streams


async def nothing(server: Appliance, streams: Sequence[Stream]) -> None:
    pass


async def delete(server: Appliance, streams: Sequence[Stream]) -> None:
    for stream in filter(lambda stream: stream.conversation, streams):
        await server.ask("DELETE", f"/v1/stream?conv_id={quote(stream.conversation)}")


async def replace(server: Appliance, streams: Sequence[Stream]) -> None:
    for stream in filter(lambda stream: stream.conversation, streams):
        async with server.connect() as client:
            await client.send("POST", CHAT, chat(stream=True), [("X-Conversation-Id", stream.conversation)])
            await client.head()


async def cancel(server: Appliance, streams: Sequence[Stream]) -> None:
    for request in (await server.ask("GET", "/api/inflight")).json["requests"]:
        await server.ask("POST", f"/api/inflight/{request['id']}/cancel")


async def kill(server: Appliance, streams: Sequence[Stream]) -> None:
    server.process().kill()


async def freeze(server: Appliance, streams: Sequence[Stream]) -> None:
    server.process().suspend()


async def unload(server: Appliance, streams: Sequence[Stream]) -> None:
    await server.ask("POST", "/models/unload", {"model": "alpha"})


async def shut(server: Appliance, streams: Sequence[Stream]) -> None:
    server.shutdown.set()


async def revoke(server: Appliance, streams: Sequence[Stream]) -> None:
    server.traffic.lifetime.requests.revoke(lambda _: True)


async def fall_behind(server: Appliance, streams: Sequence[Stream]) -> None:
    """More comes than a client's sockets and its ring hold."""
    hold = next(each.hold for each in server.opened.parts if each.hold is not None)(server.opened.kernel)
    for stream in filter(lambda stream: stream.conversation, streams):
        generation = hold.streams.ids.stream_of(stream.conversation)
        assert generation is not None
        padding = json.dumps({"padding": "x" * 100_000}).encode() + b"\n"
        for _ in range(80):
            generation.keep(padding if stream.dialect.startswith("Ollama") else b"data: " + padding + b"\n")
            await trio.lowlevel.checkpoint()


STALLS = ("--stall-after-tokens", "3", "--parallel", "64")
CLOSES = ("--close-after-tokens", "3", "--parallel", "64")
LONG = ("--token-size", "8600000", "--close-after-tokens", "0", "--die-mid-record", "--parallel", "64")
HANGS = FleetSettings(stop_timeout=1, hangs=HangsConfig(after=1, awaited=1, answer=1))
QUEUED = FleetSettings(models_max=1, queue_timeout=1.5)
WAYS = {
    "another request with its `X-Conversation-Id`": Way(replace, *STALLS, kinds=[True]),
    "`DELETE /v1/stream`": Way(delete, *STALLS, kinds=[True]),
    "`POST /api/inflight/ID/cancel`": Way(cancel, *STALLS),
    "its key is taken back": Way(revoke, *STALLS),
    "the engine dies, and no other is left": Way(kill, *STALLS),
    "the engine closes the connection": Way(nothing, *CLOSES),
    "... within a record": Way(nothing, *CLOSES, "--die-mid-record"),
    "... of an answer without chunks or a length": Way(nothing, *CLOSES, "--until-close"),
    "... of such an answer, within a record": Way(nothing, *CLOSES, "--until-close", "--die-mid-record"),
    "... within a record longer than 4 MiB": Way(
        nothing, *LONG, begins=b"", tasks=[False], streams=StreamsConfig(max_bytes=10_000_000, max_total=100_000_000)
    ),
    "the engine sends an error": Way(nothing, "--error-record", "3", "--parallel", "64"),
    "the engine hangs": Way(freeze, *STALLS, fleet=HANGS),
    "the peer dies": Way(kill, *STALLS, asked="p/alpha"),
    "the model is unloaded": Way(unload, *STALLS, fleet=FleetSettings(stop_timeout=0.3)),
    "it waits too long for its model": Way(nothing, asked="beta", begins=b"", fleet=QUEUED, ping_after=0.1),
    "the server ends, and the grace is over": Way(shut, *STALLS, grace=0.5),
    "the client is slower than its buffer": Way(
        fall_behind, *STALLS, kinds=[True], streams=StreamsConfig(max_bytes=150_000)
    ),
    "none of these": Way(nothing, "--until-close", "--parallel", "64"),
}
LIKE_OTHERS = {
    "... of an answer without chunks or a length",
    "... of such an answer, within a record",
    "... within a record longer than 4 MiB",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LIKE_OTHERS)) for name in WAYS]
)
async def test_every_client_sees_how_its_stream_ended(
    name: str, open_server: OpenServer, fake_model: Path, monkeypatch: pytest.MonkeyPatch
):
    """The same with a task and without, read at once or again, kept or not; and as the document says."""
    monkeypatch.setattr(failures, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(failures, "FIRST_QUESTION", 0.2)
    monkeypatch.setattr(listening, "LAST_WORDS", PATIENCE)
    way = WAYS[name]
    if way.act is freeze and sys.platform == "win32":
        pytest.skip("SIGSTOP")
    models = [model(fake_model, "alpha", args=way.args), model(fake_model, "beta")]
    with trio.fail_after(2 * PATIENCE):
        async with open_server(models=models, **way.opened) as server, trio.open_nursery() as nursery:
            await server.ask("POST", "/models/load", {"model": "alpha", "wait": True})
            if way.asked == "p/alpha":
                await be_peer(server)
            elif way.asked == "beta":
                await nursery.start(occupy, server)
            streams = await way.begin(server, nursery)
            await way.act(server, streams)
            for stream in streams:
                stream.goes_on.set()
            for stream in streams:
                await stream.ended.wait()
            nursery.cancel_scope.cancel()
    seen = {dialect: {each.seen(): each for each in streams if each.dialect == dialect} for dialect in ROUTES}
    told = {stream.label: stream.seen() for stream in streams}
    assert all(len(cells) == 1 for cells in seen.values()), json.dumps(told, indent=1)
    row = f"| {name} | {' | '.join(next(iter(cells)) for cells in seen.values())} |"
    assert row in DOCS.read_text("utf-8").splitlines()


async def occupy(server: Appliance, *, task_status: trio.TaskStatus[None]) -> None:
    """Let no other model be loaded."""
    async with server.begun(chat(stream=True, stall_after_tokens=1)):
        task_status.started()
        await trio.sleep_forever()


async def be_peer(server: Appliance) -> None:
    """The engine of ``alpha`` is the peer ``p``."""
    address = server.fleet.address("alpha")
    assert address is not None
    config = Config(peers={"p": Peer(proxy=f"http://127.0.0.1:{address.port}", api_key=address.key or "")})
    server.owners.peers.adopt(config)
    server.catalog.adopt(msgspec.structs.replace(config))
    await until(lambda: server.ask("GET", "/v1/models"), lambda answer: b"p/alpha" in answer.body)
