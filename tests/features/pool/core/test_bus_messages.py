"""What is said on the bus, and by its server: the protocol of NATS, keys and watches, configuration and log."""

from __future__ import annotations

import json
import re

import pytest
from cutting import cut
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.pool.core.buckets import (
    BucketEntry,
    BusConflict,
    BusError,
    BusRefused,
    api_answer,
    as_word,
    direct_entry,
)
from appliance.features.pool.core.bus_config import BusServing, config_text, end_of, sign_of, store_of
from appliance.features.pool.core.keys import BoxCertificate, PoolKeys
from appliance.features.pool.core.nats import (
    MOST_LINE,
    MOST_PAYLOAD,
    PING,
    SUBJECT,
    WORDS,
    BusMessage,
    NatsEvent,
    NatsGarbage,
    NatsReader,
    ServerInfo,
    ServerRefusal,
    publish_lines,
    subscribe_line,
)

FILES = BoxCertificate(ca="", certificate="", key="")
SERVING = BusServing(group="all", name="b1", port=4281, files=FILES, keys=PoolKeys(bytes(32)))


def test_the_lines_that_it_printed_once():
    assert sign_of("[1] 2026/11/27 12:13:18.798127 [INF] Server is ready") == "ready"
    assert sign_of("[ERR] 10.0.0.2:6222 - rid:5 - TLS route handshake error: tls: failed to verify certificate: x509: "
                   "certificate signed by unknown authority") == "authority"  # fmt: skip
    assert sign_of("[1] [ERR] JetStream out of resources, will be DISABLED") == "no-disk"
    assert sign_of('{"status":"unavailable","error":"JetStream not enabled (10076)"}') == "no-disk"
    assert sign_of('{"error":"JetStream is not current with the meta leader (10008)"}') == "other"
    assert end_of(["[7] [FTL] Can't listen: address already in use", "[7] [INF] bye"]).endswith("already in use")
    assert end_of(["nats-server: /x/bus.conf:6:1: error parsing X509", ""]) == "/x/bus.conf:6:1: error parsing X509"
    assert end_of([]) == ""


@given(st.text(max_size=30).filter(lambda text: "\\" not in text))
def test_a_folder_of_any_name_stays_one_text(folder: str):
    """Its lines hold the path in quotes, which ends where JSON's text ends."""
    found = re.search(r"store_dir: (.*), max_memory_store", config_text(SERVING, folder))
    assert json.loads(found[1]) == f"{folder}/{store_of(SERVING.group)}"


def test_only_a_voter_has_routes():
    assert "cluster" not in config_text(SERVING, "f")


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


WORD = st.text(st.sampled_from("abcXYZ019$_-"), min_size=1, max_size=8)
SUBJECTS = st.lists(WORD, min_size=1, max_size=4).map(".".join)
HEADERS = st.dictionaries(WORD, st.text(st.characters(min_codepoint=33, max_codepoint=400), max_size=12), max_size=3)
MESSAGES = st.builds(
    BusMessage,
    subject=SUBJECTS,
    sid=st.integers(0, 10**9),
    reply=st.just("") | SUBJECTS,
    data=st.binary(max_size=60) | st.just(b"MSG a 1 3\r\nabc\r\n"),
    status=st.sampled_from(["", "100", "404", "503"]),
    headers=HEADERS,
)
EVENTS: st.SearchStrategy[NatsEvent] = st.one_of(
    MESSAGES,
    st.sampled_from(list(WORDS.values())),
    st.builds(ServerRefusal, st.sampled_from(["Authorization Violation", "Stale Connection"])),
    st.builds(ServerInfo, nonce=WORD, ldm=st.booleans()),
)
PIECES = st.sampled_from(
    [b"MSG ", b"HMSG ", b"INFO ", b"{", b"}", b" ", b"a.b", b"1", b"99999999999", b"-1", b"\r\n", b"NATS/1.0", b"\r",
     b":", PING, b"-ERR 'x'\r\n", b"\xff", b"MSG a 1 2\r\nhi\r\n", b"HMSG a 1 12 12\r\nNATS/1.0\r\n\r\n\r\n"]
)  # fmt: skip
GARBAGE = st.lists(PIECES | st.binary(max_size=4), max_size=12).map(b"".join)


def spoken(event: NatsEvent) -> bytes:
    """The bytes with which a server says this, written from the documents and not with the code under test."""
    match event:
        case ServerInfo():
            ldm = "true" if event.ldm else "false"
            return f'INFO {{"server_name":"s","x":[1],"nonce":"{event.nonce}","ldm":{ldm}}}\r\n'.encode()
        case ServerRefusal():
            return f"-ERR '{event.words}'\r\n".encode()
        case str():
            return f"{event}\r\n".encode()
        case BusMessage():
            reply = f" {event.reply}" if event.reply else ""
            start = f"{event.subject} {event.sid}{reply}"
            if not (event.status or event.headers):
                return f"MSG {start} {len(event.data)}\r\n".encode() + event.data + b"\r\n"
            lines = "".join(f"{name}:{value}\r\n" for name, value in event.headers.items())
            status = f" {event.status} Some Words" if event.status else ""
            head = f"NATS/1.0{status}\r\n{lines}\r\n".encode()
            return f"HMSG {start} {len(head)} {len(head) + len(event.data)}\r\n".encode() + head + event.data + b"\r\n"


def heard(pieces: list[bytes]) -> tuple[list[NatsEvent], str]:
    """All events of these pieces, and the words of the error at which they ended."""
    reader, events = NatsReader(), list[NatsEvent]()
    try:
        for piece in pieces:
            reader.receive(piece)
            while (event := reader.next_event()) is not None:
                events.append(event)
    except NatsGarbage as cause:
        return events, str(cause)
    return events, ""


@given(st.lists(EVENTS, max_size=6), st.lists(st.integers(0, 2000), max_size=8))
def test_a_server_is_understood_however_its_bytes_are_cut(events: list[NatsEvent], places: list[int]):
    data = b"".join(map(spoken, events))
    assert heard(cut(data, places)) == (events, "")


@given(st.lists(EVENTS.map(spoken), max_size=2).map(b"".join), GARBAGE, st.lists(st.integers(0, 200), max_size=4))
def test_garbage_gives_the_same_events_and_the_same_error_byte_by_byte(good: bytes, garbage: bytes, places: list[int]):
    data = good + garbage
    assert heard([data]) == heard([bytes([each]) for each in data]) == heard(cut(data, places))


@pytest.mark.parametrize(
    "data",
    [
        b"x" * (MOST_LINE + 2),
        b"INFO {" + b" " * MOST_LINE + b"}\r\n",
        f"MSG a 1 {MOST_PAYLOAD + 1}\r\n".encode(),
        b"HMSG a 1 9 8\r\n",
        b"HMSG a 1 0 8\r\n",
        b"INFO {\r\n",
        b"GET / HTTP/1.1\r\n",
        b"MSG a 1 2\r\nabc\r\n",
        b"MSG a b c d\r\n",
        b"INFO " + b"[" * 9000 + b"\r\n",
    ],
)
def test_more_than_a_server_ever_sends_is_refused_at_once(data: bytes):
    assert heard([data])[1]
    assert heard([data]) == heard([bytes([each]) for each in data])


@given(SUBJECTS, st.binary(max_size=40), HEADERS, st.just("") | SUBJECTS)
def test_a_published_message_is_the_one_that_a_server_hands_on(
    subject: str, data: bytes, headers: dict[str, str], reply: str
):
    verb, _, rest = publish_lines(subject, data, headers, reply).partition(b" ")
    wanted = BusMessage(subject=subject, sid=7, reply=reply, data=data, headers=headers)
    as_heard = rest.replace(subject.encode(), subject.encode() + b" 7", 1)
    assert heard([{b"PUB": b"MSG ", b"HPUB": b"HMSG "}[verb] + as_heard]) == ([wanted], "")


@given(st.text(max_size=8), st.text(max_size=8))
def test_no_command_can_be_ended_early(subject: str, value: str):
    """One command stays one command, whatever the words in it are."""
    for make in (lambda: publish_lines(subject, b""), lambda: subscribe_line(subject, 1)):
        try:
            line = make()
        except ValueError:
            continue
        assert line.count(b"\r\n") == (2 if line.startswith(b"PUB") else 1)
        assert not {"\r", "\n", " "} & set(subject)
    if "\r" in value or "\n" in value:
        with pytest.raises(ValueError, match="end of a line"):
            publish_lines("a", b"", {"x": value})
