"""What the icon shows, what its menu offers, its answers to any call, and the calls of Windows for it."""

from __future__ import annotations

import ctypes
import struct
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jeepney.low_level import Endianness, parse_signature
from windows_headers import ICON_PROTOTYPES, ICON_STRUCTURES, check_calls

from appliance.features.desktop import rules as tray
from appliance.features.desktop import windows_calls

CONDITIONS: tuple[tray.Condition, ...] = get_args(tray.Condition)
facts = st.builds(tray.TrayState, condition=st.sampled_from(CONDITIONS), url=st.text(max_size=20), login=st.booleans())


def encodes(signature: str, values: tuple[object, ...]) -> None:
    """Fails unless D-Bus can carry the values under this signature."""
    parse_signature(list(f"({signature})")).serialise(values, 0, Endianness.little, [])


@given(
    facts,
    st.sampled_from((tray.ITEM, tray.MENU, tray.PROPERTIES, "org.freedesktop.DBus.Peer", "x")),
    st.sampled_from(
        ("Get", "GetAll", "GetLayout", "GetGroupProperties", "GetProperty", "Event", "EventGroup", "Ping", "")
    ),
    st.lists(
        st.one_of(
            st.integers(-2, 12), st.sampled_from((tray.ITEM, tray.MENU, "Title", "label", "clicked")), st.just([])
        ),
        max_size=4,
    ),
)
def test_every_answer_to_any_call_can_be_sent(
    facts: tray.TrayState, interface: str, member: str, args: list[object]
) -> None:
    found = tray.answer(interface, member, args, facts, 3)
    if found.reply is not None:
        encodes(*found.reply)
    assert found.action is None or any(item.action == found.action and item.enabled for item in tray.menu(facts))


@pytest.mark.parametrize("condition", CONDITIONS)
def test_each_condition_has_its_lines_its_properties_and_its_picture(condition: tray.Condition) -> None:
    shown = tray.TrayState(condition=condition, url="http://127.0.0.1:8080")
    for interface in (tray.ITEM, tray.MENU):
        encodes("a{sv}", (tray.properties(interface, shown),))
    assert tray.properties(tray.ITEM, shown)["ToolTip"][1][3] == shown.in_words  # type: ignore[index]
    assert "Version" in tray.properties(tray.MENU, shown)
    assert tray.properties("org.freedesktop.DBus.Peer", shown) == {}
    encodes("u(ia{sv}av)", tray.answer(tray.MENU, "GetLayout", (0, -1, []), shown, 1).reply[1])  # type: ignore[index]
    enabled = {item.action for item in tray.menu(shown) if item.enabled and item.label}
    assert ("start" in enabled) != ("stop" in enabled) or condition == "elsewhere"
    picture = tray.icon(condition)
    assert len(picture) == 4 * tray.SIDE * tray.SIDE
    assert picture[:4] == b"\0\0\0\0"
    assert tray.COLOURS[condition].to_bytes(4, "big") in picture
    resource = tray.image(condition)
    assert struct.unpack("<Iii", resource[:12]) == (40, tray.SIDE, 2 * tray.SIDE)
    rows = struct.unpack(f"<{tray.SIDE * tray.SIDE}I", resource[40 : 40 + 4 * tray.SIDE * tray.SIDE])
    upright = [rows[at : at + tray.SIDE] for at in range(0, len(rows), tray.SIDE)][::-1]
    assert b"".join(pixel.to_bytes(4, "big") for row in upright for pixel in row) == picture


@pytest.mark.parametrize("condition", CONDITIONS)
def test_quitting_says_what_becomes_of_the_server(condition: tray.Condition) -> None:
    """It ends the server that the program owns, which is the one that "Stop" would stop, and no other."""
    *_, line = (item for item in tray.menu(tray.TrayState(condition=condition)))
    stops = any(item.action == "stop" and item.enabled for item in tray.menu(tray.TrayState(condition=condition)))
    assert line.action == "quit"
    assert ("stop the server" in line.label) == stops
    assert ("goes on" in line.label) == (condition == "elsewhere")


def test_only_a_click_on_a_line_that_is_enabled_asks_for_something() -> None:
    stopped = tray.TrayState(condition="stopped")
    lines = {item.label: item.id for item in tray.menu(stopped)}
    for label, event, action in (("Start", "clicked", "start"), ("Start", "hovered", None), ("Stop", "clicked", None)):
        assert tray.answer(tray.MENU, "Event", (lines[label], event, ("i", 0), 0), stopped, 1).action == action
    events = [(lines["Stop"], "clicked", ("i", 0), 0), (lines["Quit"], "clicked", ("i", 0), 0)]
    assert tray.answer(tray.MENU, "EventGroup", (events,), stopped, 1).action == "quit"
    assert tray.answer(tray.ITEM, "Activate", (0, 0), stopped, 1).action == "open"


def test_the_entry_that_starts_at_login_quotes_what_a_path_may_have() -> None:
    [line] = [line for line in tray.autostart(["/a b/50%/$x", 'q"\\']).splitlines() if line.startswith("Exec=")]
    assert line == 'Exec="/a b/50%%/\\\\$x" "q\\\\"\\\\\\\\"'


def test_every_call_has_the_types_of_windows() -> None:
    check_calls(windows_calls.SIGNATURES, ICON_PROTOTYPES)


def test_every_structure_has_the_size_of_windows() -> None:
    ours = {
        "WNDCLASSW": windows_calls.WindowClass,
        "MSG": windows_calls.Message,
        "NOTIFYICONDATAW": windows_calls.NotifyIcon,
    }
    assert {name: ctypes.sizeof(each) for name, each in ours.items()} == ICON_STRUCTURES
