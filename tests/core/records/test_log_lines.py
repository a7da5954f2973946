"""Log lines in llama-swap's form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from appliance.core.records.log_lines import (
    LineStyle,
    client_address,
    duration,
    is_quiet,
    request_line,
    stamp,
)

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
    ("level", "shown"),
    [("debug", "dinwe"), ("info", "inwe"), ("WARN", "we"), (" error ", "e"), ("loud", "inwe")],
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
