"""Requests as h11 reads them and as we do, and the one list of where we are stricter."""

from __future__ import annotations

import re
from typing import NamedTuple

import h11

from appliance.core.bodies.http_message import BodyError, Chunked
from appliance.core.bodies.http_request import MAX_FIELDS, RequestError, read_request

MAX_MESSAGE = 1 << 20


class Message(NamedTuple):
    """One request with its body, and what follows it on the connection."""

    method: str
    target: bytes
    http_version: str
    headers: list[tuple[bytes, bytes]]
    keep_alive: bool
    expects: bool
    content: bytes
    rest: bytes


class Refused(NamedTuple):
    why: str


class Incomplete(NamedTuple):
    """More bytes are needed."""


Reading = Message | Refused | Incomplete


def ours(data: bytes) -> Reading:
    """The first request in ``data``, read as a connection reads it."""
    end = data.find(b"\r\n\r\n") + 4
    if end < 4:
        return Incomplete()
    try:
        head = read_request(data[:end])
        content, rest = data[end:], b""
        if head.length is None:
            body = Chunked(pipelined=True)
            content, rest = body.feed(content), b""
            if not body.complete:
                return Incomplete()
            rest = body.rest
        elif len(content) < head.length:
            return Incomplete()
        else:
            content, rest = content[: head.length], content[head.length :]
    except (RequestError, BodyError) as error:
        return Refused(str(error))
    fields = (head.method, head.target, head.http_version, head.headers, head.keep_alive, head.expects)
    return Message(*fields, content, rest)


def by_h11(data: bytes) -> Reading:
    """The same by h11. A request of HTTP/1.0 never keeps the connection there."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_MESSAGE)
    connection.receive_data(data)
    content = b""
    try:
        request = connection.next_event()
        if not isinstance(request, h11.Request):
            return Incomplete()
        expects = connection.they_are_waiting_for_100_continue
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                return Incomplete()
            content += event.data
    except h11.RemoteProtocolError as error:
        return Refused(str(error))
    rest = connection.trailing_data[0]
    connection.send(h11.Response(status_code=404, headers=[("Content-Length", "0")]))
    connection.send(h11.EndOfMessage())
    keep_alive = connection.our_state is not h11.MUST_CLOSE
    version = request.http_version.decode()
    headers = request.headers.raw_items()
    return Message(request.method.decode(), request.target, version, headers, keep_alive, expects, content, bytes(rest))


class Stricter(NamedTuple):
    """h11 reads ``example``, and we say this of it. ``shape`` finds what is wrong in the bytes themselves."""

    says: str
    shape: bytes
    example: bytes


def get(*lines: bytes, version: bytes = b"1.1", body: bytes = b"") -> bytes:
    return b"\r\n".join([b"POST / HTTP/" + version, b"Host: x", *lines, b"", body])


CHUNKS = b"Transfer-Encoding: chunked"
STRICTER = [
    # other readers take the break for a part of the value, and see one header
    Stricter("ends in a bare CR or LF", rb"(?<!\r)\n|\r(?!\n)", get(b"A: b\nContent-Length: 5") + b"hello"),
    # other readers take the second line for a header of its own (RFC 9112 section 5.2)
    Stricter("folded over several lines", rb"\n[ \t]", get(b"A: b", b" Content-Length: 5")),
    # RFC 9110 section 5.5; a reader may end the value there, or pass the character over
    Stricter("holds a control character", rb"[\x01-\x08\x0e-\x1f\x7f]", get(b"A: b\x01")),
    # readers differ in which of them counts
    Stricter(
        "more than one Content-Length",
        rb"(?is)\ncontent-length:.*\ncontent-length:",
        get(b"Content-Length: 0", b"content-length: 0"),
    ),
    # readers differ in which of them counts, and large numbers overflow somewhere
    Stricter(
        "Content-Length is not a number",
        rb"(?i)\ncontent-length:[ \t]*(?:[0-9]{16}|[0-9]+[ \t]*,)",
        get(b"Content-Length: 0, 0"),
    ),
    # the classic of request smuggling: readers differ in which of them counts (RFC 9112 section 6.1)
    Stricter(
        "both Transfer-Encoding and Content-Length",
        rb"(?is)\n(?:transfer-encoding:.*\ncontent-length:|content-length:.*\ntransfer-encoding:)",
        get(CHUNKS, b"Content-Length: 3", body=b"0\r\n\r\n"),
    ),
    # llhttp: to some readers the tab belongs to the value, so that it is another coding
    Stricter(
        "the only Transfer-Encoding understood here is chunked",
        rb"(?i)\ntransfer-encoding:[ \t]*chunked[ \t]*\t[ \t]*\r",
        get(b"Transfer-Encoding: chunked\t", body=b"0\r\n\r\n"),
    ),
    # a proxy of that version passes the header over (RFC 9112 section 6.1)
    Stricter(
        "HTTP/1.0 has no Transfer-Encoding",
        rb"(?is)HTTP/1\.0\r.*\ntransfer-encoding:",
        get(CHUNKS, version=b"1.0", body=b"0\r\n\r\n"),
    ),
    # llhttp has a list of methods; nothing here answers to another one
    Stricter(
        "is not known here",
        rb"\A(?!(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|TRACE|PATCH|CONNECT) )",
        get().replace(b"POST", b"BREW"),
    ),
    # a proxy may cut a fragment off, or take the host from the target and not from the Host header
    Stricter("the target of the request", rb"\A\S+ (?:[^/*]|\*[^ ]|\S*#)", get().replace(b"/ ", b"/a#b ")),
    # RFC 9112 section 3.2.4
    Stricter("for OPTIONS alone", rb"\A(?!OPTIONS )\S+ \* ", get().replace(b"/ ", b"* ")),
    # RFC 9112 section 3.2; readers differ in what the host is
    Stricter(
        "not a host and a port",
        rb"(?i)\nhost:[ \t]*(?![0-9a-z.-]*(?::[0-9]*)?[ \t]*\r)",
        get().replace(b": x", b": x, y"),
    ),
    # their number is bounded
    Stricter(f"more than {MAX_FIELDS} headers", rb"(?:\n[^\n]*){%d}" % MAX_FIELDS, get(*[b"A: b"] * MAX_FIELDS)),
    # the meaning of other versions is not known
    Stricter("HTTP/1.1 is spoken here", rb"\A\S+ \S+ HTTP/(?!1\.[01]\r)", get(version=b"3.0")),
    # a reader may end the number at the white space or the line at the control character; large numbers overflow
    Stricter(
        "a chunk has no valid size",
        rb"\n(?:[0-9A-Fa-f]{16}|[0-9A-Fa-f]+[ \t]|[0-9A-Fa-f]+;[^\n]*[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[^\n]*\r[^\n])",
        get(CHUNKS, body=b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
    ),
    # its length is bounded
    Stricter(
        "a line between its chunks is too long",
        rb"[^\n]{4093}",
        get(CHUNKS, body=b"0;" + b"a" * 5000 + b"\r\n\r\n"),
    ),
    # as in a head
    Stricter(
        "a trailer is not a header line",
        rb"(?s)\n0+[^\n]*\n.*(?:\n[ \t]|[\x01-\x08\x0e-\x1f\x7f]|(?<!\r)\n)",
        get(CHUNKS, body=b"0\r\nA: b\r\n folded\r\n\r\n"),
    ),
    # a proxy may move it into the head (RFC 9110 section 6.5.1)
    Stricter(
        "or is one that belongs in the head",
        rb"(?is)\n0.*\n(?:transfer-encoding|content-length|host):",
        get(CHUNKS, body=b"0\r\nContent-Length: 5\r\n\r\n"),
    ),
    # their length is bounded
    Stricter("its trailers are too long", rb"(?s).{16384}", get(CHUNKS, body=b"0\r\n" + b"A: b\r\n" * 4000 + b"\r\n")),
]
BARE_BREAKS = STRICTER[0]


def disagreement(data: bytes) -> str | None:
    """What is wrong with our reading of the first request in ``data``, measured by h11's."""
    mine, theirs = ours(data), by_h11(data)
    if isinstance(mine, Message):
        comparable = mine._replace(
            keep_alive=mine.keep_alive and mine.http_version == "1.1",
            headers=[(name, v.lower() if name.lower() == b"transfer-encoding" else v) for name, v in mine.headers],
        )
        return None if comparable == theirs else f"we read {mine}, h11 {theirs}"
    if not isinstance(theirs, Message):
        return None
    for row in STRICTER:
        said = row.says in mine.why if isinstance(mine, Refused) else row is BARE_BREAKS
        if said and re.search(row.shape, data):
            return None
    return f"h11 reads {theirs}, we say {mine}"
