"""Server-sent events: however the bytes are cut, the same events, and never a torn record."""

from __future__ import annotations

import json

import pytest
from cutting import cut
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.core.bodies import sse

EVENTS = st.lists(st.builds(sse.SseEvent, st.text(st.characters(codec="utf-8"))))
CUTS = st.lists(st.integers(0, 400), max_size=20)


def decode(chunks: list[bytes]) -> list[sse.SseEvent]:
    decoder = sse.Decoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def unified(event: sse.SseEvent) -> sse.SseEvent:
    """As a reader sees it: all three line ends are one."""
    return sse.SseEvent(event.data.replace("\r\n", "\n").replace("\r", "\n"), event.name or None, event.id)


@given(EVENTS, st.sampled_from(["delta", "error", None]), CUTS)
def test_decoding_undoes_encoding_however_the_bytes_are_cut(
    events: list[sse.SseEvent], name: str | None, at: list[int]
):
    sent = [sse.SseEvent(event.data, name, "7") for event in events]
    whole = sse.PING.join(sse.encode(event) for event in sent)
    assert decode(cut(whole, at)) == [unified(event) for event in sent]


LINES = st.lists(st.sampled_from([b"data: a", b"event: b", b": c", b"id: 1", b"data", b"\n", b"\r", b"\r\n"]))


@given(LINES.map(b"".join) | st.binary(max_size=300), CUTS)
def test_records_of_every_line_end_and_garbage_decode_the_same_however_they_are_cut(whole: bytes, at: list[int]):
    assert decode(cut(whole, at)) == decode([whole])


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [sse.SseEvent("YHOO\n+2\n10")]),
        (b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third", [
            sse.SseEvent("first event", None, "1"), sse.SseEvent("second event", None, ""),
        ]),
        (b"data\n\ndata\ndata\n\ndata:", [sse.SseEvent(""), sse.SseEvent("\n")]),
        (b"data:test\n\ndata: test\n\n", [sse.SseEvent("test"), sse.SseEvent("test")]),
        (b"\xef\xbb\xbfdata: x\r\rdata: y\r\n\r\n", [sse.SseEvent("x"), sse.SseEvent("y")]),
        (b"event: e\n\ndata: x\n\n", [sse.SseEvent("x")]),
        (b"data: \xff\n\n", [sse.SseEvent("\ufffd")]),
        (b'error: {"code":500}\n\ndata: x\n\n', [sse.SseEvent('{"code":500}', "error"), sse.SseEvent("x")]),
        (b"error: a\nerror: b\n\n", [sse.SseEvent("a\nb", "error")]),
        (b"event: delta\ndata: x\nerror: y\n\n", [sse.SseEvent("x", "delta"), sse.SseEvent("y", "error")]),
    ],
)  # fmt: skip
def test_examples_of_the_standard_and_of_an_engines_error_field_which_is_an_event_of_its_own(
    stream: bytes, events: list[sse.SseEvent]
):
    assert decode([stream]) == events
    assert decode([bytes([byte]) for byte in stream]) == events


def test_a_record_without_end_is_refused_before_it_fills_memory():
    for piece, times in ((b"x", 1000), (b"data: x\n", 142), (b"error: x\n", 125)):
        decoder = sse.Decoder(limit=1000)
        for _ in range(times):
            assert decoder.feed(piece) == []
        with pytest.raises(sse.RecordTooLong):
            decoder.feed(piece)


@given(st.lists(st.sampled_from([b"data: abc", b"\n", b"\r\n", b"\r", b"x" * 50])), CUTS)
def test_whole_records_passes_everything_on_in_order_and_tears_nothing(parts: list[bytes], at: list[int]):
    whole = b"".join(parts)
    records, passed = sse.WholeRecords(), b""
    for chunk in cut(whole, at):
        ready = records.feed(chunk)
        assert not ready or ready.endswith((b"\n\n", b"\n\r\n", b"\n\r", b"\r\r"))
        passed += ready
    assert not records.torn
    assert passed + records.rest() == whole
    assert decode([passed]) == decode([whole])


def test_whole_records_does_not_copy_what_ends_with_a_record():
    chunk = b"data: {}\n\n"
    assert sse.WholeRecords().feed(chunk) is chunk


@given(CUTS)
def test_a_record_beyond_the_limit_goes_through_and_is_marked_torn(at: list[int]):
    whole = b"data: " + b"x" * 300
    records = sse.WholeRecords(limit=100)
    passed = b"".join(records.feed(chunk) for chunk in cut(whole, at))
    assert records.torn
    assert passed + records.rest() == whole
    assert records.feed(b"\n\ndata: y") == b"\n\n"
    assert not records.torn


INFO = sse.ErrorInfo(message='broken\n"so"', type="server_error", code=502, reason="upstream_failed")


ANSWERS = [
    ([b'data: {"choices":[{"delta":{"content":"%b"}}]}', b'data: {"choices":[{"finish_reason":"stop"}]}'], 1),
    ([b'data: {"choices":[{"text":"%b","finish_reason":null}]}', b"data: [DONE]"], 1),
    ([b'data: {"content":"%b","stop":false}', b'data: {"content":"","stop":true}'], 1),
    ([b'event: x\ndata: {"delta":"%b"}', b'event: e\ndata: {"type": "response.incomplete", "response": {}}'], 1),
    (
        [
            b'data: {"type":"message_start","stop_reason":null}',
            b'data: {"delta":"%b"}',
            b'data: {"type":"message_stop"}',
        ],
        2,
    ),
    ([b'data: {"content":"%b"}', b'data: {"error":{"message":"m"}}'], 1),
]
"""The records of an answer, and which of them is its end."""


@given(st.sampled_from(ANSWERS), st.text(), st.sampled_from([b"\n", b"\r\n"]), st.integers(0, 300), CUTS)
@example(ANSWERS[2], "0\U00010000", b"\r\n", 125, [376])  # all but the last line feed, and then that
def test_an_answer_that_ends_with_its_connection_is_whole_only_with_its_end(
    answer: tuple[list[bytes], int], said: str, line: bytes, most: int, at: list[int]
):
    """Whatever it says itself: a text that holds the words of an end is no end."""
    text = json.dumps(said + '"finish_reason":"stop" data: [DONE]').encode()[1:-1]
    records = [record.replace(b"%b", text).replace(b"\n", line) + 2 * line for record in answer[0]]
    whole, stream = len(b"".join(records)), b"".join(records)[:most]
    framed, unframed = sse.WholeRecords(), sse.UnframedRecords()
    for chunk in cut(stream, at):
        assert framed.feed(chunk) == unframed.feed(chunk)
    enough = whole - len(line) if most >= whole - len(line) else whole
    assert (unframed.missing() == "") is (len(stream) >= enough)
    assert not framed.missing() or not stream.endswith(2 * line)


def test_an_error_of_ollama_is_one_line():
    line = sse.error_record(sse.Dialect.OLLAMA, INFO)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"error": INFO.message}


@pytest.mark.parametrize("dialect", [dialect for dialect in sse.Dialect if dialect is not sse.Dialect.OLLAMA])
def test_an_error_is_one_record_in_the_words_of_its_dialect(dialect: sse.Dialect):
    [event] = decode([sse.error_record(dialect, INFO)])
    told = json.loads(event.data)
    assert told["error"]["message"] == INFO.message
    assert told["error"]["reason"] == "upstream_failed"
    if dialect is sse.Dialect.OPENAI:
        assert event.name is None
    else:
        assert (event.name, told["type"]) == ("error", "error")
    if dialect is sse.Dialect.RESPONSES:
        assert (told["code"], told["message"], told["param"]) == ("upstream_failed", INFO.message, None)


def test_a_record_as_long_as_the_limit_is_whole():
    records = sse.WholeRecords(limit=100)
    assert records.feed(b"data: ".ljust(100, b"x")) == b""
    assert not records.torn
