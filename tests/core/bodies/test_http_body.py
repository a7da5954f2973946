"""Bodies: h11 is the oracle for what they hold, any cutting gives the same bytes, garbage raises BodyError alone."""

from __future__ import annotations

import h11
import pytest
from cutting import cut
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.bodies.http_message import BodyError, BodyReader, Chunked, Sized, UntilClose, body_of

CONTENT = st.binary(max_size=60)
HEADS = {
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "sized": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n",
}


def decode(body: BodyReader, pieces: list[bytes]) -> bytes:
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
    assert decode(Chunked(), cut(encode(chunks, extension, trailers), at)) == b"".join(chunks)


@given(st.lists(CONTENT, max_size=3), CONTENT, st.lists(st.integers(0, 500), max_size=8))
def test_what_follows_a_pipelined_body_is_kept(chunks: list[bytes], following: bytes, at: list[int]) -> None:
    body = Chunked(pipelined=True)
    assert decode(body, cut(encode(chunks, b"", b"") + following, at)) == b"".join(chunks)
    assert body.rest == following


SPELLING = st.sampled_from([b"%x", b"%X", b"0%x", b"+%x", b"0x%x", b" %x", b"%x ", b"%x_0", b"%x;a=b", b"%x;\n"])
OFF_BY = st.sampled_from([0, 0, 0, -4, -2, -1, 1, 2])


@given(st.lists(st.tuples(CONTENT, SPELLING, OFF_BY), max_size=4))
def test_a_whole_chunk_reads_like_its_bytes_one_by_one(chunks: list[tuple[bytes, bytes, int]]) -> None:
    """The way for pieces that are one whole chunk takes and refuses the same as the way for all others."""

    def read(pieces: list[bytes]) -> bytes | None:
        body = Chunked()
        try:
            return b"".join([body.feed(piece) for piece in pieces])
        except BodyError:
            return None

    pieces = [spelt % max(0, len(content) + off) + b"\r\n" + content + b"\r\n" for content, spelt, off in chunks]
    assert read(pieces) == read([bytes((byte,)) for byte in b"".join(pieces)])


@given(CONTENT, st.lists(st.integers(0, 500), max_size=8))
def test_lengths_cut_anywhere(content: bytes, at: list[int]) -> None:
    assert decode(Sized(len(content)), cut(content, at)) == content
    assert decode(UntilClose(), cut(content, at)) == content


def by_h11(data: bytes) -> bytes | None:
    """What h11 reads from a chunked body and its end; None when it objects."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(HEADS["chunked"] + data)
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
        content = decode(Chunked(), cut(bytes(whole), data.draw(st.lists(st.integers(0, 300), max_size=4))))
    except BodyError:
        return
    assert by_h11(bytes(whole)) in (content, None)  # h11 also objects to the spelling of trailers


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
    with pytest.raises(BodyError, match=why):
        decode(Chunked(), [data])


def test_framing_follows_the_rfc() -> None:
    def kind(method: str = "GET", status: int = 200, **headers: str) -> str:
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return type(body_of(method, status, raw)).__name__

    assert kind() == "UntilClose"
    assert kind(Content_Length="5") == "Sized"
    assert kind(Transfer_Encoding="Chunked", Content_Length="5") == "Chunked"
    assert kind("HEAD", Content_Length="5") == "Sized"
    assert body_of("HEAD", 200, [(b"Content-Length", b"5")]).complete
    assert body_of("GET", 204, []).complete
    for headers in ([(b"Content-Length", b"-1")], [(b"Content-Length", b"1"), (b"content-length", b"2")]):
        with pytest.raises(BodyError):
            body_of("GET", 200, headers)
    with pytest.raises(BodyError):
        body_of("GET", 200, [(b"Transfer-Encoding", b"gzip, chunked")])
