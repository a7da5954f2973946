"""Heads of requests: h11 is the oracle, the only differences are `request_oracle.STRICTER`; and websockets offered."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from request_oracle import STRICTER, Message, Stricter, by_h11, disagreement, ours
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection

from appliance.core.bodies.http_request import MAX_FIELDS, RequestError, read_offer, read_request
from appliance.errors import BadRequest

LONGEST = 0.1
"""Seconds of a processor for a head of 64 KiB; the slowest takes an eighth."""
SIZE = 1 << 16

NAMES = st.text("abcXYZ019-_.!~", min_size=1, max_size=8).map(lambda text: b"X-" + text.encode())
VALUES = st.lists(
    st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_categories=["C", "Z"]), min_size=1)
)
VALUE = VALUES.map(lambda words: " ".join(words).encode("latin-1"))
SPACE = st.sampled_from([b"", b" ", b"\t", b" \t "])
TARGET = st.text("/abc?=&%20;,:@~\"'<>|\\{}^`[]()*+!$", max_size=20).map(lambda text: b"/" + text.encode())
METHOD = st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "QUERY"])


@given(METHOD, TARGET, st.sampled_from(["1.0", "1.1"]), st.lists(st.tuples(NAMES, SPACE, VALUE, SPACE), max_size=8))
def test_what_was_sent_is_read(
    method: str, target: bytes, version: str, fields: list[tuple[bytes, bytes, bytes, bytes]]
) -> None:
    lines = [b"%b:%b%b%b\r\n" % field for field in fields]
    data = b"%b %b HTTP/%b\r\nHost: a.b:80\r\n%b\r\n" % (method.encode(), target, version.encode(), b"".join(lines))
    head = read_request(data)
    assert (head.method, head.target, head.http_version) == (method, target, version)
    assert head.headers == [(b"Host", b"a.b:80"), *[(name, value) for name, _, value, _ in fields]]
    assert (head.length, head.keep_alive, head.upgrade, head.expects) == (0, version == "1.1", b"", False)
    assert disagreement(data) is None


ODD_LINES = (
    b"Content-Length: 5|Content-Length: 0|content-length:3|Content-Length: 5, 5|Content-Length: +5|Host: y"
    b"|Transfer-Encoding: chunked|transfer-encoding: Chunked|Transfer-Encoding: gzip, chunked|A: b |Host:"
    b"|Connection: close|Connection: keep-alive|Connection: Upgrade, x|Upgrade: WebSocket|Expect: 100-Continue"
    b"|A: \x01| folded|A : b|A|: b|A: \xe9|Connection: KEEP-ALIVE,close|A:\xa0|Expect: x, 100-continue|"
).split(b"|")
LINE = st.one_of(st.sampled_from(ODD_LINES), st.tuples(NAMES, VALUE).map(b": ".join))
BODIES = [b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"3\nabc\r\n0\r\n\r\n", b"5;a=b\r\nhello\r\n0\r\nA: b\r\n\r\n"]


@given(
    st.sampled_from(
        [b"GET / HTTP/1.1", b"POST /a?b HTTP/1.1", b"POST / HTTP/1.0", b"GET * HTTP/1.1", b"OPTIONS * HTTP/1.1"]
    ),
    st.sampled_from([b"Host: x", b"host:x:80", b"Host: x/y", b"Host: [::1]:80", b"A: b"]),
    st.lists(LINE, max_size=4),
    st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r"]),
    st.sampled_from(BODIES),
    st.sampled_from([b"", b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"]),
)
def test_odd_requests_are_never_read_other_than_h11_reads_them(
    line: bytes, host: bytes, lines: list[bytes], broken: bytes, body: bytes, following: bytes
) -> None:
    assert disagreement(b"\r\n".join([line, host]) + broken + b"\r\n".join([*lines, b"", body]) + following) is None


@pytest.mark.parametrize("row", STRICTER, ids=lambda row: row.says)
def test_where_we_are_stricter_than_h11(row: Stricter) -> None:
    assert isinstance(by_h11(row.example), Message)
    said = ours(row.example)
    assert row.says in said.why
    assert re.search(row.shape, row.example)


def request(*lines: bytes, first: bytes = b"POST / HTTP/1.1") -> bytes:
    return b"\r\n".join([first, *lines, b"", b""])


@pytest.mark.parametrize(
    ("head", "status", "why"),
    [
        (b"", 400, "does not end with an empty line"),
        (request(b"Host: x")[:-2], 400, "does not end with an empty line"),
        (request(b"Host: x") + request(b"Host: x"), 400, "something follows the empty line"),
        (b"\r\n\r\n", 400, "request line"),
        (request(first=b"GET / HTTP/1.10"), 400, "request line"),
        (request(first=b"GET  / HTTP/1.1"), 400, "request line"),
        (request(first=b"G(T / HTTP/1.1"), 400, "request line"),
        (request(first=b"PRI * HTTP/2.0"), 505, "HTTP/1.1 is spoken here, not HTTP/2.0"),
        (request(b"Content-Length: 5", first=b"PRI / HTTP/1.0"), 400, "malformed"),
        (request(b"Host: x", first=b"BREW / HTTP/1.1"), 501, "BREW"),
        (request(b"Host: x", first=b"GET http://x/ HTTP/1.1"), 400, "target"),
        (request(b"Host: x", first=b"CONNECT x:80 HTTP/1.1"), 400, "target"),
        (request(b"Host: x", first=b"GET /\xe9 HTTP/1.1"), 400, "target"),
        (request(b"Host: x", first=b"GET /\x7f HTTP/1.1"), 400, "target"),
        (request(), 400, "no Host"),
        (request(b"Host: x", b"host: x"), 400, "more than one Host"),
        (request(b"Host: x", b"host: x", first=b"GET / HTTP/1.0"), 400, "more than one Host"),
        (request(b"Host: x", b"A : b"), 400, "name of a header"),
        (request(b"Host: x", b": b"), 400, "name of a header"),
        (request(b"Host: x", b"A\xe9: b"), 400, "name of a header"),
        (request(b"Host: x", b"A"), 400, "no colon"),
        (request(b"Host: x", b"A: b", b"\tc"), 400, "folded"),
        (request(b"Host: x", b"Transfer-Encoding: gzip"), 501, "chunked"),
        (request(b"Host: x", b"Transfer-Encoding: gzip, chunked"), 501, "chunked"),
        (request(b"Host: x", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 501, "chunked"),
        (request(b"Host: x", b"Transfer-Encoding:"), 501, "chunked"),
        (request(b"Host: x", b"Content-Length: +5"), 400, "Content-Length is not a number"),
        (request(b"Host: x", b"Content-Length:"), 400, "Content-Length is not a number"),
        (request(b"Host: x", *[b"A: b"] * MAX_FIELDS), 431, "more than 128 headers"),
    ],
)  # fmt: skip
def test_why_a_request_is_refused(head: bytes, status: int, why: str) -> None:
    """What `request_oracle.STRICTER` does not have."""
    with pytest.raises(RequestError, match=re.escape(why)) as refused:
        read_request(head)
    assert refused.value.status == status


def test_how_the_body_is_framed() -> None:
    assert read_request(request(b"Host: x", b"Content-Length: " + b"9" * 15)).length == 10**15 - 1
    assert read_request(request(b"Host: x", b"Content-Length: 007\t")).length == 7
    assert read_request(request(b"Host: x", b"transfer-encoding:\tChunked ")).length is None
    assert read_request(request(b"Host: x")).length == 0


@pytest.mark.parametrize(
    ("version", "options", "keep_alive", "upgrade"),
    [
        (b"1.1", [b"Connection: keep-alive"], True, b""),
        (b"1.1", [b"Connection: x, Close"], False, b""),
        (b"1.1", [b"Connection: keep-alive", b"connection: close"], False, b""),
        (b"1.0", [], False, b""),
        (b"1.0", [b"Connection: Keep-Alive"], True, b""),
        (b"1.1", [b"Connection: keep-alive, Upgrade", b"Upgrade: WebSocket"], True, b"websocket"),
        (b"1.1", [b"Connection: upgrade", b"Upgrade: h2c", b"Upgrade: WebSocket"], True, b"h2c,websocket"),
        (b"1.1", [b"Connection: upgrade"], True, b""),
        (b"1.1", [b"Upgrade: websocket"], True, b""),
        (b"1.0", [b"Connection: upgrade", b"Upgrade: websocket"], False, b""),
        (b"1.1", [b"Connection: upgrade", b"Upgrade: x", b"Content-Length: 5"], True, b"x"),
    ],
)
def test_what_becomes_of_the_connection(version: bytes, options: list[bytes], keep_alive: bool, upgrade: bytes) -> None:
    head = read_request(request(b"Host: x", *options, first=b"GET / HTTP/" + version))
    assert (head.keep_alive, head.upgrade) == (keep_alive, upgrade)


def test_only_http_1_1_waits_for_100_continue() -> None:
    assert read_request(request(b"Host: x", b"Expect: 100-Continue")).expects
    assert read_request(request(b"Host: x", b"Expect: x", b"Expect: 100-continue")).expects
    assert not read_request(request(b"Host: x", b"Expect: something")).expects
    assert not read_request(request(b"Host: x", b"Expect: 100-continue", first=b"POST / HTTP/1.0")).expects


def bloated(before: bytes, filling: bytes, after: bytes) -> bytes:
    return before + filling * ((SIZE - len(before) - len(after)) // len(filling)) + after


@pytest.mark.parametrize(
    "head",
    [
        bloated(b"GET / HTTP/1.1\r\nHost: x\r\nA: b", b" ", b"\r\n\r\n"),
        bloated(b"GET / HTTP/1.1\r\nHost: x\r\nA: ", b" ", b"\x00\r\n\r\n"),
        bloated(b"GET / HTTP/1.1\r\nHost: x\r\nA: ", b" b", b"\x00\r\n\r\n"),
        bloated(b"GET / HTTP/1.1\r\nHost: x\r\n", b"a:\r\n", b"\r\n"),
        bloated(b"GET / HTTP/1.1\r\nHost: x\r\n", b"a: \r\n", b"b\r\n\r\n"),
        bloated(b"GET / HTTP/1.1\r\nHost: ", b"x", b"@\r\n\r\n"),
        bloated(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: ", b",", b"\r\n\r\n"),
        bloated(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: ", b"1", b"\r\n\r\n"),
        bloated(b"GET /", b"/", b"# HTTP/1.1\r\nHost: x\r\n\r\n"),
        bloated(b"G", b"G", b" / HTTP/1.1\r\nHost: x\r\n\r\n"),
        bloated(b"GET", b" ", b"/ HTTP/1.1\r\nHost: x\r\n\r\n"),
        bloated(b"GET / HTTP/1.1\r\n", b"\r", b"\r\n\r\n"),
    ],
)
def test_large_heads_take_no_time(head: bytes) -> None:
    began = time.thread_time()
    try:
        read_request(head)
    except RequestError:
        pass
    assert time.thread_time() - began < LONGEST


TOKENS = st.from_regex(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", fullmatch=True)
GOOD = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


def offer(fields: str, host: str = "localhost"):
    head = f"GET /ws HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{fields}\r\n"
    return read_offer(read_request(head.encode("latin-1")))


@given(st.lists(st.lists(TOKENS, min_size=1, max_size=5), max_size=3))
def test_what_is_written_is_a_handshake_with_the_same_offer(names: list[list[str]]):
    found = offer(GOOD + "".join(f"Sec-WebSocket-Protocol: {', '.join(some)}\r\n" for some in names))
    assert list(found.subprotocols) == [name for some in names for name in some]
    server = WSConnection(ConnectionType.SERVER)
    server.receive_data(found.written())
    (event,) = server.events()
    assert list(event.subprotocols) == list(found.subprotocols)
    assert event.extensions == []
    # RFC 6455 section 1.3 has this key and the answer to it.
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in server.send(AcceptConnection())


def test_what_does_not_concern_the_handshake_does_not_get_into_it():
    fields = f"{GOOD}Sec-WebSocket-Extensions: permessage-deflate\r\nCookie: secret\r\n"
    assert offer(fields, "xn--zzzzzz99999").written() == offer(GOOD).written()


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ("", "Version: 13"),
        (GOOD.replace("13", "8"), "Version: 13"),
        (GOOD + "Sec-WebSocket-Version: 13\r\n", "Version: 13"),
        ("Sec-WebSocket-Version: 13\r\n", "Sec-WebSocket-Key"),
        (GOOD.replace("==", ""), "Sec-WebSocket-Key"),
        (GOOD.replace("dGh", "d\xe4h"), "Sec-WebSocket-Key"),
        (GOOD + GOOD.splitlines()[1] + "\r\n", "Sec-WebSocket-Key"),
        (GOOD + "Sec-WebSocket-Protocol: one,,two\r\n", "Sec-WebSocket-Protocol"),
        (GOOD + "Sec-WebSocket-Protocol: \xe4\r\n", "Sec-WebSocket-Protocol"),
        (GOOD + "Content-Length: 3\r\n", "no body"),
        (GOOD + "Transfer-Encoding: chunked\r\n", "no body"),
    ],
)
def test_what_is_wrong_is_told(fields: str, word: str):
    with pytest.raises(BadRequest, match=word):
        offer(fields)
