"""The protocol of NATS: the cut of the bytes changes nothing, and whatever comes is understood or refused."""

from __future__ import annotations

import pytest
from cutting import cut
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.pool.core.nats import (
    MOST_LINE,
    MOST_PAYLOAD,
    PING,
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
