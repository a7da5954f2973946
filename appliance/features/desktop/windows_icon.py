"""The icon beside the clock of Windows; `rules` decides what it shows.

Windows sends an icon's messages to the thread that made its window, so the window has a thread of its own. Between the
two go posted messages (to the window) and Trio's own queue (from it). Reference: Win32, "Notifications and the
Notification Area", version 4.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum

import trio

from appliance.features.desktop import rules as tray
from appliance.features.desktop.board import Act, Board
from appliance.features.desktop.rules import Action
from appliance.features.desktop.windows_calls import SIGNATURES, WINDOW_PROCEDURE, Message, NotifyIcon, WindowClass
from appliance.platform.win32 import WindowsRefused, win32
from appliance.trio_parts import beside

CLASS = "llama-appliance"  # the class of the window, by which other programs can find it
SELECTED, KEY_SELECTED, CONTEXT_MENU = 0x400, 0x401, 0x7B  # the user's ways to use the icon
ADD, MODIFY, DELETE, SET_VERSION = 0, 1, 2, 4
WITH_MESSAGE_ICON_TIP, VERSION = 0x1 | 0x2 | 0x4 | 0x80, 4
ICON_FORMAT = 0x30000
SEPARATOR, GREYED, CHECKED = 0x800, 0x1, 0x8
RIGHT_BUTTON = 0x2
CLICKS = 16  # clicks that may wait; more are dropped
TASKBAR_MADE = "TaskbarCreated"  # the shell has started, perhaps again, and has lost its icons

log = logging.getLogger(__name__)


class WindowMessage(IntEnum):
    """Messages that the window answers. The last two are of our own: see the constants above; the board has changed."""

    DESTROY = 0x2
    CLOSE = 0x10
    END_SESSION = 0x16
    COMMAND = 0x111
    ON_ICON = 0x8001
    ON_CHANGE = 0x8002


async def show_icon(board: Board, act: Act) -> None:
    """Show the icon until cancelled. A session without a notification area has none."""
    sender, receiver = trio.open_memory_channel[Action](CLICKS)
    token = trio.lowlevel.current_trio_token()

    def deliver(action: Action) -> None:
        with suppress(trio.WouldBlock):
            sender.send_nowait(action)

    icon = _Icon(board, lambda action: token.run_sync_soon(deliver, action))

    async def act_on_clicks() -> None:
        async for action in receiver:
            await act(action)

    try:
        async with beside(act_on_clicks) as nursery:
            nursery.start_soon(_post_changes, board, icon)
            await trio.to_thread.run_sync(icon.run)
    except WindowsRefused as cause:
        log.info("there is no icon: %s", cause)


async def _post_changes(board: Board, icon: _Icon) -> None:
    """Post each change of the board to the icon; when cancelled, close it. That ends its thread."""
    seen = board.revision
    try:
        while True:
            seen = await board.change_since(seen)
            icon.post(WindowMessage.ON_CHANGE)
    finally:
        icon.close()


class _Icon:
    """A window that nobody sees, its icon and its menu. All but `post` and `close` run in the thread of `run`."""

    def __init__(self, board: Board, deliver: Callable[[Action], None]) -> None:
        self._api = win32(SIGNATURES, {})
        self._board = board
        self._deliver = deliver
        self._window = self._image = self._taskbar_made = 0
        self._closed = False

    def post(self, message: int) -> None:
        """Have the icon's thread receive a message. One that has no window yet reads the board when it makes it."""
        if self._window:
            self._api.calls["PostMessageW"](self._window, message, 0, 0)

    def close(self) -> None:
        """Take the icon away, and end `run`."""
        self._closed = True  # in this order: `run` sets the window first and looks at this afterwards
        self.post(WindowMessage.CLOSE)

    def run(self) -> None:
        """Show the icon until `close`. Raises WindowsRefused."""
        kind = WindowClass(procedure=WINDOW_PROCEDURE(self._on_message), name=CLASS)
        self._api("RegisterClassW", ctypes.byref(kind))
        # Not a window for messages alone: that gets none of a new taskbar, nor of the session's end.
        self._window = self._api("CreateWindowExW", 0, CLASS, tray.TITLE, 0, 0, 0, 0, 0, None, None, None, None)
        self._taskbar_made = self._api("RegisterWindowMessageW", TASKBAR_MADE)
        self._add()
        if self._closed:
            self.post(WindowMessage.CLOSE)
        message = Message()
        while (self._api.calls["GetMessageW"](ctypes.byref(message), None, 0, 0) or 0) > 0:
            self._api.calls["DispatchMessageW"](ctypes.byref(message))

    def _on_message(self, window: int, message: int, word: int, value: int) -> int:
        """The window's procedure."""
        match message:
            case WindowMessage.ON_ICON if value & 0xFFFF in (SELECTED, KEY_SELECTED):
                self._deliver("open")
            case WindowMessage.ON_ICON if value & 0xFFFF == CONTEXT_MENU:
                self._show_menu(ctypes.c_int16(word & 0xFFFF).value, ctypes.c_int16(word >> 16 & 0xFFFF).value)
            case WindowMessage.ON_CHANGE:
                self._notify(MODIFY)
            case WindowMessage.COMMAND:
                if (action := tray.clicked(tray.menu(self._board.facts), word & 0xFFFF)) is not None:
                    self._deliver(action)
            case WindowMessage.END_SESSION if word:
                self._deliver("quit")
            case WindowMessage.CLOSE:
                self._notify(DELETE)
                self._api.calls["DestroyWindow"](window)
            case WindowMessage.DESTROY:
                self._api.calls["PostQuitMessage"](0)
            case self._taskbar_made:
                self._add()
            case _:
                return self._api.calls["DefWindowProcW"](window, message, word, value) or 0
        return 0

    def _add(self) -> None:
        """A session without a shell refuses; the shell tells when it starts."""
        self._notify(ADD)
        self._notify(SET_VERSION)

    def _notify(self, what: int) -> None:
        """Tell the shell what the board says."""
        facts, before = self._board.facts, self._image
        image = tray.image(facts.condition)
        size = tray.SIDE
        self._image = self._api("CreateIconFromResourceEx", image, len(image), True, ICON_FORMAT, size, size, 0)
        told = NotifyIcon(size=ctypes.sizeof(NotifyIcon), window=self._window, id=1, version=VERSION)
        told.flags, told.message, told.icon = WITH_MESSAGE_ICON_TIP, WindowMessage.ON_ICON, self._image
        words = f"{tray.TITLE}: {facts.in_words}"[: len(told.tip) - 1].encode("utf-16-le")
        ctypes.memmove(told.tip, words, len(words))
        self._api.calls["Shell_NotifyIconW"](what, ctypes.byref(told))
        if before:
            self._api.calls["DestroyIcon"](before)

    def _show_menu(self, x: int, y: int) -> None:
        menu = self._api("CreatePopupMenu")
        for item in tray.menu(self._board.facts):
            flags = (
                (0 if item.label else SEPARATOR) | (0 if item.enabled else GREYED) | (CHECKED if item.checked else 0)
            )
            self._api("AppendMenuW", menu, flags, item.id, item.label.replace("&", "&&"))
        self._api.calls["SetForegroundWindow"](self._window)  # else a click elsewhere does not close the menu
        self._api.calls["TrackPopupMenu"](menu, RIGHT_BUTTON, x, y, 0, self._window, None)
        self._api.calls["DestroyMenu"](menu)
