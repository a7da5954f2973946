"""Heads of HTTP/1.1 requests, read strictly (RFC 9112 sections 2 to 6, RFC 9110 sections 7.2, 7.8 and 10.1.1).

A proxy may stand in front of this program, and clients may share its connections. A head that such a proxy could read
in another way than we do lets one client put a request into another's mouth, so every such head is refused, though the
RFC would let us repair some of them. llhttp reads the fields. It takes HTTP/0.9 and 2.0, several spaces in the request
line, targets with a scheme or a fragment and "gzip, chunked": `_HEAD` and `_understand` do not. A request for a
websocket (RFC 6455 section 4.2.1) is read as strictly.
"""

from __future__ import annotations

import re

from httptools import HttpParserError, HttpParserInvalidMethodError, HttpParserUpgrade, HttpRequestParser
from msgspec import Struct

from appliance.core.headers import fields
from appliance.errors import BadRequest

MAX_FIELDS = 128
"""Header lines of one request; browsers send about 20, haproxy takes 101."""
MAX_LENGTH_DIGITS = 15

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_LINE = rb"(" + _TOKEN + rb") (/[!\"$-~]*+|\*) HTTP/1\.([01])\r\n"
_VALUE = rb"[\t -~\x80-\xff]*+"
_HEAD = re.compile(_LINE + rb"(?:" + _TOKEN + rb":" + _VALUE + rb"(?<![\t ])\r\n)*+\r\n")
_PADDED = re.compile(_LINE + rb"(?:" + _TOKEN + rb":" + _VALUE + rb"\r\n)*+\r\n")
"""The same with white space behind values, which costs a second pass over them and which hardly any client sends."""
_NAME = re.compile(_TOKEN)
_FIELD = re.compile(rb"\r\n([^:\r\n]+):[\t ]*([^\r\n]*)")
_HOST = re.compile(rb"(?:\[[0-9A-Za-z:.%_~-]+\]|[0-9A-Za-z._~%!$&'()*+;=-]*)(?::[0-9]*)?")
_VERSION = re.compile(rb"HTTP/[0-9](?:\.[0-9])?")
_READ_HERE = frozenset((b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade", b"expect"))
_ONCE = (b"host", b"content-length")
VERSION = (b"Sec-WebSocket-Version", b"13")
_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
_PROTOCOL = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class RequestError(ValueError):
    """The bytes are not a request that can be answered; the text says why, ``status`` is the answer's.

    Where the request ends is unknown, so the connection has to be closed after the answer.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class HttpHead(Struct, frozen=True):
    """A request but for its body. Names keep their case; values have no white space around them."""

    method: str
    target: bytes
    """As it was sent: it begins with "/", or is "*" for OPTIONS."""
    http_version: str
    """1.0 or 1.1"""
    headers: list[tuple[bytes, bytes]]
    length: int | None
    """Bytes of the body; None when it is chunked."""
    keep_alive: bool
    upgrade: bytes
    """The protocols that the client offers to go on with, in lower case and with commas between them."""
    expects: bool
    """The client waits for 100 Continue before it sends the body."""


class _Fields:
    """The callbacks of llhttp."""

    __slots__ = ("headers",)

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))


def read_request(head: bytes) -> HttpHead:
    """``head`` is everything up to and with the empty line; the caller has bounded its size. Raises RequestError."""
    line = _HEAD.fullmatch(head) or _PADDED.fullmatch(head)
    if line is None:
        raise _fault(head)
    method, target, minor = line.groups()
    fields = _Fields()
    try:
        HttpRequestParser(fields).feed_data(head)
    except HttpParserUpgrade:
        pass  # it would stop here and leave the rest to another protocol; that is our caller's choice
    except HttpParserInvalidMethodError:
        raise RequestError(501, f"the method {method[:20].decode()} is not known here") from None
    except HttpParserError as cause:
        _understand(method, target, minor, _FIELD.findall(head))  # says it better
        raise RequestError(400, f"the request head is malformed: {cause}") from None
    headers = fields.headers
    if line.re is _PADDED:  # llhttp leaves white space behind a value
        headers = [(name, value.rstrip(b" \t")) for name, value in headers]
    return _understand(method, target, minor, headers)


def _understand(method: bytes, target: bytes, minor: bytes, headers: list[tuple[bytes, bytes]]) -> HttpHead:
    """Return the head with the framing that its fields declare. Raises RequestError on a contradiction."""
    if len(headers) > MAX_FIELDS:
        raise RequestError(431, f"the request has more than {MAX_FIELDS} headers")
    if target == b"*" and method != b"OPTIONS":
        raise RequestError(400, "the target * is for OPTIONS alone")
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        lowered = name.lower()
        if lowered in _READ_HERE:
            if lowered not in found:
                found[lowered] = value
            elif lowered in _ONCE:
                raise RequestError(400, f"the request has more than one {lowered.decode().title()} header")
            else:
                found[lowered] += b"," + value
    newer = minor == b"1"
    host = found.get(b"host")
    if host is None:
        if newer:
            raise RequestError(400, "the request has no Host header")
    elif not _HOST.fullmatch(host):
        raise RequestError(400, "the Host header is not a host and a port")
    keep_alive, upgrade, expects = newer, b"", False
    connection = found.get(b"connection")
    if connection == b"keep-alive":  # most clients send this, and it need not be taken apart
        keep_alive = True
    elif connection is not None:
        options = _options(connection)
        keep_alive = b"close" not in options and (newer or b"keep-alive" in options)
        if newer and b"upgrade" in options:
            upgrade = found.get(b"upgrade", b"").lower()
    if newer and (expect := found.get(b"expect")) is not None:
        expects = b"100-continue" in _options(expect)
    return HttpHead(
        method.decode(), target, "1.1" if newer else "1.0", headers, _length(found, newer), keep_alive, upgrade, expects
    )


def _options(value: bytes) -> list[bytes]:
    """The parts of a list that do not depend on case."""
    return [option.strip(b" \t") for option in value.lower().split(b",")]


def _length(found: dict[bytes, bytes], newer: bool) -> int | None:
    """Bytes of the body, None for a chunked one (RFC 9112 section 6.3, without its repairs)."""
    coding, length = found.get(b"transfer-encoding"), found.get(b"content-length")
    if coding is not None:
        if length is not None:
            raise RequestError(400, "the request has both Transfer-Encoding and Content-Length")
        if not newer:
            raise RequestError(400, "HTTP/1.0 has no Transfer-Encoding")
        if coding.lower() != b"chunked":
            raise RequestError(501, "the only Transfer-Encoding understood here is chunked")
        return None
    if length is None:
        return 0
    if not length.isdigit() or len(length) > MAX_LENGTH_DIGITS:
        raise RequestError(400, f"the Content-Length is not a number of at most {MAX_LENGTH_DIGITS} digits")
    return int(length)


def _fault(head: bytes) -> RequestError:
    """The first thing wrong with what `_HEAD` does not match."""
    lines = head.split(b"\r\n")
    if lines[-2:] != [b"", b""]:
        return RequestError(400, "the request head does not end with an empty line")
    if any(b"\r" in line or b"\n" in line for line in lines):
        return RequestError(400, "a line of the request head ends in a bare CR or LF")
    method, _, rest = lines[0].partition(b" ")
    _, _, version = rest.partition(b" ")
    if _VERSION.fullmatch(version) and version not in (b"HTTP/1.0", b"HTTP/1.1"):
        return RequestError(505, f"HTTP/1.1 is spoken here, not {version.decode()}")
    if not _NAME.fullmatch(method) or version not in (b"HTTP/1.0", b"HTTP/1.1"):
        return RequestError(
            400, "the request line is not a method, a target and HTTP/1.1 with single spaces between them"
        )
    if not _HEAD.fullmatch(lines[0] + b"\r\n\r\n"):
        return RequestError(
            400, "the target of the request does not begin with / or holds a character that is not allowed"
        )
    for line in lines[1:-2]:
        name, colon, _ = line.partition(b":")
        if not line:
            return RequestError(400, "something follows the empty line at the end of the request head")
        if line.startswith((b" ", b"\t")):
            return RequestError(400, "a header is folded over several lines")
        if not colon:
            return RequestError(400, "a header line has no colon")
        if not _NAME.fullmatch(name):
            return RequestError(400, "the name of a header holds a space or another character that is not allowed")
    return RequestError(400, "the value of a header holds a control character")


class UpgradeOffer(Struct, frozen=True):
    """``subprotocols`` are those that the client speaks, in the order of its preference."""

    key: bytes
    subprotocols: tuple[str, ...]

    def written(self) -> bytes:
        """The handshake with nothing in it but what has been read here: no extension, so nothing is compressed."""
        lines = [b"GET / HTTP/1.1", b"Host: localhost", b"Connection: Upgrade", b"Upgrade: websocket"]
        lines += [b"%b: %b" % VERSION, b"Sec-WebSocket-Key: " + self.key]
        if self.subprotocols:
            lines.append(b"Sec-WebSocket-Protocol: " + ", ".join(self.subprotocols).encode())
        return b"\r\n".join(lines) + b"\r\n\r\n"


def read_offer(head: HttpHead) -> UpgradeOffer:
    """``head`` asks for an upgrade to a websocket. Raises BadRequest where the rest of the handshake is wrong."""
    versions, keys = fields(head.headers, b"sec-websocket-version"), fields(head.headers, b"sec-websocket-key")
    names = fields(head.headers, b"sec-websocket-protocol")
    if head.length != 0:  # a proxy in front would take it for something else than messages
        raise BadRequest("the handshake of a websocket has no body")
    if versions != [VERSION[1]]:
        raise BadRequest("the handshake of a websocket needs the header Sec-WebSocket-Version: 13")
    if len(keys) != 1 or not _KEY.fullmatch(keys[0]):
        raise BadRequest("the handshake of a websocket needs one Sec-WebSocket-Key: 16 bytes in base64")
    subprotocols = [part.strip(" \t") for value in names for part in value.decode("latin-1").split(",")]
    if not all(_PROTOCOL.fullmatch(name) for name in subprotocols):
        raise BadRequest("the Sec-WebSocket-Protocol header is not a list of names")
    return UpgradeOffer(keys[0], tuple(subprotocols))
