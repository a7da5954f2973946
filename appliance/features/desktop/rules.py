"""The icon beside the clock: what it shows, what its menu holds, and the answers that it gives over D-Bus.

The protocols are StatusNotifierItem (freedesktop.org, "Status Notifier Item") and com.canonical.dbusmenu, which
KDE, Xfce, MATE, LXQt, Cinnamon, and GNOME with its AppIndicator extension show. Values are those of jeepney: a variant
is ``(signature, value)``, a struct is a tuple. Windows has no such protocol: it takes `image` and `menu`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, cast

from msgspec import Struct

ITEM, MENU = "org.kde.StatusNotifierItem", "com.canonical.dbusmenu"
WATCHER, WATCHER_PATH = "org.kde.StatusNotifierWatcher", "/StatusNotifierWatcher"
ITEM_PATH, MENU_PATH = "/StatusNotifierItem", "/MenuBar"
PROPERTIES = "org.freedesktop.DBus.Properties"
TITLE = "Llama Appliance"

Action = Literal["open", "start", "stop", "log", "login", "quit"]
Condition = Literal["starting", "running", "elsewhere", "stopped", "failed"]
SAID: Mapping[Condition, str] = {
    "starting": "Starting",
    "running": "Running at {url}",
    "elsewhere": "Another start of it runs at {url}",
    "stopped": "Stopped",
    "failed": "It ended by itself; the log says why",
}
COLOURS: Mapping[Condition, int] = {
    "starting": 0xFFE0B040, "running": 0xFF59C392, "elsewhere": 0xFF59C392, "stopped": 0xFF9AA5AC, "failed": 0xFFD9534F
}  # fmt: skip
QUIT: Mapping[Condition, str] = {
    "starting": "Quit and stop the server",
    "running": "Quit and stop the server",
    "elsewhere": "Quit; the server goes on",
    "stopped": "Quit",
    "failed": "Quit",
}
"""The last line of the menu: it says what stays running before the user decides."""
Variant = tuple[str, object]
Reply = tuple[str, tuple[object, ...]]  # signature and values of an answer
NOTHING: list[object] = []
SIDE = 32
GROUND, LLAMA, CLEAR = 0xFF1F3A4D, 0xFFF4EFE6, 0
OUTLINE = (
    (44, 106), (44, 74), (40, 58), (40, 34), (44, 22), (48, 33), (56, 33), (60, 22), (64, 34), (64, 38), (82, 50),
    (68, 59), (62, 59), (72, 67), (76, 67), (90, 81), (90, 106), (80, 106), (80, 88), (58, 88), (58, 106),
)  # fmt: skip
"""The animal of installer/llama-appliance.svg, in its 128 units, with straight lines."""


class TrayState(Struct, frozen=True, kw_only=True):
    """The state of affairs that the icon shows. ``login``: the program starts at login."""

    condition: Condition
    url: str = ""
    login: bool = False

    @property
    def in_words(self) -> str:
        return SAID[self.condition].format(url=self.url)


class MenuItem(Struct, frozen=True, kw_only=True):
    """A line of the menu; one without ``label`` separates. ``checked``: None if there is nothing to check."""

    id: int
    label: str = ""
    action: Action | None = None
    enabled: bool = True
    checked: bool | None = None


class CallReply(Struct, frozen=True, kw_only=True):
    """The reply to a call, None where the interface lacks that member; and the action that the call asks for."""

    reply: Reply | None = None
    action: Action | None = None


def menu(facts: TrayState) -> tuple[MenuItem, ...]:
    """Return the lines of the menu."""
    serves = facts.condition in ("running", "elsewhere")
    return (
        MenuItem(id=1, label=facts.in_words, enabled=False),
        MenuItem(id=2, label="Open the page", action="open", enabled=serves),
        MenuItem(id=3),
        MenuItem(id=4, label="Start", action="start", enabled=facts.condition in ("stopped", "failed")),
        MenuItem(id=5, label="Stop", action="stop", enabled=facts.condition in ("starting", "running")),
        MenuItem(id=6, label="Show the log", action="log", enabled=facts.condition != "elsewhere"),
        MenuItem(id=7, label="Start at login", action="login", checked=facts.login),
        MenuItem(id=8),
        MenuItem(id=9, label=QUIT[facts.condition], action="quit"),
    )


def answer(interface: str, member: str, args: Sequence[object], facts: TrayState, revision: int) -> CallReply:
    """Return what follows from a method call. ``revision`` counts the menu's changes."""
    match interface, member, args:
        case "org.freedesktop.DBus.Peer", "Ping", _:
            return CallReply(reply=("", ()))
        case "org.freedesktop.DBus.Introspectable", "Introspect", _:
            return CallReply(reply=("s", ("<node/>",)))
        case "org.freedesktop.DBus.Properties", "GetAll", [str(of)]:
            return CallReply(reply=("a{sv}", (properties(of, facts),)))
        case "org.freedesktop.DBus.Properties", "Get", [str(of), str(name)] if name in properties(of, facts):
            return CallReply(reply=("v", (properties(of, facts)[name],)))
        case "org.kde.StatusNotifierItem", "Activate" | "SecondaryActivate", _:
            return CallReply(reply=("", ()), action="open")
        case "org.kde.StatusNotifierItem", "ContextMenu" | "Scroll", _:
            return CallReply(reply=("", ()))
        case "com.canonical.dbusmenu", _, _:
            return _menu_answer(member, args, menu(facts), revision)
        case _:
            return CallReply()


def clicked(items: Sequence[MenuItem], id: int) -> Action | None:
    """Return what a click on the line with this number asks for."""
    return next((item.action for item in items if item.id == id and item.enabled), None)


def _menu_answer(member: str, args: Sequence[object], items: Sequence[MenuItem], revision: int) -> CallReply:
    match member, args:
        case "GetLayout", [int(parent), *_]:
            root: dict[str, Variant] = {"children-display": ("s", "submenu")} if parent == 0 else {}
            children: list[Variant] = [("(ia{sv}av)", (each.id, shown(each), NOTHING)) for each in items if parent == 0]
            return CallReply(reply=("u(ia{sv}av)", (revision, (parent, root, children))))
        case "GetGroupProperties", [list(), *_]:
            ids = cast("list[int]", args[0])
            wanted = [item for item in items if not ids or item.id in ids]
            return CallReply(reply=("a(ia{sv})", ([(item.id, shown(item)) for item in wanted],)))
        case "GetProperty", [int(id), str(name)]:
            found = [shown(item)[name] for item in items if item.id == id and name in shown(item)]
            return CallReply(reply=("v", (found[0],))) if found else CallReply()
        case "Event", [int(id), str(event), *_]:
            return CallReply(reply=("", ()), action=clicked(items, id) if event == "clicked" else None)
        case "EventGroup", [list()]:
            events = cast("list[tuple[int, str, object, int]]", args[0])
            clicks: list[Action] = [
                click for id, event, *_ in events if event == "clicked" and (click := clicked(items, id)) is not None
            ]
            return CallReply(reply=("ai", ([],)), action=clicks[0] if clicks else None)
        case "AboutToShow", _:
            return CallReply(reply=("b", (False,)))
        case "AboutToShowGroup", _:
            return CallReply(reply=("aiai", ([], [])))
        case _:
            return CallReply()


def shown(item: MenuItem) -> dict[str, Variant]:
    """Return a line's properties; those that have their default are left out."""
    if not item.label:
        return {"type": ("s", "separator")}
    found: dict[str, Variant] = {"label": ("s", item.label.replace("_", "__"))}
    if not item.enabled:
        found["enabled"] = ("b", False)
    if item.checked is not None:
        found |= {"toggle-type": ("s", "checkmark"), "toggle-state": ("i", int(item.checked))}
    return found


def properties(interface: str, facts: TrayState) -> dict[str, Variant]:
    """Return all properties of the icon or of its menu."""
    if interface == MENU:
        texts: dict[str, Variant] = {"TextDirection": ("s", "ltr"), "Status": ("s", "normal")}
        return {"Version": ("u", 3), **texts, "IconThemePath": ("as", [])}
    if interface != ITEM:
        return {}
    words = {"Category": "ApplicationStatus", "Id": "llama-appliance", "Title": TITLE, "Status": "Active"}
    none = ("IconName", "OverlayIconName", "AttentionIconName", "AttentionMovieName")
    found: dict[str, Variant] = {name: ("s", word) for name, word in (words | dict.fromkeys(none, "")).items()}
    return found | {
        "WindowId": ("i", 0),
        "IconPixmap": ("a(iiay)", [(SIDE, SIDE, icon(facts.condition))]),
        "OverlayIconPixmap": ("a(iiay)", NOTHING),
        "AttentionIconPixmap": ("a(iiay)", NOTHING),
        "ToolTip": ("(sa(iiay)ss)", ("", NOTHING, TITLE, facts.in_words)),
        "ItemIsMenu": ("b", False),
        "Menu": ("o", MENU_PATH),
    }


@lru_cache
def icon(condition: Condition) -> bytes:
    """Return the picture: `SIDE` rows of ARGB, big-endian; the disc at its corner has the condition's colour."""
    middles = [(at + 0.5) * 128 / SIDE for at in range(SIDE)]
    return b"".join(_pixel(x, y, condition).to_bytes(4, "big") for y in middles for x in middles)


def _pixel(x: float, y: float, condition: Condition) -> int:
    if (x - 100) ** 2 + (y - 100) ** 2 <= 26**2:
        return COLOURS[condition]
    # A point is in the outline if a line to the right of it crosses an odd number of edges.
    edges = zip(OUTLINE, (*OUTLINE[1:], OUTLINE[0]), strict=True)
    crossed = [(y1 > y) != (y2 > y) and x < (x2 - x1) * (y - y1) / (y2 - y1) + x1 for (x1, y1), (x2, y2) in edges]
    if sum(crossed) % 2 == 1:
        return LLAMA
    across, down = max(28 - x, x - 100, 0.0), max(28 - y, y - 100, 0.0)
    return GROUND if across**2 + down**2 <= 28**2 else CLEAR


def image(condition: Condition) -> bytes:
    """Return the picture as a resource of Windows: BITMAPINFOHEADER, rows of BGRA from the lowest, an empty mask."""
    pixels = struct.unpack(f">{SIDE * SIDE}I", icon(condition))
    rows = b"".join(struct.pack(f"<{SIDE}I", *pixels[at : at + SIDE]) for at in range(SIDE * (SIDE - 1), -1, -SIDE))
    head = struct.pack("<IiiHHIIiiII", 40, SIDE, 2 * SIDE, 1, 32, 0, len(rows), 0, 0, 0, 0)
    return head + rows + bytes(SIDE * SIDE // 8)


def autostart(command: Sequence[str]) -> str:
    """Return the desktop entry that starts the program at login (freedesktop.org, "Desktop Application Autostart")."""
    # In ``Exec=`` is a string of the file, within it a quoted word, within it ``%`` as a code.
    words = (re.sub(r'[\\"`$]', r"\\\g<0>", word).replace("\\", "\\\\").replace("%", "%%") for word in command)
    quoted = " ".join(f'"{word}"' for word in words)
    return (
        "[Desktop Entry]\nType=Application\nVersion=1.5\n"
        f"Name={TITLE}\nExec={quoted}\nIcon=llama-appliance\nTerminal=false\nX-GNOME-Autostart-enabled=true\n"
    )
