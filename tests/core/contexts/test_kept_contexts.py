"""Kept contexts: manifests come back as they were or not at all, the key knows every difference, and limits hold."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import PurePath

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.contexts.kept import (
    MAX_AGE,
    PIECE,
    FileIdentity,
    KeptContext,
    Limits,
    Room,
    files_named,
    key_of,
    limits_of,
    manifest_of,
    pieces_of,
    read_manifest,
    victims,
    worth,
)
from appliance.core.llama import flags
from appliance.core.records.cache import kept_rows
from appliance.core.sizes import GIB

FILES = (FileIdentity("/m/a.gguf", 10, 20, 30),)
ARGV = ("--model", "/m/a.gguf", "--ctx-size", "4096", "--cache-type-k", "q8_0", "--port", "1")
sizes = st.integers(0, 1 << 40)
times = st.floats(0, 1e10)


@st.composite
def contexts(draw: st.DrawFn, size: st.SearchStrategy[int] = sizes) -> KeptContext:
    bytes_ = draw(size)
    ends = sorted(draw(st.lists(sizes, max_size=4)))
    return KeptContext(
        name=draw(st.text("0123456789abcdef", min_size=32, max_size=32)),
        key=draw(st.text()),
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


some = st.lists(contexts(st.integers(0, 100)), max_size=8, unique_by=lambda each: each.name)


# ---- manifests -------------------------------------------------------------------------------------------------------


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


@given(st.binary())
def test_anything_else_is_refused(data: bytes) -> None:
    assert read_manifest(data) is None


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
    good = KeptContext(
        name="a" * 32,
        key="",
        model="m",
        chain=(b"a",),
        ends=(1,),
        prompt=1,
        tokens=1,
        size=9,
        token_seconds=0,
        pieces=(7,),
    )
    plain = msgspec.json.decode(manifest_of(good))
    assert read_manifest(msgspec.json.encode(plain)) == good
    plain["context"].update(change)
    assert read_manifest(msgspec.json.encode(plain)) is None


def test_a_manifest_of_another_version_is_refused() -> None:
    good = KeptContext(name="a" * 32, key="", model="m", chain=(), ends=(), prompt=1, tokens=1, size=0, token_seconds=0)
    plain = msgspec.json.decode(manifest_of(good))
    assert read_manifest(msgspec.json.encode({**plain, "version": plain["version"] + 1})) is None


# ---- the key ---------------------------------------------------------------------------------------------------------


def key(*words: str, files: tuple[FileIdentity, ...] = FILES, engine: str = "e") -> str:
    return key_of(files, flags.split((*ARGV, *words)), engine)


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


# ---- limits ----------------------------------------------------------------------------------------------------------


@given(
    some,
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
