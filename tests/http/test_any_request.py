"""Whatever a client sends to whatever route: no bug, no lie about the server, a connection in good order, clear words.

``--deep`` and ``--fuzz N`` send more; see `any_request` for where routes and parameters come from.
"""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import any_request
import h11
import pytest
import trio
from any_request import FORMS, JSONS, METHODS, PREDICT, TEXTS, Case, Place
from gguf_files import write_model
from http_harness import Answer, Appliance, OpenServer, model
from hub_process import fake_hub
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from slow import one_of
from swap_harness import configure
from waiting import PATIENCE
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Message, Request

import appliance.http.sockets
from appliance.catalog.supply import DownloadSettings
from appliance.core.bodies.sse import Dialect
from appliance.core.models.hub_address import HubAccess
from appliance.core.tools.choice import chosen_tools
from appliance.features.ollama.paths import BLOBS, PATHS, USER_KEYS
from appliance.features.pool import link as link_of_appliances
from appliance.features.pool.link import LINK_PATH
from appliance.features.tools.box import open_own_tools
from appliance.http.way.routes import MCP, SOCKET, TOOLS, dialect_of

FEWEST, FEW, DEEP = 50, 150, 20_000
"""Requests to each kind of server."""
BASE = "/api/conversations"
TYPED = ((b"content-type", b"application/json"),)
WORST = ("²", "1" * 23, "\0", "\ud800", "a\r\nX-Own: b", "a" * 5000)
WORST_NUMBERS = ("1e300", "1" * 23)
WORST_MEMBERS = (r'"audio/\u1234\r\nX-Own: b\u0000"',)
SLOW = {"/api/engines/prove", "/api/engines/probe"}
"""They run engines for seconds, and the only name that they take is a seat's."""
MALFORMED = re.compile("json|utf-8|nested|recursion|empty|truncated|malformed|request head|header|request line", re.I)
"""Words about a request that is no request at all: nothing in it has a name."""
SHOWN = re.compile(r"image/(png|jpeg|gif|webp)|(audio|video)/[\w.+-]+|application/octet-stream", re.ASCII)
KINDS = ("folder", "config", "single")


# ---- the client ------------------------------------------------------------------------------------------------------


def answer_of(head: h11.Response | h11.InformationalResponse, body: bytes) -> Answer:
    headers = [(name.decode(), value.decode("latin-1")) for name, value in head.headers]
    return Answer(head.status_code, headers, body, cut=False)


class Talker:
    """One connection after the other, each for as long as the server keeps it. Anything but one good answer fails."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    def ask(self, case: Case) -> Answer:
        link = self._socket = self._socket or socket.create_connection(("127.0.0.1", self._port), PATIENCE)
        link.sendall(case.wire())
        parser = h11.Connection(h11.CLIENT)
        offer = [("Connection", "Upgrade"), ("Upgrade", "websocket")] if b"upgrade" in dict(case.headers) else []
        parser.send(h11.Request(method=case.method, target="/", headers=[("Host", "a"), *offer]))
        parser.send(h11.EndOfMessage())
        head, body = None, b""
        while True:
            match parser.next_event():
                case h11.NEED_DATA:
                    parser.receive_data(link.recv(1 << 16))
                case h11.InformationalResponse(status_code=101) | h11.Response(status_code=200) as head if not (
                    any(name == b"content-length" for name, _ in head.headers)
                ):
                    self.close()  # it may go on for ever
                    return answer_of(head, b"")
                case h11.Response() as head:
                    pass
                case h11.Data(data=data):
                    body += data
                case h11.EndOfMessage():
                    break
                case other:
                    raise AssertionError(f"{case.told()}: the connection ended without an answer: {other}")
        rest = parser.trailing_data[0]
        if parser.their_state is h11.MUST_CLOSE:
            rest += link.recv(1)
            self.close()
        assert not rest, f"{case.told()}: something follows the answer: {rest!r}"
        return answer_of(head, body)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


# ---- what every answer has to be -------------------------------------------------------------------------------------


class Strange:
    """A server with its strange client."""

    def __init__(self, server: Appliance, caplog: pytest.LogCaptureFixture) -> None:
        self.port = server.port
        self.routes = any_request.all_routes(server)
        self.talker = Talker(server.port)
        self._caplog = caplog
        self._usual: dict[object, Answer] = {}
        self._settled = False

    def new_bugs(self) -> list[str]:
        """What the log says of them since this was asked last."""
        found = [record for record in self._caplog.records if record.exc_info or record.levelno >= logging.ERROR]
        told = [logging.Formatter("%(name)s: %(message)s").format(record) for record in found]
        self._caplog.clear()
        return told

    @cached_property
    def own(self) -> list[Place]:
        """What the program answers with Quart, or at its edge."""
        found = (route for route in self.routes if route.methods != METHODS and route.path not in SLOW)
        return list(any_request.places(found))

    @cached_property
    def others(self) -> list[Place]:
        return list(any_request.places(route for route in self.routes if route.methods == METHODS))

    def usual(self, place: Place, method: str, form: str) -> Answer:
        """The answer to the request in which nothing is odd."""
        key = (place.route, place.kind, method, form)
        if key not in self._usual:
            self._usual[key] = self._ask(place.case(method, form, None))
        return self._usual[key]

    def try_out(self, place: Place, method: str, form: str, value: str) -> None:
        usual, case = self.usual(place, method, form), place.case(method, form, value)
        reply = self._ask(case)
        told = f"{case.told()} -> {reply.status} {reply.body[:500]!r}"
        bugs = self.new_bugs()
        assert not bugs, f"{told}: {bugs}"
        assert reply.status < 500 or reply.status == usual.status, told
        if reply.status < 400 or method == "HEAD" or (reply.status, reply.body) == (usual.status, usual.body):
            return
        assert reply.header("content-type").startswith("application/json"), told
        message = _message(case, json.loads(reply.body), told)
        if reply.status == 400 and not MALFORMED.search(message) and case.odd not in message:
            again = self._ask(place.case(method, form, None))  # it may be what earlier requests have left behind
            assert again.status >= 400, f"{told} does not name {case.odd!r}"

    def _ask(self, case: Case) -> Answer:
        """With what is stored by it shown again."""
        theirs = case.path.startswith(BASE)
        if theirs and not self._settled:
            self._settle()
        reply = self.talker.ask(case)
        self._settled &= case.method != "DELETE"
        if theirs and case.method == "POST" and reply.status < 300 and case.path.endswith(("/import", "/attachments")):
            self._show(json.loads(reply.body))
        return reply

    def _settle(self) -> None:
        """Have the conversation and the message that requests are about."""
        self._settled = True
        written = json.dumps({"id": "q", "role": "user", "content": "hi"}).encode()
        self.talker.ask(Case("POST", f"{BASE}/c/restore".encode()))
        for path, body in ((f"{BASE}/c", b"{}"), (f"{BASE}/c/messages/q", written)):
            self.talker.ask(Case("PUT", path.encode(), TYPED, body))

    def _show(self, stored: dict[str, Any]) -> None:
        """What was stored can be shown and exported, and as nothing else than what a browser may show."""
        files = [stored["hash"]] if "hash" in stored else []
        for each in stored.get("imported", ()):
            messages = json.loads(self._get(f"{BASE}/{each}").body)["messages"]
            files += [file["hash"] for message in messages for file in message.get("attachments", ())]
            self._get(f"{BASE}/export?id={each}")
        for file in files:
            kind = self._get(f"{BASE}/attachments/{file}").header("content-type")
            assert SHOWN.fullmatch(kind), kind
        self.talker.ask(Case("DELETE", f"{BASE}?all=1".encode()))
        self._settled = False

    def _get(self, path: str) -> Answer:
        reply = self.talker.ask(Case("GET", path.encode()))
        assert reply.status == 200, (path, reply.body)
        return reply


def _message(case: Case, answer: Any, told: str) -> str:
    """What an error says in the documented form; with what is odd, if it has a ``param``."""
    path, error = case.path, answer.get("error", answer)
    if path == MCP and "jsonrpc" in answer:
        return error["message"]
    if isinstance(error, str):
        assert path in PATHS or path.startswith((BLOBS, USER_KEYS)), told
        return error
    assert error["message"], told
    assert error["type"], told
    if path != TOOLS and "reason" in error:  # else it is llama-server's
        anthropic = dialect_of(path) is Dialect.ANTHROPIC and error["reason"] != "invalid_http"
        assert answer.keys() == ({"type", "error"} if anthropic else {"error"}), told
    return f"{error['message']} {'' if error.get('param') is None else case.odd}"


Open = Callable[[str], Any]


@pytest.fixture
def strange(
    open_server: OpenServer,
    tmp_path: Path,
    fake_model: Path,
    fake_llama_server: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Open:
    """Open a server with all that can be switched on: with a folder of models and a hub, with a configuration, or with
    one model."""
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    names = ["read_file", "file_glob_search", "grep_search", "get_info"]
    chosen = chosen_tools(names, runtime="", root=str(tmp_path))
    write_model(tmp_path / "hub" / "acme" / "tiny-GGUF" / "tiny-Q8_0.gguf")
    write_model(tmp_path / "models" / "alpha.gguf")
    given_models = {"alpha": {"aliases": ["al"]}, "comfyui_auto": {}}

    @asynccontextmanager
    async def opened(kind: str) -> AsyncGenerator[Strange]:
        with fake_hub(tmp_path / "hub") as hub:
            access = HubAccess(endpoint=hub.url)
            folders = {"cache": tmp_path / "cache", "models_dir": tmp_path / "models"}
            more: dict[str, object] = {
                "folder": {"downloads": DownloadSettings(**folders, hub=access, spare=0)},
                "config": {"config": configure(tmp_path / "c.json", fake_llama_server, fake_model, given_models)},
                "single": {"single": "alpha", "models": [model(fake_model, "alpha")]},
            }[kind]
            on = {"mcp_server": True, "mcp_server_open": True, "mcp_server_tools": ("*",), "cors_proxy": True}
            async with (
                open_own_tools(chosen) as tools,
                open_server(tools=tools, cors_proxy_allow=("loopback",), predict=PREDICT, **on, **more) as server,
            ):
                found = Strange(server, caplog)
                try:
                    yield found
                finally:
                    found.talker.close()

    return opened


# ---- the tests -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_every_parameter_of_every_own_route_with_what_has_done_harm(
    strange: Open, request: pytest.FixtureRequest
):
    """In a path and a query each of it, in a body what suits the member; without ``--all`` each tenth has one."""
    everything, found = request.config.getoption("--all"), list[str]()
    async with strange("folder") as server:

        def sweep() -> None:
            for number, place in enumerate(server.own[:: 1 if everything else 10]):
                method = next(method for method in ("PUT", "POST", "GET", "DELETE") if method in place.route.methods)
                values, forms = WORST, FORMS[:1]
                if place.where == "body":
                    values = WORST_NUMBERS if isinstance(any_request.member(place), int) else WORST_MEMBERS
                    forms = [form for form in FORMS[:2] if server.usual(place, method, form).status != 400]
                tried = list(product(forms, values))
                if tried and not everything:
                    tried = [tried[number % len(tried)]]
                for form, value in tried:
                    try:
                        server.try_out(place, method, form, value)
                    except AssertionError as error:
                        found.append(str(error))

        await trio.to_thread.run_sync(sweep)
        assert len(server.own) > 500
    assert found == []


@pytest.mark.parametrize("kind", one_of(KINDS))
async def test_any_request(strange: Open, kind: str, request: pytest.FixtureRequest):
    option = request.config.getoption
    examples = option("--fuzz") or (DEEP if option("--deep") else FEW if option("--all") else FEWEST)
    async with strange(kind) as server:
        pools = [[place for place in server.own if place.where != "body"]]
        pools += [[place for place in server.own if place.where == "body"]]
        pools += [server.others]
        anywhere = [st.sampled_from(pool) for pool in pools]
        named = st.sampled_from(any_request.header_names())
        headers = st.builds(Place, st.sampled_from(server.routes), st.just("header"), named)

        @settings(max_examples=examples, database=None)
        @given(st.one_of(*anywhere, headers), st.sampled_from(FORMS), st.data())
        def send(place: Place, form: str, data: st.DataObject) -> None:
            method = data.draw(st.sampled_from(place.route.methods))
            values = JSONS if place.where == "body" and form in ("json", "list") else TEXTS
            value = data.draw(st.sampled_from(values) | st.text(max_size=8))
            if place.where == "header":  # where a head ends, another request begins, and what method it has is unknown
                assume("\r\n\r\n" not in f"{value}\r\n" and method != "HEAD")
            server.try_out(place, method, form, value)

        await trio.to_thread.run_sync(send)


@pytest.mark.slow
async def test_no_link_of_another_site_changes_anything(strange: Open, caplog: pytest.LogCaptureFixture):
    """A browser is led to every route, with every parameter that the route knows, and with a slash before or behind."""
    led = ((b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"navigate"), (b"sec-fetch-dest", b"document"))
    caplog.set_level(logging.INFO, "appliance")
    async with strange("folder") as server:
        good = Case("POST", b"/models/load", TYPED, b'{"model":"alpha","wait":true}')
        assert (await trio.to_thread.run_sync(server.talker.ask, good)).status == 200
        caplog.clear()

        def follow() -> None:
            for route in server.routes:
                if "GET" in route.methods:
                    path = Place(route, "query").case("GET", "json", None).target
                    query = "&".join(f"{name}=1" for name in (*route.names, "model=alpha&autoload")).encode()
                    for target in (path, path + b"/", b"/" + path):
                        server.talker.ask(Case("GET", target, led))
                        server.talker.ask(Case("GET", target + b"?" + query, led))

        await trio.to_thread.run_sync(follow)
        assert [record.getMessage() for record in caplog.records if record.name.startswith("appliance")] == []


@pytest.mark.parametrize("path", [SOCKET, LINK_PATH])
async def test_any_message_on_a_websocket(strange: Open, path: str):
    kinds = any_request.reads(appliance.http.sockets, link_of_appliances).kinds.values()
    ways = [(kind, way) for kind in kinds for way in any_request.ways(any_request.sample(kind))]
    async with strange("folder") as server:

        @settings(database=None)
        @given(st.lists(st.tuples(st.sampled_from(ways), st.sampled_from(JSONS)), min_size=1, max_size=6))
        def talk(messages: list[tuple[tuple[Any, tuple[str | int, ...]], str]]) -> None:
            link = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
            with link:
                peer = WSConnection(ConnectionType.CLIENT)
                link.sendall(peer.send(Request(host="localhost", target=path)))
                heard = _heard(peer, link)
                assert isinstance(next(heard), AcceptConnection)
                for (kind, way), value in messages:
                    content = any_request.in_place(any_request.sample(kind), way, value)
                    link.sendall(peer.send(Message(content.decode("utf-8", "replace"))))
                link.sendall(peer.send(CloseConnection(1000)))
                closed = next(event for event in heard if isinstance(event, CloseConnection))
                assert closed.code == 1000, closed
            assert server.new_bugs() == []

        await trio.to_thread.run_sync(talk)


def _heard(peer: WSConnection, link: socket.socket) -> Iterator[Event]:
    while True:
        peer.receive_data(link.recv(1 << 16))
        yield from peer.events()
