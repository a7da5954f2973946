"""Kept contexts: manifests come back as they were or not at all, and limits hold."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.sizes import GIB
from appliance.features.contexts.core.cache import kept_rows
from appliance.features.contexts.core.kept import (
    MAX_AGE,
    PIECE,
    VERSION,
    KeptContext,
    Limits,
    Room,
    limits_of,
    manifest_of,
    pieces_of,
    read_manifest,
    victims,
    worth,
)

sizes = st.integers(0, 1 << 40)
times = st.floats(0, 1e10)


@st.composite
def contexts(draw: st.DrawFn, size: st.SearchStrategy[int] = sizes) -> KeptContext:
    bytes_ = draw(size)
    ends = sorted(draw(st.lists(sizes, max_size=4)))
    return KeptContext(
        name=draw(st.text("0123456789abcdef", min_size=32, max_size=32)),
        key=draw(st.text()),
        shape=draw(st.text()),
        build=draw(st.text()),
        engine=draw(st.text()),
        seat=draw(st.text()),
        model=draw(st.text()),
        conversation=draw(st.text()),
        chain=tuple(draw(st.lists(st.binary(), min_size=len(ends), max_size=len(ends)))),
        ends=tuple(ends),
        prompt=draw(sizes),
        tokens=draw(sizes),
        size=bytes_,
        token_seconds=draw(times),
        pieces=tuple(range(pieces_of(bytes_))),
        made=draw(times),
        used=draw(times),
        saved_tokens=draw(sizes),
    )


GOOD = KeptContext(
    name="a" * 32, key="", model="m", chain=(b"a",), ends=(1,), prompt=1, tokens=1, size=9, token_seconds=0, pieces=(7,)
)


def read_with(change: dict[str, object], **outside: object) -> KeptContext | None:
    """The good manifest with a change; a field that becomes None is not there."""
    plain = msgspec.json.decode(manifest_of(GOOD))
    parts = {name: value for name, value in (plain["context"] | change).items() if value is not None}
    return read_manifest(msgspec.json.encode({**plain, "context": parts, **outside}))


@given(contexts(st.integers(0, 10 * PIECE)))
def test_a_manifest_comes_back_as_it_was(context: KeptContext) -> None:
    assert read_manifest(manifest_of(context)) == context
    (row,) = kept_rows([context])
    assert (row.model, row.used.timestamp()) == (context.model, pytest.approx(context.used, abs=1e-3))


@given(contexts(st.integers(0, PIECE)), st.data())
def test_a_damaged_manifest_is_refused_or_says_the_same_of_its_parts(context: KeptContext, data: st.DataObject) -> None:
    whole = manifest_of(context)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + data.draw(st.binary(max_size=3)) + whole[data.draw(st.integers(at, len(whole))) :]
    found = read_manifest(damaged)
    assert found is None or (len(found.chain), len(found.pieces)) == (len(found.ends), pieces_of(found.size))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../" + "a" * 29},
        {"name": "a" * 32 + "\n"},
        {"size": PIECE + 1},
        {"size": -1},
        {"ends": [1, 2]},
        {"chain": ["AA==", "AA=="], "ends": [2, 1]},
        {"tokens": "many"},
        {"token_seconds": -1},
        {"used": 1e300},
    ],
    ids=str,
)
def test_a_manifest_whose_parts_disagree_is_refused(change: dict[str, object]) -> None:
    assert read_with({}) == GOOD
    assert read_with(change) is None


def test_a_manifest_without_its_seat_is_read_and_one_of_another_version_is_not() -> None:
    """Earlier programs have not written the seat."""
    assert read_with(dict.fromkeys(("shape", "build", "engine", "seat"))) == GOOD
    assert read_with({}, version=VERSION + 1) is None


@given(
    st.lists(contexts(st.integers(0, 100)), max_size=8, unique_by=lambda each: each.name),
    st.integers(0, 200),
    st.builds(Limits, at_most=st.integers(0, 300), stays_free=st.integers(0, 100), hourly=st.integers(0, 300)),
    st.builds(Room, free=st.integers(0, 300), written=st.integers(0, 300), now=times),
)
def test_victims_make_room_within_every_limit_and_are_no_more_than_needed(
    entries: list[KeptContext], incoming: int, limits: Limits, room: Room
) -> None:
    gone = victims(entries, incoming, limits, room)
    left = [each for each in entries if gone is None or each not in gone]

    def fits(kept: list[KeptContext]) -> bool:
        size = sum(each.size for each in kept)
        free = room.free + sum(each.size for each in entries) - size
        return size + incoming <= limits.at_most and free - incoming >= limits.stays_free

    if gone is None:
        assert not fits([]) or room.written + incoming > limits.hourly
        return
    assert fits(left)
    assert room.written + incoming <= limits.hourly
    assert all(room.now - each.used <= MAX_AGE for each in left)
    assert all(one.used <= other.used for one, other in pairwise(gone))
    assert all(one.used <= other.used for one in gone for other in left)
    if gone and room.now - gone[-1].used <= MAX_AGE:
        assert not fits([*left, gone[-1]]), "the last one had to go"


@given(sizes, sizes, sizes)
def test_the_limits_of_memory_and_disk(available: int, kept: int, total: int) -> None:
    memory = limits_of(in_memory=True, available=available, kept=kept, total=total)
    disk = limits_of(in_memory=False, available=available, kept=kept, total=total)
    assert memory.at_most == min(8 * GIB, (available + kept) // 4)
    assert (memory.hourly, disk.hourly, disk.at_most) == (math.inf, 64 * GIB, 16 * GIB)
    assert memory.stays_free == disk.stays_free == total // 10


def test_worth_compares_the_time_of_reading_with_the_time_of_moving() -> None:
    slow_disk = 1 / (150 << 20)
    assert worth(8000, 1 / 40, GIB, slow_disk), "a processor reads for minutes"
    assert not worth(8000, 1 / 4000, GIB, slow_disk), "a card reads it in two seconds"
