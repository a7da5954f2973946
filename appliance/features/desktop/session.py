"""The desktop program itself: it owns a server for as long as the user wants one, opens the page, and shows an icon.

One process for each user: a second start opens the page of the first. Without a tray (no D-Bus, nobody who shows icons)
everything but the icon is the same. `rules` decides what the icon shows and answers.
"""

from __future__ import annotations

import logging
import os
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import psutil
import trio
from msgspec import Struct, structs

from appliance.core.installed import NAME as ACCOUNT
from appliance.core.lenient_json import decoded
from appliance.core.settings import DEFAULT_HOST, DEFAULT_PORT
from appliance.errors import Busy, UpstreamFailed
from appliance.features.desktop.board import Board
from appliance.features.desktop.login import start_at_login, starts_at_login
from appliance.features.desktop.rules import Action, Condition, TrayState
from appliance.parent import Ready
from appliance.platform.children import Children, open_children
from appliance.platform.console import PROGRAM, outer_environment, say
from appliance.platform.home import users_data
from appliance.platform.ports import user_at
from appliance.platform.process import Command, Sink, StopSteps, open_process
from appliance.platform.stopping import HANGUP, STOP_SIGNALS
from appliance.start import own_command
from appliance.store.model_files import open_private
from appliance.store.partial_file import FileTaken, claim
from appliance.trio_parts import beside
from appliance.upstream.client import Address, HttpCall

if sys.platform == "win32":
    from appliance.features.desktop.windows_icon import show_icon
else:
    from appliance.features.desktop.dbus_icon import show_icon

LOCK, READY, LOG = "desktop.lock", "desktop.json", "desktop.log"
"""Files in the user's data folder: held by the one desktop program, the server's address, what the server says."""
ENDING = StopSteps(asked=20.0)  # longer than a server's grace
MAX_LOG = 8 << 20
LOOK_EVERY = 0.1  # seconds between two looks for the address of a server that starts
GONE_EVERY = 2.0  # seconds between two looks whether a server that another program started still runs
LOOK_TIME = 2.0
PATIENCE = 60.0  # seconds that a second start waits for the first one's server
USUAL = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"

log = logging.getLogger(__name__)


class _Health(Struct, frozen=True):
    status: str


class _Models(Struct, frozen=True):
    data: list[object]


class Desktop:
    """The state of the one desktop program; `run_desktop` owns its tasks."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self.board = Board(TrayState(condition="stopped", login=starts_at_login()))
        self.wanted = trio.Event()
        self.stop = trio.CancelScope()
        self.ended = trio.Event()
        self._words = words
        self._ready, self._log = folder / READY, folder / LOG
        # The user says where the server listens, so no server elsewhere is meant.
        self._has_place = any(word.partition("=")[0] in ("--listen", "--port") for word in words)

    async def serve(self, children: Children, *, page: bool) -> None:
        """Have a server whenever one is wanted, until cancelled. ``page``: open the page for the first one."""
        while True:
            await self.wanted.wait()
            with trio.CancelScope() as self.stop:
                if not self._has_place and await _serves_user():
                    self._show_condition("elsewhere", USUAL)
                    if page:
                        await open_page(USUAL)
                    while await _serves_user():  # noqa: ASYNC110  nobody tells of its end
                        await trio.sleep(GONE_EVERY)
                    self._show_condition("stopped")
                else:
                    self._show_condition("starting")
                    await self._serve_own(children, page=page)
                    begun = bool(self.board.facts.url)
                    self._show_condition("failed")
                    if page and not begun:  # the user has opened a program, and would see nothing
                        await self.act("log")
            if self.stop.cancelled_caught:
                self._show_condition("stopped")
            page, self.wanted = False, trio.Event()

    async def _serve_own(self, children: Children, *, page: bool) -> None:
        """Run a server to its end."""
        port = () if self._has_place or await _is_free(DEFAULT_PORT) else ("--port", "0")
        argv = (*own_command(), "serve", "--ready-file", str(self._ready), "--parent-pid", str(os.getpid()))
        command = Command(argv=(*argv, *port, *self._words), env=outer_environment(), ending=ENDING)
        with open_private(self._log) as file:
            async with open_process(children, command, _into(file)) as child, beside() as nursery:
                nursery.start_soon(self._announce, page)
                await child.wait_exit()

    async def _announce(self, page: bool) -> None:
        while (url := _url_in(self._ready)) is None:  # noqa: ASYNC110  a file tells nobody
            await trio.sleep(LOOK_EVERY)
        self._show_condition("running", url)
        if page:
            await open_page(url)

    def _show_condition(self, condition: Condition, url: str = "") -> None:
        self.board.show(structs.replace(self.board.facts, condition=condition, url=url))

    async def act(self, action: Action) -> None:
        """Do what the user has asked for."""
        match action:
            case "open":
                if self.board.facts.url:
                    await open_page(self.board.facts.url)
            case "start":
                self.wanted.set()
            case "stop":
                self.stop.cancel()
            case "log":
                await open_page(self._log.as_uri())
            case "login":
                await self._change_login()
            case "quit":
                self.ended.set()

    async def _change_login(self) -> None:
        words = ("--no-page", *(("--", *self._words) if self._words else ()))
        command = None if self.board.facts.login else [*desktop_command(), *words]
        try:
            await trio.to_thread.run_sync(start_at_login, command)
        except OSError as cause:
            log.warning("the start at login cannot be changed: %s", cause)
        self.board.show(structs.replace(self.board.facts, login=starts_at_login()))


async def run_desktop(words: Sequence[str], *, page: bool) -> int:
    """Run until the user quits; the exit status. ``words`` are options of ``serve``. Raises OSError."""
    folder = users_data()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(environment := outer_environment())  # a browser must not load this program's libraries
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    try:
        lock = claim(folder / LOCK)
    except FileTaken:
        return await _open_first(folder)
    try:
        (folder / READY).unlink(missing_ok=True)
        desktop = Desktop(words, folder)
        desktop.wanted.set()
        async with open_children() as children, beside() as nursery:
            nursery.start_soon(partial(desktop.serve, children, page=page))
            nursery.start_soon(_quit_by_signal, desktop)
            nursery.start_soon(show_icon, desktop.board, desktop.act)
            await desktop.ended.wait()
        return 0
    finally:
        lock.release()


async def _quit_by_signal(desktop: Desktop) -> None:
    with trio.open_signal_receiver(*STOP_SIGNALS, *HANGUP) as signals:
        async for _ in signals:
            desktop.ended.set()


async def _open_first(folder: Path) -> int:
    """Open the page of the desktop program that runs already."""
    with trio.move_on_after(PATIENCE):
        while (found := _url_in(folder / READY)) is None and not await _serves_user():  # noqa: ASYNC110
            await trio.sleep(LOOK_EVERY)
        await open_page(found or USUAL)
        return 0
    say(f"{PROGRAM} runs already, and its server does not; its icon's menu starts it")
    return 1


async def open_page(url: str) -> None:
    """Open an address in the browser that the user's session names."""
    if not await trio.to_thread.run_sync(webbrowser.open, url):
        say(f"no browser was found; open {url}")


def desktop_command() -> list[str]:
    """Return the command that starts this program of the desktop: on Windows the one without a console."""
    command = own_command()
    apart = Path(command[0]).with_name(f"{PROGRAM}-desktop.exe")
    return [str(apart)] if sys.platform == "win32" and apart.is_file() else [*command, "desktop"]


def _url_in(ready: Path) -> str | None:
    with suppress(OSError):
        if (found := decoded(Ready, ready.read_bytes())) is not None:
            return found.url
    return None


async def _serves_user() -> bool:
    """True if a server for this user answers at the usual address: one of theirs, or the service if it wants no key.

    Another server there may belong to another user, who would get all that is written into its page.
    """
    user = await trio.to_thread.run_sync(user_at, DEFAULT_PORT)
    if user not in (ACCOUNT, await trio.to_thread.run_sync(psutil.Process().username)):
        return False
    path, answer = ("/v1/models", _Models) if user == ACCOUNT else ("/health", _Health)
    with trio.move_on_after(LOOK_TIME), suppress(UpstreamFailed, Busy):
        async with HttpCall(Address(DEFAULT_HOST, DEFAULT_PORT, None, USUAL), "GET", path) as response:
            return response.status == 200 and decoded(answer, await response.read(1 << 20)) is not None
    return False


async def _is_free(port: int) -> bool:
    try:
        listeners = await trio.open_tcp_listeners(port, host=DEFAULT_HOST)
    except OSError:
        return False
    for listener in listeners:
        await listener.aclose()
    return True


def _into(file: IO[bytes]) -> Sink:
    """Return a sink into a file, which begins again when it is full."""

    async def write(piece: bytes) -> bool:
        with suppress(OSError):
            if file.tell() > MAX_LOG:
                file.seek(0)
                file.truncate()
            file.write(piece)
            file.flush()
        return True

    return write
