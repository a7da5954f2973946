"""Workers of models: what they say of themselves, and which of them a model can be started with."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.rpc_workers import Crew, RpcWorker, State, WorkerDevice
from appliance.errors import ModelFailedToStart
from appliance.features.engines.core.rpc_protocol import (
    KNOWN,
    LONGEST_HELLO,
    MAX_DEVICES,
    MAX_MEMORY,
    BadWorkerAnswer,
    agree,
    choose_workers,
    request,
    talk,
)

GIB = 1 << 30


class Questions:
    """One talk; ``told`` is what it returned."""

    def __init__(self) -> None:
        self.talk, self.told = talk(), None
        self.first = next(self.talk)

    def receive(self, data: bytes) -> bytes:
        try:
            return self.talk.send(data)
        except StopIteration as end:
            self.told = end.value
            return b""


def worker(endpoint: str = "far:50052", *devices: tuple[int, int], version: str = "7.0.0") -> RpcWorker:
    """One that is ready; of each device total and free memory in GiB."""
    sizes = tuple(WorkerDevice(total=total * GIB, free=free * GIB) for total, free in devices or ((24, 20),))
    return RpcWorker(endpoint=endpoint, state="ready", version=version, devices=sizes)


def gone(endpoint: str, state: State = "unreachable") -> RpcWorker:
    return RpcWorker(endpoint=endpoint, state=state, why=f"worker {endpoint} is away")


def always(workers: Sequence[RpcWorker]) -> bool:
    return True


def never(workers: Sequence[RpcWorker]) -> bool:
    return False


def test_builds_that_differ_are_refused_by_both_names() -> None:
    assert agree("7.0.0", worker()) == ""
    for version in ("6.0.0", "7.0.1", "7.1.0", "8.0.0"):
        why = agree("7.0.0", worker(version=version))
        assert f"far:50052 has RPC {version}, but the engine here has 7.0.0; install the same build" in why
    assert "has no RPC; install a build that has it" in agree(None, worker())
    assert agree("7.0.0", gone("far:1")) == "worker far:1 is away"


def test_a_model_that_fits_goes_without_those_that_are_away() -> None:
    here, away = worker("here:1"), gone("away:1")
    asked: list[tuple[str, ...]] = []

    def fits(workers: Sequence[RpcWorker]) -> bool:
        asked.append(tuple(each.endpoint for each in workers))
        return True

    crew = choose_workers("m", [away, here], "7.0.0", fits)
    assert crew == Crew(workers=(here,), notes=("worker away:1 is away; the model goes without it",))
    assert asked == [("here:1",)]
    assert choose_workers("m", [here], "7.0.0", never) == Crew(workers=(here,))  # nobody is missing: the engine decides


def test_one_that_does_not_fit_is_not_started_and_says_whom_it_misses() -> None:
    with pytest.raises(ModelFailedToStart, match=r"model 'm' .*worker away:1 is away; .*does not fit without away:1"):
        choose_workers("m", [gone("away:1"), worker()], "7.0.0", never)
    with pytest.raises(ModelFailedToStart, match="install the same build on both machines"):
        choose_workers("m", [worker(version="6.0.0")], "7.0.0", never)


def test_a_build_without_rpc_is_told_once() -> None:
    crew = choose_workers("m", [worker("a:1"), worker("b:1")], None, always)
    assert crew.workers == ()
    assert len(crew.notes) == 1


def answer(body: bytes) -> bytes:
    return struct.pack("<Q", len(body)) + body


def hello(major: int = KNOWN, minor: int = 0, patch: int = 0, rest: bytes = bytes(25)) -> bytes:
    return answer(bytes((major, minor, patch)) + rest)


def a_device(total: int, free: int) -> bytes:
    return answer(struct.pack("<QQ", free, total))


def test_the_bytes_are_those_of_the_real_server() -> None:
    """Recorded from ggml-rpc-server b11434 with one device of 24105 MiB."""
    questions = Questions()
    assert questions.first == bytes.fromhex("0e" + "1800000000000000" + "00" * 24)
    assert questions.receive(bytes.fromhex("1c00000000000000" + "07000000" + "00" * 24)) == bytes.fromhex(
        "0f" + "00" * 8
    )
    assert questions.receive(bytes.fromhex("0400000000000000" + "01000000")) == bytes.fromhex(
        "0b" + "0400000000000000" + "00000000"
    )
    size = struct.pack("<Q", 24105 << 20).hex()
    assert questions.receive(bytes.fromhex("1000000000000000" + size + size)) == b""
    assert questions.told == ("7.0.0", (WorkerDevice(total=24105 << 20, free=24105 << 20),))


MEMORY = st.integers(0, MAX_MEMORY)


@given(st.data(), st.lists(st.tuples(MEMORY, MEMORY), min_size=1, max_size=MAX_DEVICES), st.binary(max_size=61))
def test_in_whatever_pieces_the_answers_come(data: st.DataObject, sizes: list[tuple[int, int]], rest: bytes) -> None:
    questions = Questions()
    asked = questions.first
    answers = [hello(rest=rest), answer(struct.pack("<I", len(sizes))), *(a_device(*size) for size in sizes)]
    wanted = [request(15), *(request(11, struct.pack("<I", n)) for n in range(len(sizes)))]
    for each, following in zip(answers, [*wanted, b""], strict=True):
        assert asked
        assert questions.told is None
        cut = data.draw(st.integers(1, len(each)))
        asked = questions.receive(each[:cut]) if cut < len(each) else b""
        assert asked == b""
        asked = questions.receive(each[cut:] if cut < len(each) else each)
        assert asked == following
    assert questions.told[1] == tuple(WorkerDevice(total=total, free=min(free, total)) for total, free in sizes)


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_garbage_ends_in_its_own_error_and_nothing_is_hoarded(pieces: list[bytes]) -> None:
    questions = Questions()
    with suppress(BadWorkerAnswer):
        for piece in pieces:
            questions.receive(piece)
            if questions.told:
                return
        assert sum(map(len, pieces)) <= 8 + LONGEST_HELLO + 12 + 24 * MAX_DEVICES


@given(st.integers(0, 255).filter(lambda major: major != KNOWN), st.binary(max_size=61))
def test_another_version_is_told_and_asked_for_no_more(major: int, rest: bytes) -> None:
    questions = Questions()
    assert questions.receive(hello(major, 3, 9, rest)) == b""
    assert questions.told == (f"{major}.3.9", ())


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
