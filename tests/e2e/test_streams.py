"""Many streams at once say, event for event, what the engine says to one client of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from program import Server, StartServer, http, one_engine

from appliance.features import embedded

STREAMS = 200
ONE_SLOT = ("--parallel", "1", "--batch-size", "512")
QUESTIONS = ("Hello!", "What is the capital of France?", "Tell me a joke.", "How do I add a model?")
COMMENT = re.compile(rb"^:[^\n]*\n\n", re.MULTILINE)
VARYING = re.compile(rb'"(id|created|timings|usage)":("[^"]*"|\d+|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
"""What differs between two answers to one question: names, clocks, and how much the cache held."""


def ask(server: Server, question: str) -> bytes:
    messages = [{"role": "user", "content": question}]
    more = {"stream": True, "temperature": 0, "cache_prompt": False, "max_tokens": 64}
    answer = http(server, "POST", "/v1/chat/completions", {"model": "starter", "messages": messages, **more})
    assert answer.status == 200, answer.body
    return answer.body


@pytest.fixture
def direct(engine: str, starter_model: Path, tmp_path: Path, free_port: Callable[[], int]) -> Generator[Server]:
    """The same engine with the same model, started by hand."""
    program, *words = embedded.command() if engine == "embedded" else [engine]
    words += ["-m", str(starter_model), "--alias", "starter", "--port", str(free_port()), "--threads", "1"]
    with Server([*words, "-c", "8192", *ONE_SLOT], tmp_path, program=Path(program)) as server:
        yield server.wait_listening()


def same_in_every_run(stream: bytes) -> bytes:
    """Without what differs from one run to the next, and without the comments that only those who wait get."""
    return VARYING.sub(rb'"\1":0', COMMENT.sub(b"", stream))


@pytest.mark.slow
@one_engine
def test_two_hundred_streams_at_once(start_server: StartServer, engine: str, direct: Server) -> None:
    """One slot each: llama.cpp computes several sequences together with other roundings than one alone."""
    server = start_server("serve", "--listen", "127.0.0.1:0", "--engine", engine, "--threads", "1", "--", *ONE_SLOT)
    streams = {question: ask(direct, question) for question in QUESTIONS}
    assert all(stream.endswith(b"data: [DONE]\n\n") and stream.count(b"data: ") > 5 for stream in streams.values())
    wanted = {question: same_in_every_run(stream) for question, stream in streams.items()}
    assert len(set(wanted.values())) == len(QUESTIONS)
    asked = [QUESTIONS[number % len(QUESTIONS)] for number in range(STREAMS)]
    with ThreadPoolExecutor(STREAMS) as clients:
        for question, stream in zip(asked, clients.map(partial(ask, server), asked), strict=True):
            assert same_in_every_run(stream) == wanted[question], (text_of(stream), text_of(streams[question]))


def text_of(stream: bytes) -> str:
    """The answer in a stream, for the reader of a failure."""
    records = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
    deltas = [json.loads(record)["choices"] for record in records]
    return "".join(choices[0]["delta"].get("content") or "" for choices in deltas if choices)
