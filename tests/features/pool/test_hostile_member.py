"""A box of the pool that says anything: the others keep a file that they can read, and can always take it out."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest
import trio
from http_harness import OpenServer
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from pool_seat import seat_of

from appliance.core.lenient_json import decoded
from appliance.errors import BadRequest, Conflict
from appliance.features.pool import on_bus
from appliance.features.pool.core.buckets import BucketEntry, BusRefused, direct_entry
from appliance.features.pool.core.lease import MOST_MODELS, understood
from appliance.features.pool.core.nats import BusMessage
from appliance.features.pool.core.roster import LARGEST, MOST_BOXES, MOST_GONE, Box, Roster
from appliance.features.pool.doors import NewSecret
from appliance.features.pool.hands import OwnHands
from appliance.features.pool.membership import Membership
from appliance.features.pool.orders import PlacementOrder
from appliance.features.pool.owner import BoxPool
from appliance.features.pool.pool_file import MAX_SIZE, KeptPool, read_pool, write_pool

T = TypeVar("T")
HONEST = ("a", "b")
NOW, HUGE = -1, -2
EDGES = [1, 5000, 10**6, 2**31, 2**53 - 1, 2**53, 2**53 + 1, 2**64, NOW, HUGE]
ODD = {NOW: lambda: int(time.time()), HUGE: lambda: 1 << 14280}  # as long as Python's text of a number may be


def number_at(edge: int) -> int:
    return ODD[edge]() if edge in ODD else edge


NUMBERS = st.sampled_from(EDGES).map(number_at)
PARTS = ["generation", "ahead", "gone", "bus", "pool", "boxes", "long"]
WAYS = st.sampled_from(["learn", "propose", "secret", "bus"])
LONG = st.sampled_from([3000, 10**5]).map("x".__mul__)
NAMES = st.sampled_from(["alpha", "nobody's", "", "\ud800"]) | st.text(max_size=5) | LONG
BOX = st.sampled_from(HONEST)


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


class Pool(RuleBasedStateMachine):
    """Boxes a and b have the program's own memberships and files; the other one is the test."""

    owner: ClassVar[BoxPool]

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        boxes = (Box(name="a", addresses=("127.0.0.1",), port=9), Box(name="b", dials_out=True), Box(name="h0"))
        self.rosters = 0
        self.boxes: dict[str, Membership] = {}
        for name in HONEST:
            write_pool(self.path(name), KeptPool(secret=bytes(32), me=name, roster=Roster(pool="p", boxes=boxes)))
            self.start(name)

    def teardown(self) -> None:
        try:
            for name in HONEST:
                self.restart(name)
            self.take_it_out()
        finally:
            self.folder.cleanup()

    def path(self, name: str) -> Path:
        return Path(self.folder.name) / f"{name}.json"

    def start(self, name: str) -> None:
        kept = read_pool(self.path(name))
        assert kept is not None
        kernel, peers = self.owner._program.kernel, self.owner._peers
        hands = OwnHands(self.owner._nursery, kernel.owners, peers)
        self.boxes[name] = trio.from_thread.run_sync(Membership, self.path(name), kept, kernel, peers, hands)

    def hear(self, make: Callable[[], Awaitable[T]]) -> T | None:
        """As a door does: a member that says something wrong is told so, and nothing else happens."""
        try:
            return trio.from_thread.run(make)
        except (BadRequest, Conflict):
            return None

    @rule(to=BOX, what=st.sampled_from(PARTS), number=NUMBERS, first=st.booleans(), way=WAYS)
    def roster(self, to: str, what: str, number: int, way: str, *, first: bool) -> None:
        box, self.rosters = self.boxes[to], self.rosters + 1
        said: dict[str, Any] = msgspec.to_builtins(box.roster)
        said["generation"] = number if what == "generation" else said["generation"] + (number if what == "ahead" else 1)
        if what in ("bus", "pool"):
            said[what] = "nats" * (number % 999)
        if what == "gone":
            room = max(0, MOST_GONE - len(said["gone"]))
            said["gone"] = [*said["gone"], *(f"g{self.rosters}-{each}" for each in range(room + number % 2))]
        if what in ("boxes", "long"):
            hosts = ["x" * 250] * 64 if what == "long" else ["127.0.0.1"]
            fakes = [{"name": f"f{self.rosters}-{each}", "addresses": hosts, "port": 9} for each in range(number % 70)]
            said["boxes"] = [*fakes, *said["boxes"]] if first else [*said["boxes"], *fakes]
        raw = encoded(said)
        found = decoded(Roster, raw)
        if way == "bus":
            found = box.on_bus._roster_in(BucketEntry(value=raw, revision=1))
        if found is None:
            return
        new = NewSecret(box.kept.secret, found)
        ways = {"propose": lambda: box.propose(found), "secret": lambda: box.learn_secret(new)}
        self.hear(ways.get(way, lambda: box.learn(found)))

    @rule(to=BOX, model=NAMES, epoch=NUMBERS, holder=st.text(max_size=200), many=st.booleans())
    def order(self, to: str, model: str, epoch: int, holder: str, *, many: bool) -> None:
        box = self.boxes[to]
        said = decoded(PlacementOrder, encoded({"op": "load", "model": model, "epoch": epoch, "holder": holder}))
        if said is not None and model != "alpha":
            assert trio.from_thread.run(box._orders._obey, said)
            assert model not in box._fences.stored(), "nobody has it"
        record = understood(encoded([holder, epoch]))
        for name in [f"{model}{number}" for number in range(MOST_MODELS + 2)] if many else ["alpha"]:
            box._fences.saw(name, record.epoch, record.holder)
        assert box._fences.highest("alpha") <= time.time(), "a next epoch is possible a second later"

    @rule(to=BOX, box=st.sampled_from(["a", "b", "h0", "f1-0"]) | st.integers(0, 9**6).map("x{}".format),
          sequence=NUMBERS, generation=NUMBERS)  # fmt: skip
    def beat(self, to: str, box: str, sequence: int, generation: int) -> None:
        said = encoded({"box": box, "incarnation": "i", "sequence": sequence, "generation": generation})
        trio.from_thread.run_sync(
            self.boxes[to].on_bus._on_beat, BusMessage(subject=f"pool.p.beat.{box}", sid=1, data=said)
        )

    @rule(number=NUMBERS)
    def answer_for_the_bus(self, number: int) -> None:
        try:
            found = direct_entry("roster", BusMessage(subject="", sid=1, headers={"Nats-Sequence": str(number)}))
        except BusRefused:
            return
        assert found is not None
        assert found.revision < 10**18

    @rule(to=BOX)
    def restart(self, to: str) -> None:
        trio.from_thread.run(self.boxes[to]._keep_epochs)
        before = self.boxes[to].kept
        self.start(to)
        assert self.boxes[to].kept == before

    @rule(back=st.booleans())
    def honest_boxes_tell_each_other(self, back: bool) -> None:
        one, other = (self.boxes[name] for name in (HONEST[::-1] if back else HONEST))
        told = msgspec.json.decode(msgspec.json.encode(one.roster), type=Roster)
        assert trio.from_thread.run(other.learn, told).generation >= told.generation

    @rule()
    def take_it_out(self) -> None:
        one, other = (self.boxes[name] for name in HONEST)
        self.honest_boxes_tell_each_other(back=True)
        without = [box.name for box in one.roster.boxes if box.name not in HONEST]
        trio.from_thread.run(one.rotate, without)
        new = NewSecret(one.kept.secret, one.roster)
        trio.from_thread.run(other.learn_secret, msgspec.json.decode(msgspec.json.encode(new), type=NewSecret))
        assert one.kept.secret == other.kept.secret != bytes(32)
        for box in (one, other):
            assert {each.name for each in box.roster.boxes} == set(HONEST)
            assert not box.over.is_set()
        back = Box(name=one.roster.free_name("h"))
        trio.from_thread.run(one.change, lambda roster: roster.with_box(back))

    @invariant()
    def it_grows_by_a_bound(self) -> None:
        for name, box in self.boxes.items():
            assert self.path(name).stat().st_size <= MAX_SIZE
            assert len(msgspec.json.encode(box.roster)) <= LARGEST
            assert len(box._fences.stored()) <= MOST_MODELS
            heard = box.on_bus._presence.heard
            assert heard.keys() <= {each.name for each in box.roster.boxes} or len(heard) <= 2 * MOST_BOXES


@pytest.mark.slow
async def test_whatever_a_member_says_the_others_can_take_it_out(
    open_server: OpenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_bus, "AGREE_TIME", 0.1)  # nobody has a connection to the bus here
    async with open_server(pool=tmp_path / "pool.json") as server:
        Pool.owner = await seat_of(server).require()
        quiet = settings(max_examples=10, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck))

        def play() -> None:
            for what, edge in product(PARTS, EDGES):
                pool = Pool()
                pool.roster("a", what, number_at(edge), "learn", first=True)
                pool.teardown()
            run_state_machine_as_test(Pool, settings=quiet)

        await trio.to_thread.run_sync(play)
