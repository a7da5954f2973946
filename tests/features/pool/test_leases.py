"""Placements: of many boxes that want the same model at once, one decides, and no request waits long for the bus."""

from __future__ import annotations

from random import Random

import pytest
import trio

from appliance.features.pool.core.buckets import BucketEntry, BusConflict, BusTimeout
from appliance.features.pool.core.lease import TERM, Fences
from appliance.features.pool.orders import BUS_TIME, PlacementKeys, PlacementLeases


class Register:
    """A bus in memory, as slow and as bad as ``bad`` says, from 0 to 1."""

    def __init__(self, seed: int = 0, bad: float = 0.0) -> None:
        self.chance, self.bad = Random(seed), bad
        self.values: dict[str, BucketEntry] = {}
        self.revision = 0
        self.hangs = False

    async def way(self) -> None:
        await trio.sleep(self.chance.uniform(0, 0.01))
        if self.hangs or self.chance.random() < self.bad:
            await trio.sleep(2)  # the clock of these tests is virtual
            raise BusTimeout("no answer came")

    async def get(self, key: str) -> BucketEntry | None:
        await self.way()
        found = self.values.get(key)
        await self.way()
        return found

    async def put(self, key: str, value: bytes, revision: int | None) -> int:
        await self.way()
        found = self.values.get(key)
        if revision is not None and revision != (found.revision if found is not None else 0):
            raise BusConflict("another revision")
        self.revision += 1
        self.values[key] = BucketEntry(value=value, revision=self.revision)
        made = self.revision
        await self.way()
        return made


class Deciding:
    """Boxes that share a bus, and what they decided."""

    def __init__(self, keys: PlacementKeys, names: str = "abc", takes: float = 0.1) -> None:
        self.keys, self.takes = keys, takes
        self.leases = {name: PlacementLeases(f"{name}/1", Fences({}, lambda: 1e9), trio.current_time) for name in names}
        self.turns: list[int] = []  # the epoch of each
        self.under_way = 0
        self.found: list[str | None] = []

    async def settle(self) -> None:
        """Let a term pass since the store was founded."""
        for leases in self.leases.values():
            await leases.meet(self.keys)
        await trio.sleep(TERM + 1)  # as above

    async def decide(self, epoch: int, holder: str) -> str:
        assert not self.under_way, "two boxes decide at once"
        self.under_way += 1
        self.turns.append(epoch)
        try:
            await trio.sleep(self.takes)
        finally:
            self.under_way -= 1
        return f"b{len(self.turns)}"

    async def place(self, name: str, *, down: str = "") -> str | None:
        began = trio.current_time()
        found = await self.leases[name].place(self.keys, "a model", self.decide, lambda box: box != down)
        self.found.append(found)
        assert found is not None or trio.current_time() - began < BUS_TIME + 0.01
        return found


@pytest.mark.parametrize("seed", range(20))
async def test_one_decides_and_the_others_follow(autojump_clock: trio.testing.MockClock, seed: int):
    pool = Deciding(Register(seed))
    await pool.settle()
    async with trio.open_nursery() as nursery:
        for name in "abcabcabc":
            nursery.start_soon(pool.place, name)
    assert (pool.turns, pool.found) == ([1], ["b1"] * 9)


@pytest.mark.parametrize("seed", range(20))
async def test_on_a_bad_bus_still_only_one_decides_at_a_time(autojump_clock: trio.testing.MockClock, seed: int):
    pool = Deciding(register := Register(seed), takes=3)
    await pool.settle()
    register.bad = 0.1
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            for name in "abc":
                nursery.start_soon(pool.leases[name].place, register, "a model", pool.decide, set[str]().__contains__)
            await trio.sleep(register.chance.uniform(0, 10))
    assert pool.turns == sorted(set(pool.turns))
    assert pool.turns


async def test_a_decision_is_followed_for_a_while_and_while_its_box_is_there(autojump_clock: trio.testing.MockClock):
    pool = Deciding(Register())
    await pool.settle()
    assert await pool.place("a") == "b1"
    assert await pool.place("b") == "b1"
    assert await pool.place("b", down="b1") == "b2"


async def test_no_request_waits_long_for_a_bus_that_hangs_or_a_turn_of_another(
    autojump_clock: trio.testing.MockClock,
):
    pool = Deciding(register := Register(), takes=5)
    assert await pool.place("a") is None  # the store is new: a holder from before may still act
    await pool.settle()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.place, "a")
        await trio.sleep(1)
        assert await pool.place("b") is None
    register.hangs = True
    assert await pool.place("b") is None


async def test_a_client_that_leaves_gives_the_turn_back(autojump_clock: trio.testing.MockClock):
    pool = Deciding(Register(), takes=5)
    await pool.settle()
    with trio.move_on_after(1):
        await pool.place("a")
    assert not pool.under_way
    assert await pool.place("b") == "b2"


async def test_a_decision_that_takes_longer_than_the_term_is_cancelled(autojump_clock: trio.testing.MockClock):
    pool = Deciding(Register(), takes=60)
    await pool.settle()
    began = trio.current_time()
    assert await pool.leases["a"].place(pool.keys, "a model", pool.decide, lambda _: True) is None
    assert trio.current_time() - began < TERM
