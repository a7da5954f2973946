"""The icon beside the clock, over the session's D-Bus; `rules` decides what it shows and answers."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# jeepney has no types.

from __future__ import annotations

import logging
import os

import jeepney
import trio
from jeepney.io.trio import DBusConnection, open_dbus_connection

from appliance.features.desktop import rules as tray
from appliance.features.desktop.board import Act, Board
from appliance.trio_parts import beside

DBUS, DBUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"

log = logging.getLogger(__name__)


async def show_icon(board: Board, act: Act) -> None:
    """Show the icon wherever icons are shown, until cancelled. A session without D-Bus has none."""
    try:
        async with await open_dbus_connection("SESSION") as connection, beside() as nursery:
            nursery.start_soon(_send_changes, board, connection)
            await _answer_calls(board, act, connection)
    except (OSError, KeyError, RuntimeError, jeepney.AuthenticationError, trio.BrokenResourceError) as cause:
        log.info("there is no icon: %s", cause)


async def _answer_calls(board: Board, act: Act, connection: DBusConnection) -> None:
    name = f"{tray.ITEM}-{os.getpid()}-1"
    bus = jeepney.DBusAddress(DBUS_PATH, DBUS, DBUS)
    shows = f"type='signal',sender='{DBUS}',member='NameOwnerChanged',arg0='{tray.WATCHER}'"
    await connection.send(jeepney.new_method_call(bus, "AddMatch", "s", (shows,)))
    await connection.send(jeepney.new_method_call(bus, "RequestName", "su", (name, 0)))
    await _register(connection, name)
    while True:
        message = await connection.receive()
        fields, kind = message.header.fields, message.header.message_type
        member = fields.get(jeepney.HeaderFields.member, "")
        if kind is jeepney.MessageType.signal and member == "NameOwnerChanged" and message.body[2]:
            await _register(connection, name)  # a panel has started, perhaps again
        elif kind is jeepney.MessageType.method_call:
            interface = fields.get(jeepney.HeaderFields.interface, "")
            answer = tray.answer(interface, member, message.body, board.facts, board.revision)
            if answer.reply is None:
                error = f"{DBUS}.Error.UnknownMethod"
                await connection.send(jeepney.new_error(message, error, "s", (f"there is no {interface}.{member}",)))
            else:
                await connection.send(jeepney.new_method_return(message, *answer.reply))
            if answer.action is not None:
                await act(answer.action)


async def _register(connection: DBusConnection, name: str) -> None:
    """Ask to be shown. Without anybody who shows icons the bus answers with an error, which is passed over."""
    watcher = jeepney.DBusAddress(tray.WATCHER_PATH, tray.WATCHER, tray.WATCHER)
    await connection.send(jeepney.new_method_call(watcher, "RegisterStatusNotifierItem", "s", (name,)))


async def _send_changes(board: Board, connection: DBusConnection) -> None:
    item = jeepney.DBusAddress(tray.ITEM_PATH, interface=tray.ITEM)
    lines = jeepney.DBusAddress(tray.MENU_PATH, interface=tray.MENU)
    told = board.revision
    while True:
        told = await board.change_since(told)
        for member in ("NewIcon", "NewToolTip"):
            await connection.send(jeepney.new_signal(item, member))
        await connection.send(jeepney.new_signal(lines, "LayoutUpdated", "ui", (told, 0)))
