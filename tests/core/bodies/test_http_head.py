"""Heads: h11, as the other side, reads what we write and writes what we read."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.bodies.http_message import HeadError, read_response, write_request

TOKEN = st.text("abcXYZ019-_.!~", min_size=1, max_size=8).map(str.encode)
VALUE = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12).map(str.encode)
FIELDS = st.lists(st.tuples(TOKEN.map(b"X-".__add__), VALUE), max_size=5)


@given(st.sampled_from(["GET", "POST", "DELETE"]), st.text("/abc?=&%20", min_size=1, max_size=20), FIELDS)
def test_h11_reads_what_is_written(method: str, target: str, fields: list[tuple[bytes, bytes]]) -> None:
    server = h11.Connection(h11.SERVER)
    server.receive_data(write_request(method, target, [(b"Host", b"x"), *fields]))
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
    head = read_response(written)
    assert head.status == status
    assert list(head.headers)[: len(fields)] == fields


def by_h11(data: bytes) -> tuple[int, list[tuple[bytes, bytes]]] | None:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
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
        read = read_response(bytes(head))
    except HeadError:
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
    with pytest.raises(HeadError):
        read_response(head)


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
    with pytest.raises(HeadError):
        write_request("GET", target, fields)
