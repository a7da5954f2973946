"""Which handshakes of websockets are taken, and what is made of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection

from appliance.core.bodies.http_request import read_offer, read_request
from appliance.errors import BadRequest

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
