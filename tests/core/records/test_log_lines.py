"""Log lines in llama-swap's form; of a flood of them the newest are taken, the others counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.records.flood import HELD, LINES, MAX_LINE, WINDOW, FloodGate
from appliance.core.records.log_lines import LineStyle, client_address, duration, is_quiet, request_line, stamp

EST = timezone(timedelta(hours=-5), "EST")
WHEN = datetime(2026, 3, 5, 15, 4, 5, 123456, EST)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ansic", "Thu Mar  5 15:04:05 2026"),
        ("unixdate", "Thu Mar  5 15:04:05 EST 2026"),
        ("rubydate", "Thu Mar 05 15:04:05 -0500 2026"),
        ("rfc822", "05 Mar 26 15:04 EST"),
        ("rfc822z", "05 Mar 26 15:04 -0500"),
        ("rfc850", "Thursday, 05-Mar-26 15:04:05 EST"),
        ("rfc1123", "Thu, 05 Mar 2026 15:04:05 EST"),
        ("rfc1123z", "Thu, 05 Mar 2026 15:04:05 -0500"),
        ("rfc3339", "2026-03-05T15:04:05-05:00"),
        ("rfc3339nano", "2026-03-05T15:04:05.123456-05:00"),
        ("kitchen", "3:04PM"),
        ("stamp", "Mar  5 15:04:05"),
        ("stampmilli", "Mar  5 15:04:05.123"),
        ("stampmicro", "Mar  5 15:04:05.123456"),
        ("stampnano", "Mar  5 15:04:05.123456000"),
        ("RFC3339", "2026-03-05T15:04:05-05:00"),
        ("", ""),
        ("%Y", ""),
    ],
)
def test_every_time_format_of_the_configuration(name: str, expected: str):
    assert stamp(name, WHEN) == expected


def test_times_at_the_edges():
    midnight = datetime(2026, 12, 25, 0, 0, 0, 0, UTC)
    assert stamp("kitchen", midnight) == "12:00AM"
    assert stamp("kitchen", midnight.replace(hour=12)) == "12:00PM"
    assert stamp("rfc3339", midnight) == "2026-12-25T00:00:00Z"
    assert stamp("rfc3339nano", midnight) == "2026-12-25T00:00:00Z"
    assert stamp("ansic", midnight) == "Fri Dec 25 00:00:00 2026"
    assert stamp("rfc1123z", midnight.astimezone(timezone(timedelta(hours=5, minutes=30)))).endswith("05:30:00 +0530")


def test_a_line_has_its_time_only_where_one_is_wanted():
    assert LineStyle().line("info", "hello", WHEN) == "[INFO] hello"
    assert LineStyle("info", "kitchen").line("error", "hello", WHEN) == "3:04PM [ERROR] hello"


def test_a_line_stays_one_line_whatever_a_client_sent():
    assert LineStyle().line("warn", "a\nb\x1b[31m\r\u2028é", WHEN) == r"[WARN] a\nb\x1b[31m\r\u2028é"


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", "dinwe"), ("info", "inwe"), ("WARN", "we"), (" error ", "e"), ("loud", "inwe")]
)
def test_the_level_filters(level: str, shown: str):
    style = LineStyle(level)
    assert style.shows("debug") == ("d" in shown)
    assert style.shows("info") == ("i" in shown)
    assert style.shows("warn") == ("w" in shown)
    assert style.shows("error")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (5e-9, "5ns"), (1.5e-6, "1.5µs"), (0.0123456, "12.3456ms"), (1, "1s"), (2.25, "2.25s"),
     (60.5, "1m0.5s"), (3725, "1h2m5s"), (0.999999999, "999.999999ms")],
)  # fmt: skip
def test_durations_look_as_go_writes_them(seconds: float, text: str):
    assert duration(seconds) == text


def test_the_line_of_a_request():
    line = request_line("10.0.0.1", "POST", "/v1/x", "1.1", 200, 12, b"curl/8", 0.0015)
    assert line == 'Request 10.0.0.1 "POST /v1/x HTTP/1.1" 200 12 "curl/8" 1.5ms'
    assert is_quiet("/metrics")
    assert is_quiet("/api/performance?after=x")
    assert not is_quiet("/v1/models")


def test_who_asked():
    assert client_address("1.1.1.1, 2.2.2.2", "3.3.3.3", "4.4.4.4") == "1.1.1.1"
    assert client_address("", "3.3.3.3", "4.4.4.4") == "3.3.3.3"
    assert client_address(None, None, "4.4.4.4") == "4.4.4.4"


URGENT = b"state:"
LINE = st.one_of(
    st.integers(0, 80).map(lambda size: b"x" * size),
    st.sampled_from([b"state:ready", b"words state:loading", b"stat", b"e:"]),
)


@st.composite
def outputs(draw: st.DrawFn) -> list[tuple[bytes, float]]:
    """Pieces of an output with the seconds since the one before; calm and floods take turns."""
    runs = draw(st.lists(st.tuples(LINE, st.sampled_from([1, 3, 400, 900, 2500])), min_size=1, max_size=8))
    text = b"".join(b"%d %s\n" % (number, line) for line, times in runs for number in range(times))
    text += draw(LINE)
    pieces, at = list[tuple[bytes, float]](), 0
    while at < len(text):
        size = draw(st.sampled_from([1, 7, 100, 5000, 1 << 16]))
        size = max(size, len(text) // 300)
        pieces.append((text[at : at + size], draw(st.sampled_from([0.0, 0.001, 0.1, 0.3]))))
        at += size
    return pieces


@given(outputs())
def test_every_line_is_taken_once_in_order_or_counted(pieces: list[tuple[bytes, float]]) -> None:
    gate, taken, now, fed = FloodGate(URGENT), list[bytes](), 1.0, b""
    for piece, pause in pieces:
        now += pause
        fed += piece
        taken += gate.feed(piece, now)
        whole = fed.split(b"\n")[:-1]
        urgent = [line for line in whole if URGENT in line]
        assert [line for line in taken if URGENT in line] == urgent
        if not gate.is_holding:
            assert len(taken) + gate.lost == len(whole)
    taken += gate.feed(b"", now)
    whole = fed.split(b"\n") if not fed.endswith(b"\n") else fed.split(b"\n")[:-1]
    assert len(taken) + gate.lost == len(whole)
    order = iter(whole)
    assert all(line in order for line in taken), "in order"
    assert taken[-LINES:] == whole[-min(len(taken), LINES) :], "the last ones"
    if len(whole) <= LINES:
        assert taken == whole


@given(st.integers(1, 40), st.integers(1, 200))
def test_a_flood_costs_no_more_than_its_limit(windows: int, size: int) -> None:
    """As many lines as that in each window, but for the piece in which the first window's number is reached."""
    gate, piece = FloodGate(URGENT), (b"x" * size + b"\n") * ((1 << 16) // size)
    taken = 0
    for number in range(windows * 10):
        taken += len(gate.feed(piece, 1.0 + number * WINDOW / 10))
    assert taken <= LINES * (windows + 1) + piece.count(b"\n")


def test_a_line_without_an_end_takes_no_more_memory_than_in_calm() -> None:
    gate = FloodGate(URGENT)
    gate.feed(b"\n" * 2 * LINES, 1.0)
    lines = [line for _ in range(40) for line in gate.feed(b"y" * (1 << 16), 1.0)]
    assert sum(map(len, lines)) > MAX_LINE
    assert all(len(line) <= MAX_LINE + 3 * HELD for line in lines)
