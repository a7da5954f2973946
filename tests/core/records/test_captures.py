"""Captures: what is kept of a request, and that a budget is a budget."""

from __future__ import annotations

import base64
import gzip
import json
import random
import time
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from appliance.core.records import captures

BIG = 1 << 20


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def passed(*pieces: bytes, limit: int = BIG) -> captures.CapturedBody:
    body = captures.CapturedBody(limit)
    for piece in pieces:
        body.feed(piece)
    return body


def exchange(
    body: bytes | None = b"{}", answer: captures.CapturedBody | bytes | None = None, coding: str | None = None
) -> captures.CapturedExchange:
    answered = None if answer is None else [(b"x", b"y")]
    return captures.CapturedExchange("/v1/completions", [(b"accept", b"*/*")], body, answered, answer, coding)


def read(buffer: captures.CaptureBuffer, id: int) -> captures.Capture | None:
    find = buffer.find(id)
    return None if find is None else find()


def compress(buffer: captures.CaptureBuffer, most: int = BIG) -> int:
    """Do what waits to be done; how much that was."""
    batch = buffer.waiting(most)
    for packing in batch:
        packing.put(packing.work())
    return len(batch)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_capture_reads_as_clients_know_it(compressed: bool):
    buffer = captures.CaptureBuffer(BIG)
    assert buffer.add(3, exchange(b"ask", passed(b"\x00", b"\xff")))
    assert buffer.add(4, exchange())
    if compressed:
        assert compress(buffer) == 2
    assert json.loads(msgspec.json.encode(read(buffer, 3))) == {
        "id": 3,
        "req_path": "/v1/completions",
        "req_headers": {"Accept": "*/*"},
        "req_body": base64.b64encode(b"ask").decode(),
        "resp_headers": {"X": "y"},
        "resp_body": base64.b64encode(b"\x00\xff").decode(),
    }
    failed = json.loads(msgspec.json.encode(read(buffer, 4)))
    assert (failed["resp_headers"], failed["resp_body"]) == (None, None)
    assert read(buffer, 5) is None


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
    kept = captures.captured_headers(headers)
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
    assert "Content-Encoding" not in captures.captured_headers(headers, decoded=True)


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
    assert captures.captured_parts(path) == (request_kept, response_kept)


# At most 15 chunks: the budget does not hold sixteen blocks.
CHUNKS = st.lists(st.binary(max_size=300) | st.just(bytes(captures.BLOCK)), max_size=BIG // captures.BLOCK - 1)


@given(CHUNKS, st.booleans(), st.sets(st.integers(0, 10)))
def test_a_body_survives_however_it_comes_and_is_compressed_and_is_shown_decoded(
    chunks: list[bytes], encoded: bool, compressed_at: set[int]
):
    whole = b"".join(chunks)
    body = captures.CapturedBody(BIG)
    for number, chunk in enumerate([gzip.compress(whole)] if encoded else chunks):
        body.feed(chunk)
        if number in compressed_at:
            packing = body.packing()
            packing.put(packing.work())
    assert body.raw == sum(map(len, body.pieces))
    assert body.held >= body.raw + sum(map(len, body.blocks))
    buffer = captures.CaptureBuffer(BIG)
    buffer.add(1, exchange(None, body, "gzip" if encoded else None))
    for _ in range(2):
        assert read(buffer, 1).resp_body == whole
        compress(buffer)


def test_what_is_compressed_meanwhile_takes_nothing_that_comes_meanwhile():
    body = passed(b"a", b"b")
    packing = body.packing()
    body.feed(b"c")
    packing.put(packing.work())
    assert body.pieces == [b"c"]
    late = body.packing()
    buffer = captures.CaptureBuffer(BIG)
    buffer.add(1, exchange(None, body))
    late.put(late.work())  # the capture is what it was when it was made
    assert read(buffer, 1).resp_body == b"abc"


def test_a_body_beyond_the_budget_is_given_up_early_and_never_held():
    limit = 1 << 18
    body = captures.CapturedBody(limit)
    tracemalloc.start()
    try:
        for seed in range(64):
            body.feed(noise(1 << 16, seed))
            assert body.given_up == (seed >= 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * limit
    assert body.held == 0


def test_a_body_that_packs_well_is_still_bounded():
    limit = 1 << 18
    body = captures.CapturedBody(limit)
    for _ in range(captures.MAX_RATIO * limit // captures.BLOCK):
        body.feed(bytes(captures.BLOCK))
        packing = body.packing()
        packing.put(packing.work())
    assert not body.given_up
    assert body.held < limit // 10
    body.feed(b"x")
    assert body.given_up


def test_what_a_few_bytes_decode_to_is_bounded_too():
    limit = 1 << 14
    for size, whole in ((limit * captures.MAX_RATIO, True), (limit * captures.MAX_RATIO + 1, False)):
        buffer = captures.CaptureBuffer(limit)
        assert buffer.add(1, exchange(None, gzip.compress(bytes(size)), "gzip"))
        assert read(buffer, 1).resp_body == (bytes(size) if whole else None)


def test_a_large_body_costs_nothing_before_it_is_compressed():
    """Twenty megabytes have passed; what there is to do about them is a matter of microseconds."""
    large = noise(20 << 20)
    buffer = captures.CaptureBuffer(64 << 20)
    tracemalloc.start()
    try:
        began = time.thread_time()
        assert buffer.add(1, exchange(large, passed(large, limit=64 << 20)))
        took = time.thread_time() - began
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000
    assert took < 0.01


def test_nothing_is_kept_without_a_budget():
    buffer = captures.CaptureBuffer(0)
    assert not buffer.add(1, exchange())
    assert not buffer.has(1)


class Fifo(RuleBasedStateMachine):
    """Whatever is added and compressed: what is there is the newest that fit, and as it was added."""

    LIMIT = 6000

    def __init__(self) -> None:
        super().__init__()
        self.buffer = captures.CaptureBuffer(self.LIMIT)
        self.added: dict[int, tuple[bytes, bool]] = {}
        self.next = 1
        self.late: list[tuple[captures.Packing, bytes]] = []

    @rule(size=st.integers(0, 7000), compressible=st.booleans())
    def add(self, size: int, compressible: bool):
        body = b"a" * size if compressible else noise(size, self.next)
        held = exchange(body).held
        taken = self.buffer.add(self.next, exchange(body))
        assert taken == (held <= self.LIMIT)
        self.added[self.next] = (body, taken)
        self.next += 1

    @rule(most=st.integers(0, 9000))
    def begin_to_compress(self, most: int):
        self.late += [(packing, packing.work()) for packing in self.buffer.waiting(most)]

    @rule()
    def have_compressed(self):
        for packing, packed in self.late:
            packing.put(packed)  # of some that are gone by now, and of some for the second time
        self.late.clear()

    @invariant()
    def the_newest_that_fit_are_there(self):
        taken = [id for id, (_, was_taken) in self.added.items() if was_taken]
        held = [id for id in self.added if self.buffer.has(id)]
        assert held == taken[len(taken) - len(held) :]
        assert not taken or held
        assert self.buffer.used <= self.LIMIT
        for id in held:
            assert read(self.buffer, id).req_body == self.added[id][0]


TestFifo = Fifo.TestCase


def test_compressing_makes_room():
    buffer = captures.CaptureBuffer(100_000)
    for id in range(40):
        buffer.add(id, exchange(b"a word " * 2000))
        compress(buffer)
    assert all(buffer.has(id) for id in range(40))
    assert compress(buffer) == 0


def test_an_id_is_kept_once():
    buffer = captures.CaptureBuffer(BIG)
    buffer.add(1, exchange(b"old"))
    buffer.add(1, exchange(b"new"))
    assert read(buffer, 1).req_body == b"new"
    assert compress(buffer) == 1
