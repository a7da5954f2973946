"""What upstream.c and load.c do, for machines without a C compiler: `peer.py upstream --port N`, `peer.py load ...`.

Slower than the C programs, so on a busy machine it can be the bottleneck itself; the table says when it was used.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

CHUNKS = 200
INTERVAL = 0.005
STAGGER = 104e-6
RECORD = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" llama"}}],"created":1795179457,'
    b'"id":"chatcmpl-l9BuIRMK094EmZwJqpg6KK30tD3AvUzm","model":"bench","system_fingerprint":"b0-bench",'
    b'"object":"chat.completion.chunk"}\n\n'
)
ANSWER = b'{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"Hello there"}}]}'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
READY = 'cmd_child_to_router:state:{"state":"ready","payload":{"id":"bench","aliases":[],"tags":[],"object":"model"}}'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def json_response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def field(head: bytes, name: bytes) -> bytes:
    """The value of a header, in lower case; empty without it."""
    return head.lower().partition(b"\r\n" + name + b":")[2].partition(b"\r\n")[0].strip()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        closing = False
        while not closing:
            head = await reader.readuntil(b"\r\n\r\n")
            closing = field(head, b"connection") == b"close"
            body = await reader.readexactly(int(field(head, b"content-length") or b"0"))
            if head.startswith(b"GET /health"):
                writer.write(json_response(b'{"status":"ok"}'))
            elif b'"stream":true' in body.replace(b" ", b""):
                await stream(writer)
            else:
                writer.write(json_response(ANSWER))
    except (asyncio.IncompleteReadError, OSError):
        pass
    finally:
        writer.close()


async def stream(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM_HEAD)
    due = time.monotonic()
    for _ in range(CHUNKS):
        writer.write(chunk(RECORD))
        due += INTERVAL
        await asyncio.sleep(max(0.0, due - time.monotonic()))
    writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))


async def upstream(port: int) -> None:
    """Serve until told to end, in any of the ways a llama-server can be told."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    if "LLAMA_SERVER_ROUTER_PORT" in os.environ:
        loop.add_reader(0, lambda: ended.set() if b":exit" in os.read(0, 4096) else os._exit(1))
        print(READY, flush=True)
    async with await asyncio.start_server(answer, "127.0.0.1", port, backlog=512):
        await ended.wait()


class Load:
    """One run of the clients; the counts are what load.c prints."""

    def __init__(self, port: int, streaming: bool, amount: float, request: bytes) -> None:
        self.port = port
        self.streaming = streaming
        self.amount = amount
        self.request = request
        self.answers = self.records = self.errors = 0
        self.began = time.monotonic()

    async def client(self, number: int) -> None:
        await asyncio.sleep(number * STAGGER)
        asked = 0
        while asked < self.amount if self.streaming else time.monotonic() - self.began < self.amount:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(self.request)
                body = await self.read(reader)
                self.answers += 1
                self.records += body.count(b"data: ")
            except (asyncio.IncompleteReadError, OSError):
                self.errors += 1
            finally:
                writer.close()
            asked += 1

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        if length := field(head, b"content-length"):
            return await reader.readexactly(int(length))
        body = b""
        while not body.endswith(b"0\r\n\r\n"):
            part = await reader.read(1 << 16)
            if not part:
                raise asyncio.IncompleteReadError(body, None)
            body += part
        return body


async def load(port: int, kind: str, connections: int, amount: float, request: bytes) -> None:
    run = Load(port, kind == "stream", amount, request)
    await asyncio.gather(*(run.client(number) for number in range(connections)))
    counts = {"answers": run.answers, "records": run.records, "errors": run.errors}
    print(json.dumps(counts | {"seconds": time.monotonic() - run.began}))


def main(argv: list[str]) -> None:
    if argv[0] == "upstream":
        asyncio.run(upstream(int(argv[argv.index("--port") + 1])))
    else:
        port, kind, connections, amount, file = argv[1:]
        asyncio.run(load(int(port), kind, int(connections), float(amount), Path(file).read_bytes()))


if __name__ == "__main__":
    main(sys.argv[1:])
