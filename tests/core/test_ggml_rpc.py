"""What a worker says of itself, whatever it says."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.rpc_workers import (
    KNOWN,
    LONGEST_HELLO,
    MAX_DEVICES,
    MAX_MEMORY,
    BadWorkerAnswer,
    ProtocolVersion,
    Questions,
    WorkerDevice,
    request,
)


def answer(body: bytes) -> bytes:
    return struct.pack("<Q", len(body)) + body


def hello(major: int = KNOWN, minor: int = 0, patch: int = 0, rest: bytes = bytes(25)) -> bytes:
    return answer(bytes((major, minor, patch)) + rest)


def a_device(total: int, free: int) -> bytes:
    return answer(struct.pack("<QQ", free, total))


def test_the_bytes_are_those_of_the_real_server() -> None:
    """Recorded from ggml-rpc-server b11434 with one device of 24105 MiB."""
    questions = Questions()
    assert questions.begin() == bytes.fromhex("0e" + "1800000000000000" + "00" * 24)
    assert questions.receive(bytes.fromhex("1c00000000000000" + "07000000" + "00" * 24)) == bytes.fromhex(
        "0f" + "00" * 8
    )
    assert questions.receive(bytes.fromhex("0400000000000000" + "01000000")) == bytes.fromhex(
        "0b" + "0400000000000000" + "00000000"
    )
    size = struct.pack("<Q", 24105 << 20).hex()
    assert questions.receive(bytes.fromhex("1000000000000000" + size + size)) == b""
    assert questions.done
    assert (questions.version, questions.devices) == (
        ProtocolVersion(7, 0, 0),
        [WorkerDevice(total=24105 << 20, free=24105 << 20)],
    )


MEMORY = st.integers(0, MAX_MEMORY)


@given(st.data(), st.lists(st.tuples(MEMORY, MEMORY), min_size=1, max_size=MAX_DEVICES), st.binary(max_size=61))
def test_in_whatever_pieces_the_answers_come(data: st.DataObject, sizes: list[tuple[int, int]], rest: bytes) -> None:
    questions = Questions()
    asked = questions.begin()
    answers = [hello(rest=rest), answer(struct.pack("<I", len(sizes))), *(a_device(*size) for size in sizes)]
    wanted = [request(15), *(request(11, struct.pack("<I", n)) for n in range(len(sizes)))]
    for each, following in zip(answers, [*wanted, b""], strict=True):
        assert asked
        assert not questions.done
        cut = data.draw(st.integers(1, len(each)))
        asked = questions.receive(each[:cut]) if cut < len(each) else b""
        assert asked == b""
        asked = questions.receive(each[cut:] if cut < len(each) else each)
        assert asked == following
    assert questions.done
    assert questions.devices == [WorkerDevice(total=total, free=min(free, total)) for total, free in sizes]


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_garbage_ends_in_its_own_error_and_nothing_is_hoarded(pieces: list[bytes]) -> None:
    questions = Questions()
    with suppress(BadWorkerAnswer):
        for piece in pieces:
            questions.receive(piece)
        assert questions.done or sum(map(len, pieces)) <= 8 + LONGEST_HELLO + 12 + 24 * MAX_DEVICES


@given(st.integers(0, 255).filter(lambda major: major != KNOWN), st.binary(max_size=61))
def test_another_version_is_told_and_asked_for_no_more(major: int, rest: bytes) -> None:
    questions = Questions()
    assert questions.receive(hello(major, 3, 9, rest)) == b""
    assert questions.done
    assert str(questions.version) == f"{major}.3.9"
    assert questions.devices == []


COUNT = answer(struct.pack("<I", 1))


@pytest.mark.parametrize(
    ("before", "said", "why"),
    [
        ([], struct.pack("<Q", 1 << 62), f"answered with {1 << 62} bytes where 3 to 64 belong"),
        ([], struct.pack("<Q", 0), "answered with 0 bytes"),
        ([], b"HTTP/1.1 400 Bad Request\r\n\r\n", r"answered with \d+ bytes"),
        ([], hello() + b"x", "says more than it was asked"),
        ([], hello(8) + b"x", "says more than it was asked"),
        ([hello()], answer(struct.pack("<I", 0)), "says that it has 0 devices"),
        ([hello()], answer(struct.pack("<I", 1 << 31)), "says that it has 2147483648 devices"),
        ([hello()], answer(bytes(5)), "answered with 5 bytes where 4 belong"),
        ([hello(), COUNT], a_device(MAX_MEMORY + 1, 0), "says that a device has 4503599627370497 bytes of memory"),
        ([hello(), COUNT], struct.pack("<Q", (1 << 64) - 1), "where 16 belong"),
        ([hello(), COUNT], a_device(5, 5) + a_device(5, 5), "says more than it was asked"),
    ],
)
def test_what_is_no_answer(before: list[bytes], said: bytes, why: str) -> None:
    questions = Questions()
    for each in before:
        questions.receive(each)
    with pytest.raises(BadWorkerAnswer, match=why):
        questions.receive(said)
