"""One request to one server: its address, how it is reached, through proxies too, and what is said when it breaks."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import trio
from msgspec import structs
from proxy_process import proxies
from upstream_harness import OK, answering, listening, read_request
from waiting import PATIENCE, SOON

from appliance.core.config.types import PeerTimeouts, Timeouts
from appliance.errors import UpstreamFailed, UsageError
from appliance.upstream import connect as tls
from appliance.upstream.client import Address, ConnectFailed, HttpCall, address_of, forwardable_to_peer
from appliance.upstream.connect import SocketWire, connect


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "base"),
    [
        ("http://localhost:5800", "localhost", 5800, False, ""),
        ("http://127.0.0.1:5800/", "127.0.0.1", 5800, False, ""),
        ("http://[::1]:80/", "::1", 80, False, ""),
        ("https://api.example.com/api/", "api.example.com", 443, True, "/api"),
        ("https://api.example.com:8443/a b/ü", "api.example.com", 8443, True, "/a%20b/%C3%BC"),
        ("HTTP://Host.example", "host.example", 80, False, ""),
    ],
)
def test_urls(url: str, host: str, port: int, tls: bool, base: str):
    address = address_of(url, "m")
    assert (address.host, address.port, address.tls, address.base_path) == (host, port, tls, base)


@pytest.mark.parametrize(
    ("base", "target", "joined"),
    [
        ("http://h", "/v1/models", "/v1/models"),
        ("http://h/", "/v1/models?x=%2F", "/v1/models?x=%2F"),
        ("http://h/api", "/v1/models?x=%2F", "/api/v1/models?x=%2F"),
        ("http://h/api//", "/", "/api/"),
        ("http://h/api", "", "/api"),
        ("http://h/api?version=1", "/v1/models", "/api/v1/models?version=1"),
        ("http://h?version=1", "/v1/models?x=2", "/v1/models?version=1&x=2"),
    ],
)
def test_one_slash_where_paths_meet(base: str, target: str, joined: str):
    assert address_of(base, "m").target(target) == joined


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("", "http://"),
        ("localhost:5800", "http://"),
        ("ftp://host/", "http://"),
        ("http://", "host"),
        ("http://host:0", "port 0"),
        ("http://host:99999", "not a URL"),
        ("http://host:x", "not a URL"),
        ("http://me:secret@host", "apiKey"),
        ("http://host/#top", "fragment"),
        ("http://hö.example", "punycode"),
        ("http://ho st/", "punycode"),
    ],
)
def test_what_is_no_address_is_told_with_its_owner(url: str, word: str):
    with pytest.raises(UsageError) as caught:
        address_of(url, "my-model")
    assert word in str(caught.value)
    assert "'my-model'" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_times_and_keys():
    address = address_of("http://h", "p", api_key="k", timeouts=PeerTimeouts())
    assert (address.connect_timeout, address.header_timeout, address.tls_timeout, address.keepalive) == (30, 60, 10, 30)
    assert address.key_headers == ((b"Authorization", b"Bearer k"), (b"x-api-key", b"k"))
    none = address_of("http://h", "p", timeouts=Timeouts(connect=0, keepalive=0, tls_handshake=0))
    assert (none.connect_timeout, none.header_timeout, none.tls_timeout, none.keepalive) == (None,) * 4
    assert none.key_headers == ()


def test_host_header_of_each_address():
    assert Address("127.0.0.1", 80, None, "m").authority == b"127.0.0.1:80"
    assert address_of("https://h.example", "m").authority == b"h.example"
    assert address_of("http://[::1]:99", "m").authority == b"[::1]:99"


def test_what_is_the_clients_own_stays_here():
    kept = [(b"Content-Type", b"application/json"), (b"X-Custom", b"1"), (b"User-Agent", b"x")]
    secret = [(b"Authorization", b"a"), (b"X-API-Key", b"b"), (b"Cookie", b"c"), (b"Connection", b"x"), (b"Host", b"h")]
    place = [(b"Origin", b"o"), (b"X-Forwarded-For", b"1"), (b"Forwarded", b"2"), (b"Sec-Fetch-Site", b"s")]
    assert forwardable_to_peer([*secret, *place, *kept]) == kept


async def ask(address: Address, method: str = "GET", target: str = "/", body: bytes = b"") -> bytes:
    with trio.fail_after(10):
        async with HttpCall(address, method, target, [(b"X-Mine", b"1")], body) as response:
            return await response.read(1 << 20)


async def failing(address: Address, kind: type[UpstreamFailed] = UpstreamFailed) -> str:
    with pytest.raises(kind) as caught:
        await ask(address)
    assert isinstance(caught.value, ConnectFailed) == (kind is ConnectFailed)
    assert caught.value.model == address.label
    return caught.value.why


async def test_path_query_host_and_keys_as_they_arrive():
    seen: list[bytes] = []
    async with listening(answering(OK, seen)) as port:
        peer = address_of(f"http://127.0.0.1:{port}/base/", "p", api_key="secret")
        assert await ask(peer, "POST", "/v1/x?q=%20", b"{}") == b"ok"
        child = Address("127.0.0.1", port, "child-key", "m", host_header=b"appliance.local:8080")
        assert await ask(child) == b"ok"
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /base/v1/x?q=%20 HTTP/1.1",
        b"Host: 127.0.0.1:%d" % port,
        b"Authorization: Bearer secret",
        b"x-api-key: secret",
        b"Connection: close",
        b"Content-Length: 2",
        b"X-Mine: 1",
    ]
    assert body == b"{}"
    assert b"Host: appliance.local:8080\r\nAuthorization: Bearer child-key\r\n" in seen[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_localhost_is_whichever_loopback_answers(host: str):
    async with listening(answering(OK), host=host) as port:
        began = trio.current_time()
        for name in ("localhost", "model.localhost"):
            assert await ask(address_of(f"http://{name}:{port}", "m", timeouts=None)) == b"ok"
        assert trio.current_time() - began < SOON


async def test_refused_and_unknown_hosts(free_port: Callable[[], int]):
    port = free_port()
    for host in ("127.0.0.1", "localhost", "[::1]"):
        why = await failing(address_of(f"http://{host}:{port}", "m"), ConnectFailed)
        assert "does not accept connections" in why
        assert "refused" in why.lower() or host == "[::1]"
    assert "host name is not known" in await failing(address_of("http://nowhere.invalid", "m"), ConnectFailed)


async def test_a_connection_that_is_never_made():
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())  # takes the only place; Linux lets later ones wait
        address = Address("127.0.0.1", full.getsockname()[1], None, "m", connect_timeout=0.2, header_timeout=0.2)
        why = await failing(address, ConnectFailed)
        assert "0.2 s" in why
        assert "timeouts.connect" in why


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (b"", "without an answer"),
        (b"HTTP/1.1 200 O", "middle of the head"),
        (b"SSH-2.0-x\r\n\r\n", "not HTTP"),
        (OK[:-1], "ended early"),
    ],
)
async def test_a_server_that_fails_after_it_was_reached(answer: bytes, word: str):
    async with listening(answering(answer)) as port:
        assert word in await failing(Address("127.0.0.1", port, None, "m"))


async def test_compressed_answers_pass_untouched():
    packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x00\x01"
    async with listening(answering(packed)) as port:
        address = Address("127.0.0.1", port, None, "m")
        async with HttpCall(address, "GET", "/") as response:
            assert (b"Content-Encoding", b"gzip") in response.headers
            assert await response.read(10) == b"\x1f\x8b\x00\x01"


async def test_keep_alive_probes_are_asked_of_the_system():
    async with listening(answering(OK)) as port:
        wire = await connect(Address("127.0.0.1", port, None, "m", keepalive=7))
        assert isinstance(wire, SocketWire)
        assert wire._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert wire._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 7
        wire.close()
        with pytest.raises(OSError, match="closed on this side"):
            await wire.receive()


# ---- TLS -------------------------------------------------------------------------------------------------------------


async def test_tls_to_a_trusted_server(tls_server: ssl.SSLContext, trusted: None):
    names: list[str | None] = []
    tls_server.sni_callback = lambda _socket, name, _context: names.append(name)
    async with listening(answering(OK), tls=tls_server) as port:
        assert await ask(address_of(f"https://localhost:{port}", "m")) == b"ok"
    assert names == ["localhost"]


async def test_a_certificate_that_nobody_signed(tls_server: ssl.SSLContext):
    async with listening(answering(OK), tls=tls_server) as port:
        why = await failing(address_of(f"https://localhost:{port}", "m"), ConnectFailed)
        assert "self" in why
        assert "SSL_CERT_FILE" in why


async def test_a_certificate_of_another_name(tls_server: ssl.SSLContext, trusted: None):
    async with listening(answering(OK), tls=tls_server) as port:
        why = await failing(address_of(f"https://127.0.0.1:{port}", "m"), ConnectFailed)
        assert "not trusted for '127.0.0.1'" in why


async def test_https_to_a_plain_server_and_to_a_silent_one():
    async def silent(stream: trio.abc.Stream) -> None:
        await trio.sleep_forever()

    async def plain_http(stream: trio.abc.Stream) -> None:
        await stream.receive_some(10)
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    async with listening(plain_http) as plain, listening(silent) as dumb:
        assert "is it https at all?" in await failing(address_of(f"https://localhost:{plain}", "m"), ConnectFailed)
        patient = address_of(f"https://localhost:{dumb}", "m")
        assert "tlsHandshake" in await failing(msgspec.structs.replace(patient, tls_timeout=0.2), ConnectFailed)


@pytest.mark.parametrize("secure", [False, True])
async def test_leaving_closes_the_connection_at_once(secure: bool, tls_server: ssl.SSLContext, trusted: None):
    asked, left = trio.Event(), trio.Event()

    async def serve(stream: trio.abc.Stream) -> None:
        await read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
        asked.set()
        with suppress(trio.BrokenResourceError):
            while await stream.receive_some(10):
                pass
        left.set()

    async with listening(serve, tls=tls_server if secure else None) as port:
        address = address_of(f"http{'s' if secure else ''}://localhost:{port}", "m")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, address)
            await asked.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(PATIENCE):
            await left.wait()


def test_authorities_are_found_where_the_systems_keep_them(
    monkeypatch: pytest.MonkeyPatch, certificate: Path, tmp_path: Path
):
    """As in a frozen program, whose OpenSSL knows only the paths of the machine it was built on."""
    missing = str(tmp_path / "missing")
    monkeypatch.setenv("SSL_CERT_FILE", missing)
    monkeypatch.setenv("SSL_CERT_DIR", missing)
    monkeypatch.setattr(tls, "AUTHORITIES", (missing, str(certificate)))
    tls.tls_context.cache_clear()
    try:
        assert tls.tls_context().cert_store_stats()["x509"] == 1
    finally:
        tls.tls_context.cache_clear()


async def test_an_answer_that_is_longer_than_allowed_is_not_read_to_its_end():
    async with listening(answering(OK)) as port:
        address = Address("127.0.0.1", port, None, "m")
        async with HttpCall(address, "GET", "/") as response:
            assert await response.read(2) == b"ok"
        async with HttpCall(address, "GET", "/") as response:
            with pytest.raises(UpstreamFailed, match="longer than 1 bytes"):
                await response.read(1)


USER = "me:a b@c"
QUOTED = "me:a%20b%40c"


async def ask_through(address: Address) -> bytes:
    async with HttpCall(address, "GET", "/x") as response:
        return await response.read(1 << 16)


WAYS = [
    ("http", "http", "hub.test"),
    ("socks5h", "socks", "hub.test"),
    ("socks5", "socks", "192.0.2.7"),
    ("socks5", "socks", "2001:db8::7"),
]


@pytest.mark.needs("openssl")
@pytest.mark.parametrize("user", ["", USER])
@pytest.mark.parametrize(("scheme", "kind", "host"), WAYS)
async def test_tls_goes_through_a_tunnel(
    tls_server: ssl.SSLContext,
    trusted: None,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    kind: str,
    host: str,
    user: str,
) -> None:
    async with listening(answering(OK), tls=tls_server) as port:
        with proxies("--user", user) as running:
            proof = f"{QUOTED}@" if user else ""
            monkeypatch.setenv("ALL_PROXY", f"{scheme}://{proof}127.0.0.1:{running.ports[kind]}")
            shown = f"[{host}]" if ":" in host else host
            there = structs.replace(address_of(f"https://{shown}:{port}", "hub"), tls_name="localhost")
            assert await ask_through(there) == b"ok"
            assert running.said() == ["connect" if kind == "http" else "socks", shown if kind == "http" else host, port]


@pytest.mark.parametrize("scheme", ["http", "socks5h"])
async def test_http_is_relayed_where_it_may_be(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    seen: list[bytes] = []
    async with listening(answering(OK, seen)) as port:
        with proxies("--user", USER) as running:
            kind = scheme.removesuffix("5h")
            monkeypatch.setenv("http_proxy", f"{scheme}://{QUOTED}@127.0.0.1:{running.ports[kind]}")
            assert await ask_through(address_of(f"http://hub.test:{port}/base", "hub", proxied=True)) == b"ok"
            assert running.said()[1:3] == ["hub.test", port]
            assert await ask_through(address_of(f"http://127.0.0.1:{port}/base", "hub", proxied=True)) == b"ok"
            assert address_of(f"http://hub.test:{port}", "a box").proxy is None
    assert [head.split(b"\r\n")[0] for head in seen] == [b"GET /base/x HTTP/1.1"] * 2
    assert b"Host: hub.test:%d\r\n" % port in seen[0]
    assert b"Proxy-Authorization" not in seen[1]


@pytest.mark.parametrize(
    ("words", "url", "why"),
    [
        (["--user", "a:b"], "http://a:secret@127.0.0.1:{http}", "it answered 407; it wants a user name"),
        (["--status", "502"], "http://u:secret@127.0.0.1:{http}", "it answered 502; it cannot reach"),
        (["--status", "5"], "socks5h://127.0.0.1:{socks}", "the connection was refused"),
        (["--user", "a:b"], "socks5h://127.0.0.1:{socks}", "it wants a user name"),
        (["--user", "a:b"], "socks5h://a:secret@127.0.0.1:{socks}", "does not accept the user name"),
        ([], "http://127.0.0.1:{socks}", "gives no connection"),
        ([], "socks5h://127.0.0.1:{http}", "gives no connection"),
        ([], "socks5://127.0.0.1:{socks}", "is not known here"),
        ([], "http://u:secret@127.0.0.1:1", "does not accept connections"),
        ([], "https://u:secret@127.0.0.1:1", "cannot be used: name it as http://"),
    ],
)
async def test_a_refusal_names_the_proxy_without_its_password(
    monkeypatch: pytest.MonkeyPatch, words: list[str], url: str, why: str
) -> None:
    with proxies(*words) as running:
        url = url.format(**running.ports)
        monkeypatch.setenv("HTTPS_PROXY", url)
        with pytest.raises(ConnectFailed) as caught:
            await ask_through(structs.replace(address_of("https://hub.invalid", "hub"), connect_timeout=5.0))
    said = str(caught.value)
    assert why in said
    assert f"the proxy {url.partition('://')[0]}://{url.rpartition('//')[2].rpartition('@')[2]}" in said
    assert "secret" not in said
