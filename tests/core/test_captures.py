"""Captures: what is kept of a request, and that a budget is a budget."""

from __future__ import annotations

import base64
import gzip
import json
import random
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from appliance.core.captures import (
    MAX_RATIO,
    CaptureBuffer,
    CaptureWriter,
    Exchange,
    PackedBody,
    captured_headers,
    captured_parts,
    pack,
)

BIG = 1 << 20


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def packed(body: bytes) -> PackedBody:
    found = pack(body, BIG)
    assert found is not None
    return found


def exchange(body: bytes = b"{}", answer: bytes | None = None) -> Exchange:
    return Exchange(
        req_path="/v1/completions",
        req_headers={"Accept": "*/*"},
        req_body=packed(body),
        resp_headers=None if answer is None else {"X": "y"},
        resp_body=None if answer is None else packed(answer),
    )


def test_a_capture_reads_as_clients_know_it():
    buffer = CaptureBuffer(BIG)
    assert buffer.add(3, exchange(b"ask", b"\x00\xff"))
    assert json.loads(msgspec.json.encode(buffer.get(3))) == {
        "id": 3,
        "req_path": "/v1/completions",
        "req_headers": {"Accept": "*/*"},
        "req_body": base64.b64encode(b"ask").decode(),
        "resp_headers": {"X": "y"},
        "resp_body": base64.b64encode(b"\x00\xff").decode(),
    }
    assert buffer.add(4, exchange())
    failed = json.loads(msgspec.json.encode(buffer.get(4)))
    assert (failed["resp_headers"], failed["resp_body"]) == (None, None)
    assert buffer.get(5) is None


def test_headers_keep_their_first_value_and_no_secret():
    headers = [
        (b"content-type", b"application/json"),
        (b"CONTENT-TYPE", b"text/plain"),
        (b"authorization", b"Bearer k"),
        (b"Proxy-Authorization", b"k"),
        (b"cookie", b"k"),
        (b"Set-Cookie", b"k"),
        (b"x-api-key", b"k"),
        (b"content-encoding", b"gzip"),
        (b"x-name", "é".encode("latin-1")),
    ]
    kept = captured_headers(headers)
    assert kept["Content-Type"] == "application/json"
    assert [name for name, value in kept.items() if value == "[REDACTED]"] == [
        "Authorization",
        "Proxy-Authorization",
        "Cookie",
        "Set-Cookie",
        "X-Api-Key",
    ]
    assert "k" not in kept.values()
    assert kept["X-Name"] == "é"
    assert kept["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in captured_headers(headers, decoded=True)


@pytest.mark.parametrize(
    ("path", "request_kept", "response_kept"),
    [
        ("/v1/chat/completions", True, True),
        ("/v1/audio/speech", True, False),
        ("/v1/images/generations", True, False),
        ("/sdapi/v1/txt2img", True, False),
        ("/v1/audio/voices", False, True),
        ("/v1/audio/transcriptions", False, True),
        ("/v1/images/edits", False, False),
        ("/sdapi/v1/img2img", False, False),
    ],
)
def test_sound_and_pictures_are_not_kept(path: str, request_kept: bool, response_kept: bool):
    assert captured_parts(path) == (request_kept, response_kept)


@given(st.lists(st.binary(max_size=300)), st.booleans())
def test_a_body_survives_however_it_comes_and_is_shown_decoded(chunks: list[bytes], encoded: bool):
    whole = b"".join(chunks)
    writer = CaptureWriter(BIG, "gzip" if encoded else None)
    for chunk in [gzip.compress(whole)] if encoded else chunks:
        writer.feed(chunk)
    body = writer.end()
    assert body is not None
    assert body.size == len(whole)
    buffer = CaptureBuffer(BIG)
    buffer.add(1, Exchange(req_path="/", req_headers={}, resp_body=body))
    found = buffer.get(1)
    assert found is not None
    assert found.resp_body == whole


def test_a_body_beyond_the_budget_is_given_up_early_and_never_held():
    limit = 1 << 18
    writer = CaptureWriter(limit)
    tracemalloc.start()
    try:
        for seed in range(64):
            writer.feed(noise(1 << 16, seed))
            assert writer.given_up == (seed >= 4)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert writer.end() is None
    assert peak < 4 * limit


def test_a_body_that_packs_well_is_still_bounded():
    limit = 1 << 14
    assert pack(bytes(limit * MAX_RATIO), limit) is not None
    assert pack(bytes(limit * MAX_RATIO + 1), limit) is None
    assert pack(noise(limit), limit) is None
    assert pack(b"", 0) is None


def test_nothing_is_kept_without_a_budget():
    buffer = CaptureBuffer(0)
    assert not buffer.add(1, exchange())
    assert not buffer.has(1)


class Fifo(RuleBasedStateMachine):
    """Whatever is added: what is there is the newest that fit, and as it was added."""

    LIMIT = 6000

    def __init__(self) -> None:
        super().__init__()
        self.buffer = CaptureBuffer(self.LIMIT)
        self.added: dict[int, tuple[bytes, bool]] = {}
        self.next = 1

    @rule(size=st.integers(0, 7000), compressible=st.booleans())
    def add(self, size: int, compressible: bool):
        body = b"a" * size if compressible else noise(size, self.next)
        self.added[self.next] = (body, self.buffer.add(self.next, exchange(body)))
        self.next += 1

    @invariant()
    def the_newest_that_fit_are_there(self):
        taken = [id for id, (_, was_taken) in self.added.items() if was_taken]
        held = [id for id in self.added if self.buffer.has(id)]
        assert held == taken[len(taken) - len(held) :]
        assert not taken or held
        bytes_held = 0
        for id in held:
            found = self.buffer.get(id)
            assert found is not None
            assert found.req_body == self.added[id][0]
            bytes_held += len(packed(found.req_body).packed)
        assert bytes_held <= self.LIMIT

    @invariant()
    def only_what_is_too_large_alone_was_refused(self):
        for body, was_taken in self.added.values():
            assert was_taken == (len(packed(body).packed) < self.LIMIT - 500) or len(body) > self.LIMIT - 700


TestFifo = Fifo.TestCase


def test_as_many_as_the_budget_holds_are_kept():
    buffer = CaptureBuffer(100_000)
    for id in range(40):
        buffer.add(id, exchange(noise(9_000, id)))
    held = [id for id in range(40) if buffer.has(id)]
    assert held == list(range(30, 40))


def test_an_id_is_kept_once():
    buffer = CaptureBuffer(BIG)
    buffer.add(1, exchange(b"old"))
    buffer.add(1, exchange(b"new"))
    found = buffer.get(1)
    assert found is not None
    assert found.req_body == b"new"
