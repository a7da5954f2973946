"""Damaged requests and whole connections of them, read as h11 reads them or refused, each in bounded time."""

from __future__ import annotations

import random
import time

import pytest
from request_oracle import Message, disagreement, ours

STREAMS = 4_000
DEEP = 1_000_000
RUNS = 10
LONGEST = 0.1
"""Seconds of a processor for one stream of some kilobytes. The garbage collector may run within it."""
MESSAGES = 5

SEEDS = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/models?a=b&c=%20 HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nConnection: keep-alive\r\nAccept: */*\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: [::1]:80\r\nOrigin: http://a\r\nConnection: close\r\n\r\n",
    b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\nAccept:\t a , b \t\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;a=b\r\n world\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\ntransfer-encoding: Chunked\r\n\r\nA\r\n0123456789\r\n0\r\nB: c\r\nD: e\r\n\r\n"
    b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n\r\nPOST /c HTTP/1.1\r\nHost: y\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /a HTTP/1.0\r\nContent-Length: 3\r\nConnection: Keep-Alive\r\n\r\nabcGET /b HTTP/1.0\r\n\r\n",
    b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nPUT /b HTTP/1.1\r\nHost: x\r\n\r\n",
]
BYTES = [b"%c" % byte for byte in b' \t\x00\x01\x0b\x7f\x80\x85\xff:,;015a+-_#/*@"\r\n']
LINES = [
    *(b"Content-Length: 5", b"Content-Length: 0", b"Transfer-Encoding: chunked", b"Host: y", b"Host:", b" folded"),
    *(b"Transfer-Encoding: gzip", b"Connection: close", b"Connection: keep-alive", b"Expect: 100-continue", b""),
    *(b"Upgrade: h2c", b"a" * 5000, b"\r\n".join([b"A: b"] * 130)),
]
WORDS = [
    *(b"\r\n\r\n", b"\n\n", b"\r\n ", b"0x", b"chunked", b", chunked", b"identity", b"GET ", b"CONNECT ", b"PRI "),
    *(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"http://x/", b"0\r\n\r\n", b"5\r\n", b"f" * 8, b"9" * 16),
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"),
]
ONCE_FAILED = [
    b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\nExpect: 100-Continue\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n",
    b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTransfer-Encoding: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5 ;a=b\r\nhello\r\n0\r\n\r\n",
]


def damaged(chance: random.Random) -> bytes:
    """One or several seeds after each other, with one to four mistakes."""
    data = bytearray(b"".join(chance.choices(SEEDS, k=chance.choice((1, 1, 2)))))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        upto = min(len(data), at + chance.choice((0, 1, 1, 2, 8, 40)))
        match chance.randrange(8):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                del data[at:upto]
            case 2:  # twice
                data[at:at] = data[at:upto]
            case 3:  # moved
                piece = data[at:upto]
                del data[at:upto]
                to = chance.randrange(len(data) + 1)
                data[to:to] = piece
            case 4:
                data[at:upto] = data[at:upto].swapcase()
            case 5:
                at = data.find(b"\r\n", at) + 2
                data[at:at] = chance.choice(LINES) + b"\r\n"
            case 6:
                del data[at:]
                data += chance.choice(SEEDS)[chance.randrange(60) :]
            case _:
                data[at:upto] = chance.choice(chance.choice((BYTES, WORDS)))
    return bytes(data)


def examine(stream: bytes) -> int:
    """Read all requests on a connection. The number of those that were accepted; AssertionError tells of a mistake."""
    accepted = 0
    while stream and accepted < MESSAGES:
        for _ in range(2):
            stream = stream.removeprefix(b"\r\n")
        began = time.thread_time()
        read = ours(stream)
        assert time.thread_time() - began < LONGEST, stream
        assert (wrong := disagreement(stream)) is None, f"{stream!r}: {wrong}"
        if not isinstance(read, Message):
            break
        accepted += 1
        if not read.keep_alive:
            break
        stream = read.rest
    return accepted


@pytest.mark.parametrize("seed", range(RUNS))
def test_damaged_requests(seed: int, request: pytest.FixtureRequest) -> None:
    streams = (DEEP if request.config.getoption("--deep") else STREAMS) // RUNS
    chance = random.Random(seed)
    accepted = sum(examine(damaged(chance)) for _ in range(streams))
    assert streams // 4 < accepted, "most of the damage must leave something to be read"


@pytest.mark.parametrize("stream", ONCE_FAILED)
def test_what_once_failed(stream: bytes) -> None:
    examine(stream)
