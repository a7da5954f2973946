"""Keys on the bus: answers are understood or refused, names become words, and a watch notices every lost message."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.features.pool.core.buckets import (
    BucketEntry,
    BusConflict,
    BusError,
    BusRefused,
    Watching,
    api_answer,
    as_word,
    direct_entry,
)
from appliance.features.pool.core.nats import SUBJECT, BusMessage


@given(st.text(max_size=20), st.text(max_size=20))
def test_names_of_any_characters_become_different_words(one: str, other: str):
    word = as_word(one)
    assert SUBJECT.match(word)
    assert not {".", "*", ">"} & set(word)
    assert (one == other) == (word == as_word(other))


@given(
    st.binary(max_size=40)
    | st.recursive(st.integers() | st.text(max_size=5), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_an_answer_is_understood_or_refused(data: bytes):
    try:
        api_answer(data)
    except BusError:
        pass


@pytest.mark.parametrize(("code", "error"), [(10071, BusConflict), (10164, BusConflict), (10008, BusRefused)])
def test_a_wrong_revision_is_a_conflict_and_the_rest_a_refusal(code: int, error: type[BusError]):
    with pytest.raises(error, match="words"):
        api_answer(json.dumps({"error": {"code": 400, "err_code": code, "description": "words"}}).encode())


def test_a_deleted_key_is_a_marker_with_a_revision():
    message = BusMessage(subject="i", sid=1, data=b"x", headers={"Nats-Sequence": "7", "KV-Operation": "DEL"})
    assert direct_entry("k", message) == BucketEntry(value=b"", revision=7)
    assert direct_entry("k", BusMessage(subject="i", sid=1, status="404")) is None
    for status, number in (("408", ""), ("408", "7"), ("", ""), ("", "seven"), ("", "\u0667")):
        with pytest.raises(BusRefused, match="'k'"):
            direct_entry("k", BusMessage(subject="i", sid=1, status=status, headers={"Nats-Sequence": number}))


CHANGES = st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=3), st.booleans()), min_size=1, max_size=12)


def sent(changes: list[tuple[str, bytes, bool]], *, new: bool) -> list[BusMessage]:
    """What a server sends for these puts, each followed by a heartbeat."""
    messages: list[BusMessage] = []
    for number, (key, value, marker) in enumerate(changes, 1):
        front, end = ("$JS.ACK.hub.account.KV_b.c.1", "0.x") if new else ("$JS.ACK.KV_b.c.1", "0")
        messages.append(
            BusMessage(
                subject=f"$KV.b.{key}", sid=1, data=value, reply=f"{front}.{number + 40}.{number}.1700.{end}",
                headers={"KV-Operation": "DEL"} if marker else {},
            )
        )  # fmt: skip
        messages.append(BusMessage(subject="i", sid=1, status="100", headers={"Nats-Last-Consumer": str(number)}))
    return messages


@given(CHANGES, st.booleans())
def test_a_watch_that_hears_everything_knows_the_last_value_of_each_key(
    changes: list[tuple[str, bytes, bool]], new: bool
):
    watching = Watching("b")
    assert [watching.hear(message) for message in sent(changes, new=new)] == ["changed", "alive"] * len(changes)
    last = {key: b"" if marker else value for key, value, marker in changes}
    assert {key: entry.value for key, entry in watching.entries.items()} == last


@given(CHANGES, st.data())
def test_a_watch_never_shows_a_value_after_a_gap(changes: list[tuple[str, bytes, bool]], data: st.DataObject):
    """Messages are lost, doubled, strange or exchanged. Until the watch notices, it shows a true state of a moment."""
    messages = sent(changes, new=False)
    received = list(messages)
    at = data.draw(st.integers(0, len(messages) - 1))
    match data.draw(st.sampled_from(["lose", "double", "stray", "exchange"])):
        case "lose":
            del received[at]
        case "double":
            received.insert(at, received[at])
        case "stray":
            put = at - at % 2
            received[put] = structs.replace(received[put], subject="$KV.other.a")
        case _:
            other = data.draw(st.integers(0, len(messages) - 1))
            received[at], received[other] = received[other], received[at]
    watching = Watching("b")
    heard = 0
    for message in received:
        if watching.hear(message) == "changed":
            heard += 1
        if watching.broken:
            break
        whole = {key: b"" if marker else value for key, value, marker in changes[:heard]}
        assert {key: entry.value for key, entry in watching.entries.items()} == whole
    if received[-1] == messages[-1]:
        assert watching.broken or heard == len(changes), "the last heartbeat tells of every message that is missing"
    if watching.broken:
        assert watching.hear(messages[0]) == "broken"
