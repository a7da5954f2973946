"""The ring against a model: the bytes of the whole stream, and how many of its end are still there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from appliance.core.answers import ring
from appliance.core.answers.ring import Gap, Numbered, Ring
from appliance.core.bodies.sse import Decoder


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    """So that streams of a few bytes have many."""
    before, ring.BLOCK = ring.BLOCK, 7
    yield
    ring.BLOCK = before


class RingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.limit = 20
        self.ring = Ring(self.limit, 3)
        self.said = b"..."
        self.dropped = 3
        self.kept: list[tuple[memoryview, bytes]] = []

    @rule(data=st.binary(max_size=45) | st.integers(18, 45).map(lambda size: bytes(range(size))))
    def append(self, data: bytes) -> None:
        finished = self.ring.finished
        assert self.ring.append(data) is not finished
        if not finished:
            self.said += data
            self.dropped = max(self.dropped, len(self.said) - self.limit)

    @rule(size=st.integers(0, 30))
    def shrink(self, size: int) -> None:
        self.ring.shrink(size)
        self.dropped = max(self.dropped, len(self.said) - size)

    @rule(back=st.integers(-3, 30), most=st.none() | st.integers(1, 30))
    def read(self, back: int, most: int | None) -> None:
        offset = max(0, len(self.said) - back)
        found = self.ring.since(offset, most)
        if offset < self.dropped:
            assert found == Gap(self.dropped)
        else:
            assert isinstance(found, list)
            end = len(self.said) if most is None else offset + most
            assert b"".join(found) == self.said[offset:end]
            self.kept += [(view, bytes(view)) for view in found]

    @rule(chance=st.integers(0, 9))
    def finalize(self, chance: int) -> None:
        if chance == 0:
            self.ring.finalize()

    @invariant()
    def counts(self) -> None:
        assert (self.ring.total, self.ring.dropped) == (len(self.said), self.dropped)
        assert self.ring.held == len(self.said) - self.dropped <= self.limit
        for most in range(self.limit):
            self.read(self.ring.held, most)

    @invariant()
    def what_a_reader_has_never_changes(self) -> None:
        assert all(view == was for view, was in self.kept)


TestRing = RingMachine.TestCase


@given(
    st.lists(st.sampled_from(["data: a\n\n", "event: x\r\ndata: y\r\n\r\n", ": ping\n\n", "data: é\ndata: b\n\n"])),
    st.data(),
)
def test_ids_change_nothing_else_and_are_where_a_reader_goes_on(records: list[str], data: st.DataObject):
    stream = "".join(records).encode()
    numbers = Numbered(0)
    numbered, rest = b"", stream
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        numbered, rest = numbered + numbers.feed(rest[:size]), rest[size:]
    assert numbers.rest() == b""
    events, plain = Decoder().feed(numbered), Decoder().feed(stream)
    assert [(e.name, e.data) for e in events] == [(e.name, e.data) for e in plain]
    for at, event in enumerate(events):
        assert [e.data for e in Decoder().feed(stream[int(event.id or "") :])] == [e.data for e in plain[at + 1 :]]


def test_an_endless_record_has_no_id():
    numbers = Numbered(5)
    assert numbers.feed(b"data: " + b"x" * (5 << 20)).startswith(b"data: xxx")
    assert numbers.feed(b"x\n\n").endswith(b"x\n\n")
    assert numbers.feed(b"data: b\n\n") == b"id: %d\ndata: b\n\n" % (5 + 6 + (5 << 20) + 3 + 9)
    assert numbers.feed(b"data: c") == b""
    assert numbers.rest() == b"data: c"
