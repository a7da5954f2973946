"""Kept contexts: their manifests and limits, and their origin, whose key knows every difference."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from appliance.core.llama import flags
from appliance.core.models.identity import FileIdentity
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
from appliance.features.contexts.core.origin import Origin, files_named, origin_of, outdated

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


FILES = (FileIdentity("/m/a.gguf", 10, 20, 30),)
ARGV = ("--model", "/m/a.gguf", "--ctx-size", "4096", "--cache-type-k", "q8_0", "--port", "1")


def origin(*words: str, files: tuple[FileIdentity, ...] = FILES, engine: str = "e") -> Origin:
    return origin_of(files, flags.split((*ARGV, *words)), engine, build="linux-x64-cpu/b1", seat="linux-x64-cpu/b1:CPU")


def key(*words: str, files: tuple[FileIdentity, ...] = FILES, engine: str = "e") -> str:
    return origin(*words, files=files, engine=engine).key


@pytest.mark.parametrize(
    "words",
    [
        ("--port", "5801"), ("--host", "::1"), ("-a", "other"), ("-t", "7"), ("-tb", "7"), ("-b", "512"), ("-ub", "1"),
        ("-cram", "0"), ("--no-cache-idle-slots",), ("--slot-save-path", "/x"), ("--metrics",), ("-lv", "4"), ("-v",),
        ("--api-key", "k"), ("--log-file", "/l"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_options_without_effect_on_a_context_do_not_change_the_key(words: tuple[str, ...]) -> None:
    assert key(*words) == key()


@pytest.mark.parametrize(
    "words",
    [
        ("-ctk", "f16"), ("-ctv", "q8_0"), ("--rope-scale", "2"), ("--rope-freq-base", "1"), ("--lora", "/l.gguf"),
        ("--swa-full",), ("-fa", "off"), ("-c", "8192"), ("--parallel", "2"), ("-md", "/d.gguf"), ("--no-kv-offload",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_other_option_does(words: tuple[str, ...]) -> None:
    assert key(*words) != key()


@pytest.mark.parametrize("field", ["path", "size", "mtime_ns", "inode"])
def test_so_does_each_sign_of_another_file_and_the_engine(field: str) -> None:
    other = msgspec.structs.replace(FILES[0], **{field: "/b" if field == "path" else 99})
    assert len({key(), key(files=(other,)), key(files=(*FILES, other)), key(engine="f")}) == 4


def test_every_file_of_a_model_is_named() -> None:
    argv = (
        *("-m", "/m/a-00001-of-00003.gguf", "--mmproj", "/m/p.gguf"),
        *("--control-vector", "/l/1.gguf,/l/2.gguf", "--control-vector-scaled", "/c.gguf:1"),
    )
    named = [PurePath(path).as_posix() for path in files_named(flags.split(argv))]
    assert named == [
        *(f"/m/a-0000{number}-of-00003.gguf" for number in (1, 2, 3)),
        *("/m/p.gguf", "/l/1.gguf", "/l/2.gguf", "/c.gguf"),
    ]
    assert files_named(flags.split(("--hf-repo", "o/r"))) == ()


def test_options_that_a_seat_gets_do_not_change_what_all_seats_of_a_model_have_in_common() -> None:
    words = ("--device", "none", "-ngl", "7", "-fitt", "64", "-c", "8192", "-np", "2", "-kvu", "--ctx-checkpoints", "3")
    assert origin(*words).shape == origin("--kv-unified-per-slot", "512", engine="f").shape == origin().shape
    assert origin("-ctk", "f16").shape != origin().shape


CUDA, OLD_CUDA = "linux-x64-cuda13/b12:CUDA0", "linux-x64-cuda13/b11:CUDA0"
SEATS: tuple[str, ...] = (CUDA, OLD_CUDA, f"{CUDA}+CUDA1", "embedded:CPU")
LIMITS = Limits(at_most=6, stays_free=0, hourly=1e9)


def is_update(old: str, new: str) -> bool:
    return old == OLD_CUDA and new.startswith("linux-x64-cuda13/b12")


class Facts(NamedTuple):
    """Everything on which a context depends."""

    seat: str
    engine: int
    file: int
    cache: str
    size: int

    @property
    def build(self) -> str:
        return self.seat.partition(":")[0]

    @property
    def origin(self) -> Origin:
        device = self.seat.partition(":")[2].replace("+", ",")
        words = ("-m", "/m/a.gguf", "--device", device, "-c", str(self.size), "-ctk", self.cache)
        file = FileIdentity("/m/a.gguf", 10, self.file, 30)
        return origin_of((file,), flags.split(words), f"{self.build} {self.engine}", build=self.build, seat=self.seat)


class ChangesOfSeats(RuleBasedStateMachine):
    """One model, of which contexts are kept; its file, its options, the engines and their plans change."""

    def __init__(self) -> None:
        super().__init__()
        self.engines = dict.fromkeys([seat.partition(":")[0] for seat in SEATS], 0)
        self.sizes = dict.fromkeys(SEATS, 4096)
        self.file, self.cache = 0, "f16"
        self.now: Facts | None = None
        self.kept: dict[str, tuple[Facts, KeptContext]] = {}
        self.clock = 0

    def there(self, seat: str) -> Facts:
        """A start there, as the world is."""
        return Facts(seat, self.engines[seat.partition(":")[0]], self.file, self.cache, self.sizes[seat])

    def begin(self, seat: str) -> None:
        self.now = self.there(seat)
        for name, (facts, context) in list(self.kept.items()):
            if outdated(context, self.now.origin):
                del self.kept[name]
                assert facts != self.there(facts.seat) or is_update(facts.seat, seat), "it would fit there again"

    def offered(self) -> set[str]:
        """The contexts that the process may have back."""
        return {name for name, (_, context) in self.kept.items() if context.key == self.now.origin.key}

    @rule(seat=st.sampled_from(SEATS))
    def start(self, seat: str) -> None:
        self.begin(seat)
        now = self.there(seat)
        for facts, _ in self.kept.values():
            assert (facts.file, facts.cache) == (now.file, now.cache)
            assert facts.engine == now.engine or facts.build != now.build
            assert facts == now or facts.seat != seat
            assert not is_update(facts.seat, seat)

    @precondition(lambda self: self.now is not None)
    @rule(seat=st.sampled_from(SEATS))
    def crash_and_come_back(self, seat: str) -> None:
        self.begin(self.now.seat)
        before, home = self.offered(), self.now.seat
        self.begin(seat)
        self.begin(home)
        assert self.offered() == before or is_update(home, seat)

    @precondition(lambda self: self.now is not None)
    @rule(size=st.integers(1, 3))
    def save(self, size: int) -> None:
        """Contexts of all seats share one budget, and the least recently used ones go."""
        assert self.now is not None
        self.clock += 1
        room = Room(free=100, written=0, now=self.clock)
        gone = victims((context for _, context in self.kept.values()), size, LIMITS, room)
        assert gone is not None
        oldest = sorted(context.used for _, context in self.kept.values())
        assert [each.used for each in gone] == oldest[: len(gone)]
        for each in gone:
            del self.kept[each.name]
        context = KeptContext(
            **msgspec.structs.asdict(self.now.origin), name=f"{self.clock:032x}", model="m", chain=(), ends=(),
            prompt=1, tokens=1, size=size, token_seconds=1, used=self.clock,
        )  # fmt: skip
        self.kept[context.name] = self.now, context
        assert sum(context.size for _, context in self.kept.values()) <= LIMITS.at_most

    @rule(is_file=st.booleans())
    def another_file_or_option(self, is_file: bool) -> None:
        if is_file:
            self.file += 1
        else:
            self.cache = "q8_0" if self.cache == "f16" else "f16"

    @rule(seat=st.sampled_from(SEATS))
    def another_engine_of_that_name(self, seat: str) -> None:
        self.engines[seat.partition(":")[0]] += 1

    @rule(seat=st.sampled_from(SEATS))
    def another_plan(self, seat: str) -> None:
        self.sizes[seat] = 12288 - self.sizes[seat]

    @invariant()
    def only_what_fits_is_given_back(self) -> None:
        if self.now is not None:
            assert self.offered() == {name for name, (facts, _) in self.kept.items() if facts == self.now}


TestChangesOfSeats = ChangesOfSeats.TestCase


@pytest.mark.parametrize(
    ("old", "new", "stays"),
    [
        (OLD_CUDA, CUDA, False),
        (CUDA, f"{CUDA}+CUDA1", True),
        (CUDA, OLD_CUDA, True),
        ("linux-x64-cuda13/b12-sm90:CUDA0", CUDA, True),
        ("linux-x64-cuda13/b12:", CUDA, False),
        ("linux-x64-cuda13/b12:", "embedded:CPU", True),
        ("/opt/1/llama-server:CPU", "/opt/2/llama-server:CPU", True),
        ("/opt/llama-server-1:CPU", "/opt/llama-server-2:CPU", True),
    ],
)
def test_a_newer_release_takes_the_place_of_an_older_one(old: str, new: str, stays: bool) -> None:
    """But not where the older one stands in for it, and a seat whose devices were not known does not come again."""
    before, now = Facts(old, 0, 0, "f16", 1).origin, Facts(new, 0, 0, "f16", 1).origin
    assert (outdated(before, now) == "") == stays


def test_a_context_of_an_earlier_program_is_of_use_to_a_process_with_its_key() -> None:
    """It does not name its seat."""
    assert outdated(Origin(key=key()), origin()) == ""
    assert outdated(Origin(key=key()), origin("-c", "8192")) != ""
