"""What the icon shows, what its menu offers, and its answers to any call."""

from __future__ import annotations

import struct
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jeepney.low_level import Endianness, parse_signature

from appliance.features.desktop.rules import (
    COLOURS,
    ITEM,
    MENU,
    PROPERTIES,
    SIDE,
    Condition,
    TrayState,
    answer,
    autostart,
    icon,
    image,
    menu,
    properties,
)

CONDITIONS: tuple[Condition, ...] = get_args(Condition)
facts = st.builds(TrayState, condition=st.sampled_from(CONDITIONS), url=st.text(max_size=20), login=st.booleans())


def encodes(signature: str, values: tuple[object, ...]) -> None:
    """Fails unless D-Bus can carry the values under this signature."""
    parse_signature(list(f"({signature})")).serialise(values, 0, Endianness.little, [])


@given(
    facts,
    st.sampled_from((ITEM, MENU, PROPERTIES, "org.freedesktop.DBus.Peer", "x")),
    st.sampled_from(
        ("Get", "GetAll", "GetLayout", "GetGroupProperties", "GetProperty", "Event", "EventGroup", "Ping", "")
    ),
    st.lists(
        st.one_of(st.integers(-2, 12), st.sampled_from((ITEM, MENU, "Title", "label", "clicked")), st.just([])),
        max_size=4,
    ),
)
def test_every_answer_to_any_call_can_be_sent(
    facts: TrayState, interface: str, member: str, args: list[object]
) -> None:
    found = answer(interface, member, args, facts, 3)
    if found.reply is not None:
        encodes(*found.reply)
    assert found.action is None or any(item.action == found.action and item.enabled for item in menu(facts))


@pytest.mark.parametrize("condition", CONDITIONS)
def test_each_condition_has_its_lines_its_properties_and_its_picture(condition: Condition) -> None:
    shown = TrayState(condition=condition, url="http://127.0.0.1:8080")
    for interface in (ITEM, MENU):
        encodes("a{sv}", (properties(interface, shown),))
    assert properties(ITEM, shown)["ToolTip"][1][3] == shown.in_words  # type: ignore[index]
    assert "Version" in properties(MENU, shown)
    assert properties("org.freedesktop.DBus.Peer", shown) == {}
    encodes("u(ia{sv}av)", answer(MENU, "GetLayout", (0, -1, []), shown, 1).reply[1])  # type: ignore[index]
    enabled = {item.action for item in menu(shown) if item.enabled and item.label}
    assert ("start" in enabled) != ("stop" in enabled) or condition == "elsewhere"
    picture = icon(condition)
    assert len(picture) == 4 * SIDE * SIDE
    assert picture[:4] == b"\0\0\0\0"
    assert COLOURS[condition].to_bytes(4, "big") in picture
    resource = image(condition)
    assert struct.unpack("<Iii", resource[:12]) == (40, SIDE, 2 * SIDE)
    rows = struct.unpack(f"<{SIDE * SIDE}I", resource[40 : 40 + 4 * SIDE * SIDE])
    upright = [rows[at : at + SIDE] for at in range(0, len(rows), SIDE)][::-1]
    assert b"".join(pixel.to_bytes(4, "big") for row in upright for pixel in row) == picture


@pytest.mark.parametrize("condition", CONDITIONS)
def test_quitting_says_what_becomes_of_the_server(condition: Condition) -> None:
    """It ends the server that the program owns, which is the one that "Stop" would stop, and no other."""
    *_, line = (item for item in menu(TrayState(condition=condition)))
    stops = any(item.action == "stop" and item.enabled for item in menu(TrayState(condition=condition)))
    assert line.action == "quit"
    assert ("stop the server" in line.label) == stops
    assert ("goes on" in line.label) == (condition == "elsewhere")


def test_only_a_click_on_a_line_that_is_enabled_asks_for_something() -> None:
    stopped = TrayState(condition="stopped")
    lines = {item.label: item.id for item in menu(stopped)}
    for label, event, action in (("Start", "clicked", "start"), ("Start", "hovered", None), ("Stop", "clicked", None)):
        assert answer(MENU, "Event", (lines[label], event, ("i", 0), 0), stopped, 1).action == action
    events = [(lines["Stop"], "clicked", ("i", 0), 0), (lines["Quit"], "clicked", ("i", 0), 0)]
    assert answer(MENU, "EventGroup", (events,), stopped, 1).action == "quit"
    assert answer(ITEM, "Activate", (0, 0), stopped, 1).action == "open"


def test_the_entry_that_starts_at_login_quotes_what_a_path_may_have() -> None:
    [line] = [line for line in autostart(["/a b/50%/$x", 'q"\\']).splitlines() if line.startswith("Exec=")]
    assert line == 'Exec="/a b/50%%/\\\\$x" "q\\\\"\\\\\\\\"'
