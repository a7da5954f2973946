"""HTTPS: the same server behind a certificate, clients that break off anywhere, and certificates that are no use."""

from __future__ import annotations

import random
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio_websocket
from http_harness import CHAT, Appliance, Client, OpenServer, chat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import PATIENCE

from appliance.errors import UsageError
from appliance.http.bytes import connection, tls
from appliance.http.bytes.tls import Certificates, load_context
from appliance.platform.tls_socket import TlsSocket

pytestmark = pytest.mark.needs("openssl")

EC = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1"


def make_certificate(folder: Path, name: str = "localhost", *, key: str = EC) -> tuple[str, str]:
    """Signed by itself; the files of the certificate and of its key."""
    folder.mkdir(parents=True, exist_ok=True)
    cert, private = folder / "cert.pem", folder / "key.pem"
    command = f"openssl req -x509 {key} -nodes -days 2 -subj /CN={name} -addext subjectAltName=DNS:{name}"
    subprocess.run([*command.split(), "-keyout", private, "-out", cert], check=True, capture_output=True)
    return str(cert), str(private)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@asynccontextmanager
async def connected(server: Appliance, certificate: str) -> AsyncGenerator[Client]:
    """A client that checks the certificate, and takes an end without close_notify for an error."""
    context = ssl.create_default_context(cafile=certificate)
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        secure = trio.SSLStream(stream, context, server_hostname="localhost")
        with trio.fail_after(3 * PATIENCE):
            await secure.do_handshake()
            client = Client(stream)
            client.stream = secure  # pyright: ignore[reportAttributeAccessIssue]
            yield client


async def test_everything_works_behind_a_certificate(open_server: OpenServer, pair: tuple[str, str]):
    async with open_server(tls=pair) as server, connected(server, pair[0]) as client:
        await client.send("GET", "/health")
        assert (await client.answer()).status == 200
        client.next_request()
        long = {**chat(tokens=3), "padding": "x" * 3_000_000}
        await client.send("POST", CHAT, long)
        assert (await client.answer()).status == 200
        client.next_request()
        await client.send("POST", CHAT, chat(stream=True, tokens=400))
        events = (await client.answer()).events
        assert len(events) >= 400
        assert events[-1] == "data: [DONE]"
        client.next_request()
        await client.send("GET", "/ui/status", headers=[("Connection", "close")])
        assert b"https://localhost/v1" in (await client.answer()).body
        assert await client.stream.receive_some(1) == b""  # and not an end without a farewell


async def test_what_is_not_tls_is_closed(open_server: OpenServer, pair: tuple[str, str]):
    """Without harm to the others; plain HTTP is told what to do."""
    async with open_server(tls=pair) as server:
        answer = await server.exchange(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"https://" in answer
        for said in (b"\x16\x03\x01\x00\x05hello", b"SSH-2.0-x\r\n", b"\0" * 70_000):
            await server.exchange(said)
        async with connected(server, pair[0]) as client:
            await client.send("GET", "/health")
            assert (await client.answer()).status == 200


async def test_a_handshake_that_is_not_finished_ends_in_time(
    open_server: OpenServer, pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.3)
    async with open_server(tls=pair) as server:
        assert await server.exchange(b"\x16\x03\x01\x02\x00\x01") == b""


async def test_the_server_ends_in_spite_of_handshakes_under_way(open_server: OpenServer, pair: tuple[str, str]):
    async with open_server(tls=pair, grace=5.0) as server, server.connect() as client:
        await client.stream.send_all(b"\x16\x03\x01\x02\x00\x01")
        await trio.sleep(0.05)
        await server.end()


async def test_a_client_without_a_place_is_told_so(open_server: OpenServer, pair: tuple[str, str]):
    async with open_server(tls=pair, clients=1) as server, await trio.open_tcp_stream("127.0.0.1", server.port):
        for _ in range(3):
            async with connected(server, pair[0]) as client:
                await client.send("GET", "/health")
                answer = await client.answer()
                assert (answer.status, answer.error["reason"], answer.header("retry-after")) == (503, "busy", "1")


async def test_old_tls_is_refused(open_server: OpenServer, pair: tuple[str, str]):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with open_server(tls=pair) as server, await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        with pytest.raises(trio.BrokenResourceError):
            await trio.SSLStream(stream, context).do_handshake()


# ---- certificates ----------------------------------------------------------------------------------------------------


def test_files_that_cannot_be_used_are_named(tmp_path: Path, pair: tuple[str, str]):
    cert, key = pair
    other = make_certificate(tmp_path / "other")
    weak = make_certificate(tmp_path / "weak", key="-newkey rsa:1024")
    text, binary, garbled, locked = (tmp_path / f"{name}.pem" for name in ("text", "binary", "garbled", "locked"))
    text.write_text("hello")
    binary.write_bytes(bytes(range(256)))
    garbled.write_text("-----BEGIN CERTIFICATE-----\nnot base64\n-----END CERTIFICATE-----\n")
    subprocess.run(["openssl", "pkey", "-in", key, "-aes128", "-passout", "pass:x", "-out", str(locked)], check=True)
    for files, words in (
        ((str(tmp_path / "no.pem"), key), ("--ssl-cert-file", "No such file")),
        ((cert, str(tmp_path / "no.pem")), ("--ssl-key-file", "No such file")),
        ((str(tmp_path), key), ("--ssl-cert-file", "directory")),
        ((str(text), key), ("--ssl-cert-file", "PEM")),
        ((str(binary), key), ("--ssl-cert-file", "PEM")),
        ((cert, str(text)), ("--ssl-key-file", "PEM")),
        ((key, cert), ("--ssl-cert-file", "PEM")),
        ((cert, other[1]), ("does not belong",)),
        ((cert, str(locked)), ("passphrase", "openssl pkey")),
        ((str(garbled), key), ("OpenSSL says",)),
        (weak, ("too short",)),
    ):
        with pytest.raises(UsageError) as caught:
            load_context(*files)
        for word in words:
            assert word in str(caught.value), (files, str(caught.value))
        assert "\n" not in str(caught.value)


def test_a_renewed_certificate_is_taken_over_and_a_broken_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    files = make_certificate(tmp_path / "live", "first.example")
    certificates = Certificates(*files)
    before = certificates.context()
    monkeypatch.setattr(tls, "RECHECK_AFTER", 0.0)
    assert certificates.context() is before
    good = Path(files[0]).read_text("utf-8")
    Path(files[0]).write_text("broken", "utf-8")
    assert certificates.context() is before
    assert "the old one stays" in caplog.text
    Path(files[0]).write_text(good + "\n", "utf-8")
    renewed = certificates.context()
    assert renewed is not before
    assert certificates.context() is renewed


# ---- the socket ------------------------------------------------------------------------------------------------------


class FarEnd:
    """An independent client on the other end of a socket pair, which reads and writes in pieces of any size."""

    def __init__(self, sock: socket.socket, certificate: str, rng: random.Random) -> None:
        self.sock = sock
        self.rng = rng
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = ssl.create_default_context(cafile=certificate).wrap_bio(
            self.incoming, self.outgoing, server_hostname="localhost"
        )
        self.heard = b""
        self.unsent = b""
        self.said_farewell = False

    def turn(self) -> None:
        with suppress(BlockingIOError):
            if data := self.sock.recv(self.rng.choice((1, 100, 5000, 100_000))):
                self.incoming.write(data)
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
            while piece := self.tls.read(1 << 20):
                self.heard += piece
            self.said_farewell = True
        self.unsent += self.outgoing.read()
        with suppress(BlockingIOError):
            if self.unsent:
                self.unsent = self.unsent[self.sock.send(self.unsent[: self.rng.choice((1, 50, 3000))]) :]


def receive(server: TlsSocket) -> bytes:
    try:
        return server.recv(1 << 16)
    except BlockingIOError:
        return b""


def deliver(server: TlsSocket, client: FarEnd, content: bytes) -> None:
    """From the server to the client, whole."""
    client.heard, rest = b"", memoryview(content)
    while rest:
        try:
            rest = rest[server.send(rest) :]
        except BlockingIOError:
            client.turn()
    while len(client.heard) < len(content):
        client.turn()
    assert client.heard == content


def collect(server: TlsSocket, client: FarEnd, content: bytes) -> None:
    """From the client to the server, whole."""
    client.tls.write(content)
    said = b""
    while len(said) < len(content):
        client.turn()
        said += receive(server)
    assert said == content


@contextmanager
def shaken(pair: tuple[str, str], seed: int) -> Generator[tuple[TlsSocket, FarEnd]]:
    """A server's socket with little room, and its client, behind their handshake."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        ours.setblocking(False)
        theirs.setblocking(False)
        client, server = FarEnd(theirs, pair[0], random.Random(seed)), TlsSocket(ours, load_context(*pair))
        while client.tls.version() is None:
            client.turn()
            assert receive(server) == b""
        yield server, client


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32), sizes=st.lists(st.integers(1, 200_000), min_size=1, max_size=6))
def test_what_is_sent_arrives_however_the_system_cuts_it(pair: tuple[str, str], seed: int, sizes: list[int]):
    with shaken(pair, seed) as (server, client):
        for size in sizes:
            collect(server, client, client.rng.randbytes(size))
            deliver(server, client, client.rng.randbytes(size))
        assert not client.said_farewell
        server.unwrap()
        for _ in range(100):
            client.turn()
        assert client.said_farewell


@pytest.mark.parametrize("orderly", [True, False])
def test_only_an_orderly_end_looks_complete(pair: tuple[str, str], orderly: bool):
    with shaken(pair, 0) as (server, client):
        collect(server, client, b"GET / HTTP/1.1\r\n")
        deliver(server, client, b"HTTP/1.1 200 OK\r\n")
        if orderly:
            server.unwrap()
        server.close()
        for _ in range(100):
            client.turn()
        assert client.said_farewell == orderly


def test_nothing_is_sent_before_the_handshake_or_after_the_farewell(pair: tuple[str, str]):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sock = TlsSocket(ours, load_context(*pair))
        with pytest.raises(OSError, match="no TLS connection"):
            sock.send(memoryview(b"HTTP/1.1 408 Request Timeout"))
        sock.unwrap()
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)


async def test_websockets_go_through_tls(open_server: OpenServer, pair: tuple[str, str]):
    """The other protocol on the same connection: another appliance's link, here with a client of its own."""
    async with open_server(tls=pair) as server:
        context = ssl.create_default_context(cafile=pair[0])
        url = f"wss://localhost:{server.port}/api/link"
        async with trio_websocket.open_websocket_url(url, ssl_context=context) as socket_:
            await socket_.send_message("{}")
            with trio.fail_after(PATIENCE):
                assert await socket_.get_message()
