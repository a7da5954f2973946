"""Heads and bodies of answers: h11, as the other side, is the oracle, and nothing else is raised for garbage."""

from __future__ import annotations

import h11
import pytest
from cutting import cut
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.bodies import http_message

TOKEN = st.text("abcXYZ019-_.!~", min_size=1, max_size=8).map(str.encode)
VALUE = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12).map(str.encode)
FIELDS = st.lists(st.tuples(TOKEN.map(b"X-".__add__), VALUE), max_size=5)


@given(st.sampled_from(["GET", "POST", "DELETE"]), st.text("/abc?=&%20", min_size=1, max_size=20), FIELDS)
def test_h11_reads_what_is_written(method: str, target: str, fields: list[tuple[bytes, bytes]]) -> None:
    server = h11.Connection(h11.SERVER)
    server.receive_data(http_message.write_request(method, target, [(b"Host", b"x"), *fields]))
    request = server.next_event()
    assert (request.method.decode(), request.target.decode()) == (method, target)
    assert request.headers.raw_items() == [(b"Host", b"x"), *fields]


@given(st.integers(200, 599), FIELDS)
def test_what_h11_writes_is_read(status: int, fields: list[tuple[bytes, bytes]]) -> None:
    server = h11.Connection(h11.SERVER)
    server.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    server.next_event()
    written = server.send(h11.Response(status_code=status, headers=[*fields, (b"Content-Length", b"0")]))
    assert written is not None
    head = http_message.read_response(written)
    assert head.status == status
    assert list(head.headers)[: len(fields)] == fields


def answered(data: bytes) -> h11.Connection:
    """A client that has asked, and been told this."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    return client


def by_h11(data: bytes) -> tuple[int, list[tuple[bytes, bytes]]] | None:
    client = answered(data)
    try:
        event = client.next_event()
    except h11.RemoteProtocolError:
        return None
    if not isinstance(event, h11.Response | h11.InformationalResponse):
        return None
    return event.status_code, list(event.headers.raw_items())


@given(FIELDS, st.data())
def test_damaged_heads_are_never_read_other_than_h11_reads_them(
    fields: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    head = bytearray(b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b:  %b \r\n" % field for field in fields) + b"\r\n")
    for _ in range(data.draw(st.integers(0, 3))):
        head[data.draw(st.integers(0, len(head) - 1))] = data.draw(st.sampled_from(b"aZ0 :\t\r\n\x00\x80"))
    try:
        read = http_message.read_response(bytes(head))
    except http_message.HeadError:
        return
    assert by_h11(bytes(head)) in ((read.status, list(read.headers)), None)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\n\n",
        b"HTTP/1.1 200 OK\r\nA b: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: \x00\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n",
    ],
)
def test_what_is_not_a_head(head: bytes) -> None:
    with pytest.raises(http_message.HeadError):
        http_message.read_response(head)


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("/\r\nX: y", []),
        ("/ x", []),
        ("", []),
        ("/", [(b"A", b"b\r\nX: y")]),
        ("/", [(b"A", b"b\n")]),
        ("/", [(b"A\r", b"b")]),
    ],
)
def test_nothing_can_be_smuggled_into_a_request(target: str, fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(http_message.HeadError):
        http_message.write_request("GET", target, fields)


CONTENT = st.binary(max_size=60)


def decode(body: http_message.BodyReader, pieces: list[bytes]) -> bytes:
    content = b"".join([body.feed(piece) for piece in pieces])
    body.end()
    return content


def encode(chunks: list[bytes], extension: bytes, trailers: bytes) -> bytes:
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(c), extension, c) for c in chunks if c)
    return framed + b"0\r\n" + trailers + b"\r\n"


@given(
    st.lists(CONTENT, max_size=6),
    st.sampled_from([b"", b";a=b", b"; x"]),
    st.sampled_from([b"", b"A: b\r\n", b"A: b\r\nC: d\r\n"]),
    st.lists(st.integers(0, 500), max_size=8),
)
def test_chunks_cut_anywhere(chunks: list[bytes], extension: bytes, trailers: bytes, at: list[int]) -> None:
    assert decode(http_message.Chunked(), cut(encode(chunks, extension, trailers), at)) == b"".join(chunks)


@given(st.lists(CONTENT, max_size=3), CONTENT, st.lists(st.integers(0, 500), max_size=8))
def test_what_follows_a_pipelined_body_is_kept(chunks: list[bytes], following: bytes, at: list[int]) -> None:
    body = http_message.Chunked(pipelined=True)
    assert decode(body, cut(encode(chunks, b"", b"") + following, at)) == b"".join(chunks)
    assert body.rest == following


SPELLING = st.sampled_from([b"%x", b"%X", b"0%x", b"+%x", b"0x%x", b" %x", b"%x ", b"%x_0", b"%x;a=b", b"%x;\n"])
OFF_BY = st.sampled_from([0, 0, 0, -4, -2, -1, 1, 2])


@given(st.lists(st.tuples(CONTENT, SPELLING, OFF_BY), max_size=4))
def test_a_whole_chunk_reads_like_its_bytes_one_by_one(chunks: list[tuple[bytes, bytes, int]]) -> None:
    """The way for pieces that are one whole chunk takes and refuses the same as the way for all others."""

    def read(pieces: list[bytes]) -> bytes | None:
        body = http_message.Chunked()
        try:
            return b"".join([body.feed(piece) for piece in pieces])
        except http_message.BodyError:
            return None

    pieces = [spelt % max(0, len(content) + off) + b"\r\n" + content + b"\r\n" for content, spelt, off in chunks]
    assert read(pieces) == read([bytes((byte,)) for byte in b"".join(pieces)])


@given(CONTENT, st.lists(st.integers(0, 500), max_size=8))
def test_lengths_cut_anywhere(content: bytes, at: list[int]) -> None:
    assert decode(http_message.Sized(len(content)), cut(content, at)) == content
    assert decode(http_message.UntilClose(), cut(content, at)) == content


def body_by_h11(data: bytes) -> bytes | None:
    """What h11 reads from a chunked body and its end; None when it objects."""
    connection = answered(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data)
    connection.receive_data(b"")
    content = b""
    try:
        connection.next_event()
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                return None
            content += bytes(event.data)
        return content if not connection.trailing_data[0] else None
    except h11.RemoteProtocolError:
        return None


@given(st.lists(CONTENT, max_size=4), st.data())
def test_damaged_chunks_never_read_other_than_h11_reads_them(chunks: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(encode(chunks, b"", b""))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.sampled_from(b"0159afg;\r\n\x00 "))
    try:
        content = decode(
            http_message.Chunked(), cut(bytes(whole), data.draw(st.lists(st.integers(0, 300), max_size=4)))
        )
    except http_message.BodyError:
        return
    assert body_by_h11(bytes(whole)) in (content, None)  # h11 also objects to the spelling of trailers


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"5\r\nhel", "last chunk is missing"),
        (b"5\r\nhelloX", "longer than its size"),
        (b"-5\r\n", "no valid size"),
        (b"f" * 16 + b"\r\n", "no valid size"),
        (b"0\r\n\r\nmore", "follows its last chunk"),
        (b"5\t;a\r\nhello\r\n", "no valid size"),
        (b"5\nhello\n0\n\n", "bare CR or LF"),
        (b"5;a\rb", "bare CR or LF"),
        (b"0\r\nGET / HTTP/1.1\r\n\r\n", "not a header line"),
    ],
)
def test_why_a_body_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(http_message.BodyError, match=why):
        decode(http_message.Chunked(), [data])


def test_framing_follows_the_rfc() -> None:
    def kind(method: str = "GET", status: int = 200, **headers: str) -> str:
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return type(http_message.body_of(method, status, raw)).__name__

    assert kind() == "UntilClose"
    assert kind(Content_Length="5") == "Sized"
    assert kind(Transfer_Encoding="Chunked", Content_Length="5") == "Chunked"
    assert kind("HEAD", Content_Length="5") == "Sized"
    assert http_message.body_of("HEAD", 200, [(b"Content-Length", b"5")]).complete
    assert http_message.body_of("GET", 204, []).complete
    for headers in ([(b"Content-Length", b"-1")], [(b"Content-Length", b"1"), (b"content-length", b"2")]):
        with pytest.raises(http_message.BodyError):
            http_message.body_of("GET", 200, headers)
    with pytest.raises(http_message.BodyError):
        http_message.body_of("GET", 200, [(b"Transfer-Encoding", b"gzip, chunked")])
