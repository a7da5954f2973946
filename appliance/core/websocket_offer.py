"""A client's request for a websocket (RFC 6455 section 4.2.1), read strictly."""

from __future__ import annotations

import re

from msgspec import Struct

from appliance.core.http_request import Head
from appliance.errors import BadRequest

VERSION = (b"Sec-WebSocket-Version", b"13")
_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Offer(Struct, frozen=True):
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


def read_offer(head: Head) -> Offer:
    """``head`` asks for an upgrade to a websocket. Raises BadRequest where the rest of the handshake is wrong."""
    versions, keys, names = (
        [value for name, value in head.headers if name.lower() == wanted]
        for wanted in (b"sec-websocket-version", b"sec-websocket-key", b"sec-websocket-protocol")
    )
    if head.length != 0:  # a proxy in front would take it for something else than messages
        raise BadRequest("the handshake of a websocket has no body")
    if versions != [VERSION[1]]:
        raise BadRequest("the handshake of a websocket needs the header Sec-WebSocket-Version: 13")
    if len(keys) != 1 or not _KEY.fullmatch(keys[0]):
        raise BadRequest("the handshake of a websocket needs one Sec-WebSocket-Key: 16 bytes in base64")
    subprotocols = [part.strip(" \t") for value in names for part in value.decode("latin-1").split(",")]
    if not all(_TOKEN.fullmatch(name) for name in subprotocols):
        raise BadRequest("the Sec-WebSocket-Protocol header is not a list of names")
    return Offer(keys[0], tuple(subprotocols))
