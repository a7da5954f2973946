"""A real server on a free port, its real fleet of fake engines, and a client."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import h11
import msgspec
import psutil
import trio
from msgspec import structs
from trio_websocket import WebSocketConnection, wrap_client_stream
from waiting import PATIENCE, until
from whole_config import WHOLE

from appliance.catalog.catalog import Catalog, Snapshot
from appliance.catalog.configuration import Files
from appliance.catalog.sources import ModelFolders
from appliance.catalog.supply import DownloadSettings
from appliance.composition import AppliancePaths
from appliance.composition import OpenAppliance as Opened
from appliance.composition import open_appliance as open_opened
from appliance.core.bodies.head import read_query
from appliance.core.config.additions import RunsConfig
from appliance.core.config.load import Loaded
from appliance.core.engine import Engine
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings, HttpSettings
from appliance.feature import Feature, ServerParts
from appliance.features import FEATURES
from appliance.features.engines.source import FoundHere
from appliance.features.streams.keys import StreamsConfig
from appliance.features.tools.box import OpenToolbox
from appliance.features.tools.feature import TOOLS, tool_parts
from appliance.fleet.chooser import Chooser
from appliance.settings import AppSettings
from appliance.traffic.request import Request
from appliance.upkeep import logging_into
from appliance.upstream.client import HttpCall

LOCAL = (("127.0.0.1", 0),)
CHAT = "/v1/chat/completions"
UPGRADE = [
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Key", f"{'A' * 22}=="),
    ("Sec-WebSocket-Version", "13"),
]


class Answer:
    """One response as it came; ``headers`` keep their case, ``cut`` says that its body broke off."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.cut = cut

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    @property
    def events(self) -> list[str]:
        """The records of an event stream, each without its end."""
        *records, rest = self.body.decode().split("\n\n")
        assert rest == "", f"the stream ends in the middle of a record: {rest!r}"
        return records


class Client:
    """One connection to the server."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.h11 = h11.Connection(h11.CLIENT)
        self._rest = b""

    async def send(
        self, method: str, target: str, body: object = None, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """One whole request, with the Host a client of this port would send unless another is given.

        A body that is not bytes is sent as JSON.
        """
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {name.lower() for name, _ in headers}
        all_headers = list(headers)
        if "host" not in given:
            all_headers.insert(0, ("Host", "localhost"))
        if content is not None and not given & {"content-length", "transfer-encoding"}:
            all_headers.append(("Content-Length", str(len(content))))
        out = self.h11.send(h11.Request(method=method, target=target, headers=all_headers)) or b""
        if content:
            out += self.h11.send(h11.Data(data=content)) or b""
        out += self.h11.send(h11.EndOfMessage()) or b""
        await self.stream.send_all(out)

    async def head(self) -> h11.Response:
        while True:
            event = await self.event()
            if isinstance(event, h11.Response):
                return event
            assert isinstance(event, h11.InformationalResponse), event

    async def event(self) -> h11.Event:
        while (event := self.h11.next_event()) is h11.NEED_DATA:
            with trio.fail_after(3 * PATIENCE):
                self.h11.receive_data(await self.stream.receive_some(1 << 16))
        assert isinstance(event, h11.Event), event
        return event

    async def data(self) -> bytes:
        """The next piece of the body, behind the head if that is still to come; b"" at its end."""
        while isinstance(event := await self.event(), h11.Response | h11.InformationalResponse):
            pass
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def record(self) -> bytes:
        """The next record of an event stream, without its end. Raises EOFError."""
        while b"\n\n" not in self._rest:
            if not (more := await self.data()):
                raise EOFError
            self._rest += more
        record, _, self._rest = self._rest.partition(b"\n\n")
        return record

    async def answer(self) -> Answer:
        head = await self.head()
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers.raw_items()]
        body, cut = b"", False
        try:
            while chunk := await self.data():
                body += chunk
        except (h11.RemoteProtocolError, trio.BrokenResourceError):
            cut = True
        return Answer(head.status_code, headers, body, cut=cut)

    async def rest(self) -> bytes:
        """The body from here to its end."""
        got = bytearray()
        while data := await self.data():
            got += data
        return bytes(got)

    async def until(self, words: bytes, count: int = 1) -> bytes:
        """The body from here to where it has had these words so often."""
        got = b""
        with trio.fail_after(3 * PATIENCE):
            while got.count(words) < count:
                data = await self.data()
                assert data, f"it ends without {words!r}: {got[-1000:]!r}"
                got += data
        return got

    async def everything(self, patience: float = 10) -> bytes:
        """Every byte until the server closes."""
        got = b""
        with trio.fail_after(patience), suppress(trio.BrokenResourceError):
            while data := await self.stream.receive_some(1 << 16):
                got += data
        return got

    def next_request(self) -> None:
        self.h11.start_next_cycle()


class Appliance:
    """The server under test. ``ended`` is set when `serve` has returned."""

    def __init__(self, port: int, opened: Opened, shutdown: trio.Event, ended: trio.Event) -> None:
        self.port = port
        self.opened = opened
        self.owners = owners = opened.owners
        self.traffic = opened.traffic
        self.fleet = owners.fleet
        self.catalog = owners.catalog
        self.shutdown = shutdown
        self.ended = ended
        self.host = "127.0.0.1"
        self.url = f"http://{self.host}:{port}"

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Client]:
        async with await trio.open_tcp_stream(self.host, self.port) as stream:
            yield Client(stream)

    @asynccontextmanager
    async def begun(
        self, body: object, target: str = CHAT, headers: Iterable[tuple[str, str]] = ()
    ) -> AsyncGenerator[Client]:
        """A connection on which this was posted, and whose answer has begun."""
        async with self.connect() as client:
            await client.send("POST", target, body, headers)
            assert (await client.head()).status_code == 200
            yield client

    @asynccontextmanager
    async def events(self, target: str) -> AsyncGenerator[Client]:
        """A connection on which this stream of events has begun."""
        async with self.connect() as client:
            await client.send("GET", target)
            head = await client.head()
            headers = {name.decode(): value.decode() for name, value in head.headers}
            assert (head.status_code, headers["content-type"]) == (200, "text/event-stream")
            assert (headers["x-accel-buffering"], headers["cache-control"]) == ("no", "no-cache")
            assert headers["transfer-encoding"] == "chunked"
            yield client

    async def ask(
        self,
        method: str,
        target: str,
        body: object = None,
        headers: Iterable[tuple[str, str]] = (),
        *,
        patience: float = 15,
    ) -> Answer:
        """One request on a connection of its own."""
        with trio.fail_after(patience):
            async with self.connect() as client:
                await client.send(method, target, body, headers)
                return await client.answer()

    async def good(self, method: str, target: str, *more: Any, **others: Any) -> Answer:
        """An answer with status 200."""
        answer = await self.ask(method, target, *more, **others)
        assert answer.status == 200, (method, target, answer.status, answer.body[:1000])
        return answer

    async def refuses(
        self, status: int, reason: str | None, method: str, target: str, *more: Any, words: str = "", **others: Any
    ) -> Answer:
        """A refusal with this status and reason, and these words in its message. None: any reason."""
        answer = await self.ask(method, target, *more, **others)
        told = (method, target, answer.status, answer.body[:1000])
        assert answer.status == status, told
        assert reason in (None, answer.error.get("reason")), told
        assert words in answer.error["message"], told
        return answer

    @asynccontextmanager
    async def asking(
        self, body: object, target: str = CHAT, *, times: int = 1, patience: float = 15
    ) -> AsyncGenerator[list[Answer]]:
        """Post this while the block runs, so often at once; when the block is left, the answers are there."""
        answers: list[Answer] = []

        async def ask() -> None:
            answers.append(await self.ask("POST", target, body, patience=patience))

        async with trio.open_nursery() as nursery:
            for _ in range(times):
                nursery.start_soon(ask)
            yield answers

    @asynccontextmanager
    async def joined(self, target: str, **options: Any) -> AsyncGenerator[WebSocketConnection]:
        """A client's websocket."""
        with trio.fail_after(PATIENCE):
            async with self.connect() as client, trio.open_nursery() as nursery:
                options["max_message_size"] = 1 << 22
                yield await wrap_client_stream(nursery, client.stream, "localhost", target, **options)
                nursery.cancel_scope.cancel()

    async def exchange(self, wire: bytes, *, patience: float = 10) -> bytes:
        """Send raw bytes; everything that comes back until the server closes."""
        async with self.connect() as client:
            with suppress(trio.BrokenResourceError):
                await client.stream.send_all(wire)
            return await client.everything(patience)

    async def rows(self) -> list[dict[str, Any]]:
        """What the activity log says, the newest first."""
        return (await self.ask("GET", "/api/metrics/activity")).json["data"]

    async def end(self) -> None:
        """Ask the server to end, and wait for it."""
        self.shutdown.set()
        with trio.fail_after(PATIENCE):
            await self.ended.wait()

    def process(self, model_id: str = "alpha") -> psutil.Process:
        """That of a model which runs."""
        pid = self.fleet.known(model_id).pid
        assert pid is not None, "without a number it would be this process"
        return psutil.Process(pid)

    def state(self, model_id: str) -> str:
        status = self.fleet.known(model_id)
        return status.state if status else "unknown"

    async def slots_busy(self, model_id: str) -> list[dict[str, Any]]:
        """The slots in which the engine itself says it is working, asked without the server.

        It has sent the last bytes of an answer before its slot is free.
        """
        async with HttpCall(self.fleet.address(model_id), "GET", "/slots") as response:
            return [slot for slot in json.loads(await response.read(1 << 20)) if slot["is_processing"]]

    async def wait_held_up(self, model_id: str) -> None:
        """Wait until the engine works on one answer alone, and gets no further with it."""
        looks: list[list[dict[str, Any]]] = []

        def stands_still(now: list[dict[str, Any]]) -> bool:
            looks.append(now)
            return len(now) == 1 and looks[-2:] == [now, now]

        await until(lambda: self.slots_busy(model_id), stands_still)

    def passed(self) -> list[int]:
        """How many bytes of its answer each request under way has got."""
        return [request.resp_bytes for request in self.traffic.inflight.snapshot()]

    async def wait_full(self) -> None:
        """Wait until a client that does not read has got all that there is room for."""
        before: list[int] = []
        with trio.fail_after(PATIENCE):
            while (now := self.passed()) != before or not any(now):
                before = now
                await trio.sleep(0.1)

    async def wait_idle(self, model_id: str) -> None:
        """Wait until the engine works on nothing and nobody leases it."""

        async def idle() -> bool:
            status = self.fleet.known(model_id)
            leased = status is not None and status.leases + status.waiting > 0
            return not leased and (self.state(model_id) != "loaded" or not await self.slots_busy(model_id))

        await until(idle)


OpenServer = Callable[..., AbstractAsyncContextManager[Appliance]]
"""`open_appliance` with the fake engine filled in."""


def chat(model: str | None = "alpha", *, stream: bool = False, **fake: object) -> dict[str, object]:
    """A chat request; keyword arguments are misbehaviour of the fake engine."""
    body: dict[str, object] = {"messages": [{"role": "user", "content": "hi"}]}
    if model is not None:
        body["model"] = model
    if stream:
        body["stream"] = True
    if fake:
        body["fake"] = fake
    return body


def request(path: str, *headers: tuple[str, str], method: str = "POST", query: str = "", client: str = "") -> Request:
    """What the program makes of a request's head."""
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    read = read_query(query.encode())
    return Request(method=method, path=path, target=path, query=read, headers=raw, http_version="1.1", client=client)


def raw_post(body: bytes, *extra: str, path: str = CHAT, version: str = "1.1", length: int | None = None) -> bytes:
    """A request as bytes, with these lines in its head; ``length`` may be another than that of the body."""
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", *extra]
    if length is not None or not any("encoding" in line for line in extra):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@asynccontextmanager
async def open_appliance(
    command: Sequence[str],
    model_file: Path,
    *,
    models: Sequence[Model] | None = None,
    http: HttpSettings | None = None,
    fleet: FleetSettings | None = None,
    config: Path | None = None,
    streams: StreamsConfig | None = None,
    downloads: DownloadSettings | None = None,
    runs: RunsConfig | None = None,
    tools: OpenToolbox | None = None,
    plugins: Sequence[Path] = (),
    chooser: Chooser | None = None,
    pool: Path | None = None,
    features: Sequence[Feature] = FEATURES,
    **settings: object,
) -> AsyncGenerator[Appliance]:
    """Serve models ``alpha`` (alias ``al``) and ``beta``, or those given, or those of the configuration file.

    ``chooser`` says which engine a model is started on, instead of ``command``.

    Plugins are there if ``plugins`` are folders of them, or the configuration names some; what they keep is beside the
    model's file. ``pool`` is the ``pool.json`` of a pool. With ``downloads``, their cache and models folder are served,
    and not these models. ``features`` are those of the program. Other keyword arguments are `HttpSettings`.
    """
    engine = Engine(name="fake", backend="cpu", version="b11434", command=tuple(command), source="the tests")
    files = Files(config=config, config_type=lambda: WHOLE) if config is not None else None
    read = files.read() if files is not None else Loaded(None, ())
    configured = read.require() if files is not None else None
    cache = downloads.cache if downloads is not None else None
    sources = ModelFolders(
        starter=None, cache=cache, models_dir=downloads.models_dir if downloads is not None else None
    )
    catalog = Catalog(sources, configured)
    if downloads is not None:
        catalog.scan()
    elif configured is None:
        catalog.snapshot = Snapshot(
            models if models is not None else [model(model_file, "alpha", "al"), model(model_file, "beta")]
        )
    http_settings = http or msgspec.convert({"listen": LOCAL, **settings}, HttpSettings)
    fleet_settings = fleet or FleetSettings(stop_timeout=2.0)
    shutdown, ended = trio.Event(), trio.Event()
    app = AppSettings(
        http=http_settings,
        fleet=fleet_settings,
        sources=sources,
        files=files,
        config=configured,
        ports=read.ports,
        plugins=tuple(plugins) if plugins or configured is not None else None,
    )
    if configured is not None and streams is not None:
        raise ValueError("streams are set in the configuration, where there is one")
    places = AppliancePaths(
        catalog=catalog,
        engines=FoundHere(lambda: [engine], model_file.parent, only=True),
        downloading=downloads or DownloadSettings(cache=model_file.parent),
        data=pool.parent if pool is not None else model_file.parent,
        defaults=structs.replace(
            WHOLE(keep_context="disk", runs=runs or RunsConfig()), streams=streams or StreamsConfig()
        ),
        chooser=chooser,
        learns=False,
        samples=False,
    )
    async with (
        open_opened(app, places, features if tools is None else with_tools(tools)) as opened,
        trio.open_nursery() as nursery,
    ):

        async def run(*, task_status: trio.TaskStatus[Sequence[tuple[str, int]]]) -> None:
            await opened.server.serve(shutdown, task_status=task_status)
            ended.set()

        with logging_into(opened.traffic.program_log):
            bound = await nursery.start(run)
            yield Appliance(bound[0][1], opened, shutdown, ended)
        shutdown.set()
        nursery.cancel_scope.cancel()


def with_tools(box: OpenToolbox) -> list[Feature]:
    """Return the features with these tools, whatever the settings switch on."""

    @asynccontextmanager
    async def open_first(_: AppSettings) -> AsyncGenerator[ServerParts]:
        yield tool_parts(box)

    return [structs.replace(each, open_first=open_first) if each is TOOLS else each for each in FEATURES]


def model(path: Path, model_id: str, *aliases: str, error: str | None = None, args: Sequence[str] = ()) -> Model:
    return Model(id=model_id, aliases=aliases, source="path", path=str(path), error=error, args=tuple(args))
