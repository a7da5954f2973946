"""The words of sd_notify."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.sd_notify import SystemdWatch, message, watch_of


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, SystemdWatch()),
        ({"NOTIFY_SOCKET": "@"}, SystemdWatch()),
        ({"NOTIFY_SOCKET": "/run/n"}, SystemdWatch("/run/n")),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "3000000"}, SystemdWatch("@n", 1.5)),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, SystemdWatch("/n", 1.5)),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, SystemdWatch("/n")),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "0"}, SystemdWatch("/n")),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "nonsense"}, SystemdWatch("/n")),
    ],
)
def test_what_systemd_asks_is_read(environ: dict[str, str], found: SystemdWatch) -> None:
    assert watch_of(environ, 7) == found


@given(st.text())
def test_no_text_can_smuggle_in_an_assignment(text: str) -> None:
    assert len(message(STATUS=text, READY=1).decode("utf-8", "surrogatepass").split("\n")) == 2
