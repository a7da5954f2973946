"""The client's side of the protocol of NATS, without I/O: bytes in, events out; commands to bytes.

A connection gives what it receives to `NatsReader.receive`, and calls `NatsReader.next_event` until that returns None.
The events do not depend on how the bytes were cut. Bytes that are not NATS raise `NatsGarbage`, which ends the
connection: nobody knows where the next message would begin.

Source: docs.nats.io, "Client Protocol"; the server's limits are those of nats-server 2.15.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

MOST_LINE = 1 << 16  # Bytes of a line. Other lines are short, but INFO lists every server of a cluster.
MOST_PAYLOAD = 8 << 20  # bytes of a message with headers; the pool's own servers take 1 MB, others 64 MB at most
MESSAGE = re.compile(
    rb"(?:MSG|(?P<has_head>HMSG)) +(?P<subject>\S+)\s+(?P<sid>[0-9]{1,10})(?:\s+(?P<reply>\S+))??"
    rb"(?(has_head)\s+(?P<head>[0-9]{1,10}))\s+(?P<size>[0-9]{1,10})\s*"
)
SUBJECT = re.compile(r"[^\s.]+(?:\.[^\s.]+)*\Z")  # white space would end the subject in its command's line
VERSION = b"NATS/1.0"
PING, PONG = b"PING\r\n", b"PONG\r\n"


class NatsGarbage(Exception):
    """The other side sent something that is not NATS, or more of it than is taken."""


class ServerInfo(Struct, frozen=True, kw_only=True):
    """The server's words about itself. They come first, and again when something changes."""

    nonce: str = ""  # the text to sign with the NKey
    max_payload: int = 1 << 20
    tls_required: bool = False
    ldm: bool = False  # True if it is about to stop, and asks its clients to move to another server ("lame duck mode")


class BusMessage(Struct, frozen=True, kw_only=True):
    """A message on a subject. ``status`` is the server's own word, as ``503``; the messages of clients have none."""

    subject: str
    sid: int  # the number of the subscription that it is for
    reply: str = ""  # the subject on which an answer is waited for
    data: bytes = b""
    status: str = ""
    headers: Mapping[str, str] = {}


class ServerRefusal(Struct, frozen=True):
    """The server's words about a command that it did not accept. It often closes the connection after them."""

    words: str


Word = Literal["PING", "PONG", "+OK"]
NatsEvent = ServerInfo | BusMessage | ServerRefusal | Word
WORDS: Mapping[bytes, Word] = {b"PING": "PING", b"PONG": "PONG", b"+OK": "+OK"}


class NatsReader:
    """The receiving side of one connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0  # bytes at the buffer's beginning that hold no end of a line: a long line is searched once
        self._due: tuple[BusMessage, int, int] | None = None
        """A message whose line has come, with the bytes of its headers, and of all that is still to come."""

    def receive(self, data: bytes) -> None:
        """Take bytes that have come."""
        self._buffer += data

    def next_event(self) -> NatsEvent | None:
        """Return the next event, or None if more bytes are needed. Raises NatsGarbage."""
        if self._due is None and (line := self._line()) is not None and (event := self._understand(line)) is not None:
            return event
        return None if self._due is None else self._message(*self._due)

    def _line(self) -> bytes | None:
        # Only the first bytes are searched, so that the limit is the same however the bytes were cut.
        end = self._buffer.find(b"\r\n", self._searched, MOST_LINE + 2)
        self._searched = max(len(self._buffer) - 1, 0) if end < 0 else 0  # the last one may be half of an end
        if end < 0:
            if len(self._buffer) >= MOST_LINE + 2:
                raise NatsGarbage(f"a line is longer than {MOST_LINE} bytes")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _understand(self, line: bytes) -> NatsEvent | None:
        """Return the event of a line; None for the line of a message, whose bytes are waited for."""
        if line in WORDS:
            return WORDS[line]
        verb, _, rest = line.partition(b" ")
        if verb == b"-ERR":
            return ServerRefusal(_text(rest).strip().strip("'"))
        if verb == b"INFO":
            try:
                return msgspec.json.decode(rest, type=ServerInfo)
            except (msgspec.DecodeError, RecursionError) as cause:
                raise NatsGarbage(f"INFO cannot be read: {cause}") from None
        if (found := MESSAGE.fullmatch(line)) is None:
            raise NatsGarbage(f"it is not a command of NATS: {line[:40]!r}")
        head, size = int(found["head"] or 0), int(found["size"])
        if size > MOST_PAYLOAD or head > size or (verb == b"HMSG" and head == 0):
            raise NatsGarbage(f"a message of {size} bytes, {head} of them headers; {MOST_PAYLOAD} are taken")
        reply = _text(found["reply"] or b"")
        self._due = BusMessage(subject=_text(found["subject"]), sid=int(found["sid"]), reply=reply), head, size
        return None

    def _message(self, due: BusMessage, head: int, size: int) -> BusMessage | None:
        if len(self._buffer) < size + 2:
            return None
        if not self._buffer.startswith(b"\r\n", size):
            raise NatsGarbage("a message is longer than its line says")
        status, headers = _headers(bytes(self._buffer[:head])) if head else ("", {})
        data = bytes(self._buffer[head:size])
        del self._buffer[: size + 2]
        self._due = None
        return replace(due, data=data, status=status, headers=headers)


def _headers(block: bytes) -> tuple[str, dict[str, str]]:
    """Understand ``NATS/1.0[ status]``, lines of ``name: value``, and an empty line. The last of equal names counts."""
    first, *lines = block.split(b"\r\n")
    version, _, status = first.partition(b" ")
    if version != VERSION or lines[-2:] != [b"", b""]:
        raise NatsGarbage("the headers of a message cannot be read")
    headers: dict[str, str] = {}
    for line in lines[:-2]:
        name, colon, value = line.partition(b":")
        if not colon or not name:
            raise NatsGarbage(f"it is not a header: {line[:40]!r}")
        headers[_text(name).strip(" ")] = _text(value).strip(" ")
    return _text(status).strip()[:3], headers


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise NatsGarbage(f"it is not UTF-8: {data[:40]!r}") from None


def connect_line(login: Mapping[str, str], name: str, version: str) -> bytes:
    """Return CONNECT. ``name`` shows in the server's list; ``login``: ``nkey`` and ``sig``, or `BusAccess.login`."""
    own = {"lang": "python-trio", "name": name, "version": version, "protocol": 1}
    wishes = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
    return b"CONNECT " + msgspec.json.encode({**wishes, **own, **login}) + b"\r\n"


def publish_lines(subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = "") -> bytes:
    """Return PUB, or HPUB if there are headers. Raises ValueError for a subject or a header that breaks its line."""
    where = f"{_checked(subject)} {_checked(reply)}" if reply else _checked(subject)
    if not headers:
        return f"PUB {where} {len(data)}\r\n".encode() + data + b"\r\n"
    lines = [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header of a message on the bus holds the end of a line")
    block = "\r\n".join([VERSION.decode(), *lines, "", ""]).encode()
    return f"HPUB {where} {len(block)} {len(block) + len(data)}\r\n".encode() + block + data + b"\r\n"


def subscribe_line(subject: str, sid: int) -> bytes:
    return f"SUB {_checked(subject)} {sid}\r\n".encode()


def unsubscribe_line(sid: int) -> bytes:
    return f"UNSUB {sid}\r\n".encode()


def _checked(subject: str) -> str:
    if not SUBJECT.match(subject):
        raise ValueError(f"it cannot be a subject of the bus: {subject!r}")
    return subject
