"""Many streams at once say, event for event, what the engine says to one client of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import trio
from program import StartServer, dechunk, one_engine
from waiting import wait

from appliance.features import embedded

STREAMS = 200
ONE_SLOT = ("--parallel", "1", "--batch-size", "512")
QUESTIONS = ("Hello!", "What is the capital of France?", "Tell me a joke.", "How do I add a model?")
COMMENT = re.compile(rb"^:[^\n]*\n\n", re.MULTILINE)
VARYING = re.compile(rb'"(id|created|timings|usage)":("[^"]*"|\d+|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
"""What differs between two answers to one question: names, clocks, and how much the cache held."""


def request(question: str) -> dict[str, object]:
    return {
        "model": "starter",
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "temperature": 0,
        "cache_prompt": False,
        "max_tokens": 64,
    }


@pytest.fixture
def direct(engine: str, starter_model: Path, tmp_path: Path, free_port: Any) -> Generator[int]:
    """The same engine with the same model, started by hand; its port."""
    port: int = free_port()
    command = embedded.command() if engine == "embedded" else [engine]
    command += ["-m", str(starter_model), "--alias", "starter", "--port", str(port), "--threads", "1", "-c", "8192"]
    command += ONE_SLOT
    env = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
    with (tmp_path / "direct.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env)
    try:
        wait(lambda: process.poll() is not None or b"listening on" in (tmp_path / "direct.log").read_bytes(), within=60)
        assert process.poll() is None
        yield port
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def post(port: int, body: object) -> tuple[int, bytes]:
    """Ask for a chat over a connection of its own; the status and the de-chunked body."""
    sent = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(sent)}"
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(head.encode() + b"\r\n\r\n" + sent)
        received = bytearray()
        async for chunk in stream:
            received += chunk
    top, _, rest = bytes(received).partition(b"\r\n\r\n")
    return int(top.split(b" ", 2)[1]), dechunk(rest) if b"transfer-encoding: chunked" in top.lower() else rest


def same_in_every_run(stream: bytes) -> bytes:
    """Without what differs from one run to the next, and without the comments that only those who wait get."""
    return VARYING.sub(rb'"\1":0', COMMENT.sub(b"", stream))


@pytest.mark.slow
@one_engine
async def test_two_hundred_streams_at_once(start_server: StartServer, engine: str, direct: int) -> None:
    """One slot each: llama.cpp computes several sequences together with other roundings than one alone."""
    server = start_server("serve", "--listen", "127.0.0.1:0", "--engine", engine, "--threads", "1", "--", *ONE_SLOT)
    wanted: dict[str, bytes] = {}
    for question in QUESTIONS:
        status, stream = await post(direct, request(question))
        assert status == 200
        assert stream.endswith(b"data: [DONE]\n\n")
        wanted[question] = same_in_every_run(stream)
    assert len(set(wanted.values())) == len(QUESTIONS)
    assert all(stream.count(b"data: ") > 5 for stream in wanted.values())
    wrong: list[str] = []

    async def ask(question: str) -> None:
        status, stream = await post(server.port, request(question))
        if status != 200 or same_in_every_run(stream) != wanted[question]:
            wrong.append(f"{status}: {text_of(stream)!r} instead of {text_of(wanted[question])!r}")

    with trio.fail_after(200):
        async with trio.open_nursery() as nursery:
            for number in range(STREAMS):
                nursery.start_soon(ask, QUESTIONS[number % len(QUESTIONS)])
    assert wrong == []


def text_of(stream: bytes) -> str:
    """The answer in a stream, for the reader of a failure."""
    records = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
    deltas = [json.loads(record)["choices"] for record in records]
    return "".join(choices[0]["delta"].get("content") or "" for choices in deltas if choices)
