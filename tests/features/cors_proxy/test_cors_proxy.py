"""``/cors-proxy`` against real servers on loopback: what passes, what stays, and what is out of reach."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import quote

import pytest
import trio
from http_harness import Answer, Appliance, OpenServer
from waiting import until

from appliance.errors import UsageError
from appliance.features.cors_proxy import proxy
from appliance.features.cors_proxy.rules import LOOPBACK

ALLOWED = ("127.0.0.0/8",)
PREFIX = "x-llama-server-proxy-header-"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Target:
    """A server that writes down what it is asked and says what it was told to say."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked: list[bytes] = []
        self.answers: dict[str, bytes | Callable[[trio.SocketStream], Awaitable[None]]] = {}

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def head(self, number: int = -1) -> list[str]:
        return self.asked[number].partition(b"\r\n\r\n")[0].decode().split("\r\n")

    def header(self, name: str, number: int = -1) -> str | None:
        pairs = (line.partition(": ") for line in self.head(number)[1:])
        return next((value for key, _, value in pairs if key.lower() == name), None)

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            request = b""
            while b"\r\n\r\n" not in request:
                request += await stream.receive_some(1 << 16)
            self.asked.append(request)
            while len(request.partition(b"\r\n\r\n")[2]) < int(self.header("content-length") or 0):
                request += await stream.receive_some(1 << 16)
                self.asked[-1] = request
            answer = self.answers.get(self.head()[0].split()[1], OK)
            if isinstance(answer, bytes):
                await stream.send_all(answer)
            else:
                await answer(stream)


@asynccontextmanager
async def open_target(host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[Target]:
    listeners = await trio.open_tcp_listeners(port, host=host)
    target = Target(listeners[0].socket.getsockname()[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, target.serve, listeners))
        yield target
        nursery.cancel_scope.cancel()


@pytest.fixture
async def server(open_server: OpenServer) -> AsyncGenerator[Appliance]:
    async with open_server(cors_proxy=True, cors_proxy_allow=ALLOWED) as running:
        yield running


@pytest.fixture
async def target() -> AsyncGenerator[Target]:
    async with open_target() as running:
        yield running


async def ask(
    server: Appliance, url: str, *headers: tuple[str, str], method: str = "GET", body: bytes | None = None
) -> Answer:
    return await server.ask(method, f"/cors-proxy?url={quote(url, safe='')}", body, headers)


async def test_it_is_off_unless_switched_on(open_server: OpenServer, target: Target):
    async with open_server() as off:
        answer = await ask(off, target.url())
        assert (answer.status, answer.error["type"]) == (403, "feature_disabled")
        assert target.asked == []


async def test_only_named_headers_travel(open_server: OpenServer, target: Target):
    async with open_server(cors_proxy=True, cors_proxy_allow=ALLOWED, api_keys=("secret",)) as server:
        assert (await ask(server, target.url())).status == 401
        answer = await ask(
            server,
            target.url("/mcp?a=1&b=%20"),
            ("Authorization", "Bearer secret"),
            ("X-Api-Key", "secret"),
            ("Cookie", "session=1"),
            ("Accept", "text/html"),
            ("User-Agent", "browser"),
            ("Content-Type", "text/plain"),
            ("X-Forwarded-For", "1.2.3.4"),
            (PREFIX + "Authorization", "Bearer explicit"),
            (PREFIX.upper() + "Mcp-Session-Id", "7"),
            (PREFIX + "content-type", "application/json"),
            (PREFIX + "host", "evil.example"),
            (PREFIX + "content-length", "99"),
            (PREFIX + "transfer-encoding", "chunked"),
            (PREFIX + "connection", "upgrade"),
            (PREFIX, "nothing"),
            method="POST",
            body=b'{"jsonrpc": "2.0"}',
        )
        assert answer.json == {}
        first, *rest = target.head()
        assert first == "POST /mcp?a=1&b=%20 HTTP/1.1"
        named = {"Authorization: Bearer explicit", "Mcp-Session-Id: 7", "content-type: application/json"}
        assert {*rest} == {f"Host: 127.0.0.1:{target.port}", "Connection: close", "Content-Length: 18", *named}
        assert len(rest) == 6
        assert target.asked[0].endswith(b'\r\n\r\n{"jsonrpc": "2.0"}')


async def test_answers_are_passed_on_without_what_would_speak_for_this_server(server: Appliance, target: Target):
    target.answers["/none"] = b"HTTP/1.1 204 No Content\r\n\r\n"
    target.answers["/no"] = b"HTTP/1.1 418 Teapot\r\nContent-Length: 2\r\nWWW-Authenticate: Bearer\r\n\r\nno"
    target.answers["/page"] = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nMcp-Session-Id: 5\r\nSet-Cookie: a=b\r\nServer: x\r\n"
        b"Access-Control-Allow-Origin: http://evil.example\r\nStrict-Transport-Security: max-age=1\r\n"
        b"Content-Security-Policy: default-src *\r\nClear-Site-Data: *\r\n\r\n<script>alert(1)</script>"
    )
    assert (await ask(server, target.url("/none"))).status == 204
    refused = await ask(server, target.url("/no"))
    assert (refused.status, refused.body, refused.header("www-authenticate")) == (418, b"no", "Bearer")
    page = await ask(server, target.url("/page"))
    assert page.body == b"<script>alert(1)</script>"
    assert page.header("mcp-session-id") == "5"
    for name in ("set-cookie", "strict-transport-security", "clear-site-data", "access-control-allow-origin"):
        assert page.header(name) is None
    assert [v for k, v in page.headers if k.lower() == "content-security-policy"] == ["sandbox; default-src 'none'"]
    assert page.header("server") == "llama-appliance"
    head = await ask(server, target.url(), method="HEAD")
    assert (head.status, target.head()[0]) == (200, "HEAD / HTTP/1.1")
    assert (await ask(server, f"{server.url}/health")).json["status"] == "ok"  # it may ask its own server


async def test_streams_arrive_as_they_come_and_end_with_their_reader(server: Appliance, target: Target):
    async def events(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        await stream.send_all(b"data: 1\n\n")
        assert await stream.receive_some(1) == b""
        left.set()

    left = trio.Event()
    target.answers["/events"] = events
    async with server.connect() as client:
        await client.send("GET", f"/cors-proxy?url={quote(target.url('/events'), safe='')}")
        assert await client.data() == b"data: 1\n\n"
    await until(left.is_set)


async def test_this_machine_and_its_networks_are_out_of_reach(open_server: OpenServer):
    """`tests/features/cors_proxy/test_proxy_target.py` has every address."""
    async with open_server(cors_proxy=True) as server, open_target() as target:
        for host in ("127.0.0.1", "localhost", "[::1]", "2130706433", "0", "10.0.0.1"):
            answer = await ask(server, f"http://{host}:{target.port}/")
            assert answer.status == 403 or "host name is not known" in answer.error["message"]
        assert target.asked == []


class Resolver(trio.abc.HostnameResolver):
    """Names that mean something else each time they are asked for."""

    def __init__(self, *meanings: Sequence[str]) -> None:
        self.meanings = list(meanings)

    async def getaddrinfo(self, host, port, family=0, type=0, proto=0, flags=0):
        if not self.meanings:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, type, 6, "", (address, int(port))) for address in self.meanings.pop(0)]

    async def getnameinfo(self, sockaddr, flags):
        raise NotImplementedError


async def test_a_name_cannot_change_its_meaning_between_check_and_connection(open_server: OpenServer):
    only = partial(open_server, cors_proxy=True, cors_proxy_allow=("127.0.0.1",))
    async with only() as server, open_target() as good, open_target("127.0.0.2", good.port) as bad:
        trio.socket.set_custom_hostname_resolver(Resolver(["127.0.0.1"], ["127.0.0.2"], ["127.0.0.1", "127.0.0.2"]))
        url = f"http://rebind.example:{good.port}/"
        assert (await ask(server, url)).status == 200
        assert (len(good.asked), bad.asked) == (1, [])
        assert good.header("host") == f"rebind.example:{good.port}"
        assert (await ask(server, url)).status == 403
        assert (await ask(server, url)).status == 403  # one address of several is enough
        assert (len(good.asked), bad.asked) == (1, [])
        unknown = await ask(server, url)
        assert (unknown.status, "not known" in unknown.error["message"]) == (502, True)


async def test_the_next_address_is_tried_where_one_refuses(server: Appliance):
    async with open_target("127.0.0.3") as target:
        trio.socket.set_custom_hostname_resolver(Resolver(["127.0.0.1", "127.0.0.3"]))
        assert (await ask(server, f"http://two.example:{target.port}/")).status == 200


def moved(status: int, where: str) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode()


async def test_redirections_within_a_server_keep_what_was_said(server: Appliance, target: Target):
    target.answers |= {"/a": moved(307, "/b?x=1"), "/b?x=1": moved(303, "c")}
    told = [(PREFIX + "Authorization", "Bearer t"), (PREFIX + "Content-Type", "application/json")]
    assert (await ask(server, target.url("/a"), *told, method="POST", body=b"{}")).status == 200
    assert [target.head(n)[0].split(" HTTP")[0] for n in range(3)] == ["POST /a", "POST /b?x=1", "GET /c"]
    assert [target.header("authorization", n) for n in range(3)] == ["Bearer t"] * 3
    assert [target.header("content-type", n) for n in range(3)] == ["application/json", "application/json", None]
    assert target.asked[1].endswith(b"{}")


async def test_redirections_to_another_server_are_checked_and_told_nothing(open_server: OpenServer):
    async with (
        open_server(cors_proxy=True, cors_proxy_allow=("127.0.0.1",)) as server,
        open_target() as first,
        open_target() as second,
        open_target("127.0.0.9") as forbidden,
    ):
        first.answers |= {
            "/other": moved(308, second.url("/x")),
            "/inside": moved(302, f"http://127.0.0.9:{forbidden.port}/"),
            "/file": moved(302, "file:///etc/passwd"),
            "/loop": moved(302, "/loop"),
        }
        secret = (PREFIX + "Authorization", "Bearer t")
        accept = (PREFIX + "Accept", "text/event-stream")
        assert (await ask(server, first.url("/other"), secret, accept, method="POST", body=b"private")).status == 200
        assert (second.header("authorization"), second.header("accept")) == (None, "text/event-stream")
        assert b"private" not in second.asked[0]
        for path, status in (("/inside", 403), ("/file", 502), ("/loop", 502)):
            assert (await ask(server, first.url(path), secret)).status == status, path
        assert forbidden.asked == []
        assert len(first.asked) == 1 + 2 + (proxy.MAX_REDIRECTS + 1)


async def test_this_machine_may_be_asked_and_strangers_do_not_lead_to_it(open_server: OpenServer):
    allowed = (LOOPBACK, "far.example")
    async with open_server(cors_proxy=True, cors_proxy_allow=allowed) as server, open_target() as target:
        trio.socket.set_custom_hostname_resolver(Resolver(["127.0.0.1"], ["127.0.0.1"], ["127.0.0.1"]))
        target.answers |= {"/near": moved(307, "/"), "/home": moved(307, target.url("/secret"))}
        assert (await ask(server, target.url("/near"))).status == 200
        assert (await ask(server, f"http://rebind.example:{target.port}/")).status == 403
        assert (await ask(server, "http://10.0.0.1/")).status == 403
        asked = len(target.asked)
        assert (await ask(server, f"http://far.example:{target.port}/home")).status == 403
        assert len(target.asked) == asked + 1


async def test_addresses_that_cannot_be_asked(server: Appliance, target: Target, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proxy, "CONNECT_TIME", 0.5)
    for url, status in (
        (f"http://user:s3cret@127.0.0.1:{target.port}/", 400),
        ("http://127.0.0.1:1/", 502),
        (f"https://127.0.0.1:{target.port}/", 502),
    ):
        answer = await ask(server, url)
        assert answer.status == status, (url, answer.body)
        assert "s3cret" not in answer.error["message"]
        assert "timeouts." not in answer.error["message"]
    assert (await server.ask("GET", "/cors-proxy")).status == 400
    assert (await server.ask("PUT", f"/cors-proxy?url={target.url()}", b"")).status == 404


async def test_broken_answers_do_not_look_whole(server: Appliance, target: Target, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proxy, "MAX_ANSWER", 100_000)
    target.answers["/garbage"] = b"hello\r\n\r\n"
    target.answers["/nothing"] = b""
    target.answers["/short"] = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"
    target.answers["/long"] = b"HTTP/1.1 200 OK\r\n\r\n" + bytes(200_000)
    assert (await ask(server, target.url("/garbage"))).status == 502
    assert (await ask(server, target.url("/nothing"))).status == 502
    assert (await ask(server, target.url("/short"))).cut
    assert (await ask(server, target.url("/long"))).cut


async def test_silence_has_an_end(server: Appliance, target: Target, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proxy, "SILENCE", 0.3)

    async def silent(stream: trio.SocketStream) -> None:
        await stream.receive_some(1)

    async def half(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        for _ in range(3):
            await trio.sleep(0.2)
            await stream.send_all(b"x")
        await stream.receive_some(1)

    target.answers |= {"/silent": silent, "/half": half}
    answer = await ask(server, target.url("/silent"))
    assert (answer.status, "said nothing" in answer.error["message"]) == (502, True)
    answer = await ask(server, target.url("/half"))
    assert (answer.cut, answer.body) == (True, b"xxx")


async def test_it_works_in_single_model_mode(open_server: OpenServer, target: Target):
    async with open_server(cors_proxy=True, cors_proxy_allow=ALLOWED, single="alpha") as server:
        assert (await ask(server, target.url(), method="POST", body=b"{}")).status == 200


async def test_a_mistake_in_what_is_allowed_is_told_at_the_start(open_server: OpenServer):
    told = pytest.RaisesExc(
        UsageError, match="^--cors-proxy-allow: the proxy cannot be allowed to reach what 'http://x'"
    )
    with pytest.RaisesGroup(told, allow_unwrapped=True, flatten_subgroups=True):
        async with open_server(cors_proxy=True, cors_proxy_allow=("http://x",)):
            pytest.fail("it started")
