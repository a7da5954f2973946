"""Logs and events as they come, in llama-swap's messages (0bdb3720): ``/api/events``, ``/logs``, ``/logs/stream...``.

``/api/events`` is everything that a page shows, as it changes. A message is made when its reader can take it, from what
is true then: a slow reader sees fewer states in between, learns how many log lines it has missed, and costs no memory.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import ExitStack
from functools import lru_cache
from types import TracebackType

import msgspec
import trio
from quart import Response, request
from quart.wrappers.response import ResponseBody

from appliance.catalog.catalog import Snapshot
from appliance.core.bodies.sse import PING
from appliance.core.records.history import Happening, KeptTimeline
from appliance.core.records.history_words import told
from appliance.errors import ModelNotFound
from appliance.http.control.answers import EVENT_STREAM, TEXT, Pieces, endless_answer, see, text_answer
from appliance.http.control.listing import View
from appliance.traffic.inflight import InFlightChange
from appliance.traffic.program_log import LogReader
from appliance.traffic.traffic import Lifetime, Traffic
from appliance.trio_parts import beside

PAUSE = 0.02
"""Seconds between two looks at what is new: the news of a busy server comes together, and costs less."""
STATES_PAUSE = 0.05
"""The same for the models' states: the fleet reports every lease, which changes nothing here."""
PING_AFTER = 15.0
"""Seconds of silence after which a comment is sent, so that proxies keep the stream open."""
LOOK_EVERY = 3.0
"""Seconds after which the list of models is looked at without a bell: a new configuration, new files."""
MAX_LOG = 64 << 10
"""Characters of log in one message."""
HELD_MESSAGES = 32
"""Messages that are kept for the other readers, of MAX_LOG characters at most: a new reader's log is its own alone."""
HELD_ROWS = 1024
"""Activity rows, and as many entries of the timeline, for a slow reader; a page asks for the whole list anyway."""


class EventSources:
    """The source of the messages; one for all feeds of a server."""

    def __init__(self, view: View, traffic: Traffic, history: KeptTimeline) -> None:
        self.view = view
        self.logs = traffic.logs
        self.inflight = traffic.inflight
        self.recorder = traffic.recorder
        self.lifetime = traffic.lifetime
        self.history = history
        self._states: bytes | None = None
        self._changes: tuple[list[InFlightChange], bytes] = [], b""

    def changes(self, changes: list[InFlightChange]) -> bytes:
        """The messages of changes of requests; readers that look at about the same time have the same list."""
        if changes is not self._changes[0]:
            self._changes = changes, b"".join(_message("inflight", msgspec.json.encode(each)) for each in changes)
        return self._changes[1]

    def states(self) -> bytes:
        """The message of the models' states, made once for all feeds that look after the same change."""
        if self._states is None:
            self._states = _message("modelStatus", msgspec.json.encode(self.view.model_status()))
        return self._states

    def states_changed(self) -> None:
        """Make the message anew for the next reader."""
        self._states = None


class EventFeed(ResponseBody):
    """The messages of one client until it leaves or the server begins to end.

    Inside the body's ``async with`` small tasks wait for each source and only ring the bell; iterating looks at all of
    them and sends what is new.
    """

    def __init__(self, sources: EventSources) -> None:
        self._sources = sources
        self._messages: list[bytes] = []
        self._bell = trio.Event()
        self._looked = trio.Event()
        self._waiting = beside()
        self._program = sources.logs.program()
        self._upstream = sources.logs.upstream()
        self._inflight = sources.inflight.follow()
        self._next_look = -math.inf
        self._states = b""
        self._states_due = False
        self._models: Snapshot | None = None
        self._profile: str | None = None
        self._rows: deque[int] = deque(maxlen=HELD_ROWS)
        self._entries: deque[Happening] = deque(maxlen=HELD_ROWS)
        self._following = ExitStack()

    async def __aenter__(self) -> AsyncIterable[bytes]:
        nursery = await self._waiting.__aenter__()
        view = self._sources.view
        self._following.enter_context(self._sources.recorder.follow(self._new_row))
        self._following.enter_context(self._sources.history.follow(self._new_entry))
        self._following.enter_context(self._inflight)
        self._begin()
        for reader in (self._program, self._upstream, self._inflight):
            nursery.start_soon(self._ring_once_a_look, reader.wait)
        nursery.start_soon(self._ring_at, view.profile.wait_changed)
        nursery.start_soon(self._ring_at, view.peers.wait_changed, STATES_PAUSE)
        nursery.start_soon(self._ring_at, view.fleet.wait_changed, STATES_PAUSE)
        return self

    async def __aexit__(self, exc_type: type[BaseException], exc_value: BaseException, tb: TracebackType) -> None:
        self._following.close()
        await self._waiting.__aexit__(exc_type, exc_value, tb)

    def __aiter__(self) -> EventFeed:
        return self

    async def __anext__(self) -> bytes:
        with self._sources.lifetime.follower():
            silent_until = trio.current_time() + PING_AFTER
            await trio.sleep_until(self._next_look)
            while not self._messages:
                self._bell = trio.Event()
                self._collect()
                if self._messages:
                    break
                if trio.current_time() >= silent_until:
                    return PING
                with trio.move_on_after(LOOK_EVERY):
                    await self._bell.wait()
            self._next_look = trio.current_time() + PAUSE
            messages = b"".join(self._messages)
            self._messages.clear()
            return messages
        raise StopAsyncIteration

    # ---- what there is to tell ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Return the first events of a new client, in llama-swap's order."""
        for source, reader in (("proxy", self._program), ("upstream", self._upstream)):
            self._messages.append(_made("logData", source=source, data=_text(reader.take())))
        self._send_states()
        headers = self._sources.view.config.ui.activity.session_id
        self._messages.append(_message("uiConfig", msgspec.json.encode({"activity": {"session_id": headers}})))
        self._profile = self._sources.view.profile.name
        self._put("profileChanged", active=self._profile)
        self._send_inflight()

    def _collect(self) -> None:
        self._send_log("proxy", self._program)
        self._send_log("upstream", self._upstream)
        if (profile := self._sources.view.profile.name) != self._profile:
            self._profile = profile
            self._put("profileChanged", active=profile)
            self._states, self._states_due = b"", True  # llama-swap sends both, whether or not a state has changed
        if self._states_due or self._sources.view.catalog.snapshot is not self._models:
            self._send_states()
        self._send_inflight()
        while self._rows:
            self._put("activity", id=self._rows.popleft())
        while self._entries:
            self._messages.append(_history_message(self._entries.popleft()))
        self._looked.set()
        self._looked = trio.Event()

    def _send_states(self) -> None:
        models = self._sources.view.catalog.snapshot
        if models is not self._models:  # for this no bell rings
            self._sources.states_changed()
        self._models, self._states_due = models, False
        states = self._sources.states()
        if states != self._states:
            self._states = states
            self._messages.append(states)

    def _send_log(self, source: str, reader: LogReader) -> None:
        text = _text(reader.take())
        for start in range(0, len(text), MAX_LOG):
            self._put("logData", source=source, data=text[start : start + MAX_LOG])

    def _send_inflight(self) -> None:
        if changes := self._inflight.take():
            self._messages.append(self._sources.changes(changes))

    def _new_row(self, row_id: int) -> None:
        self._rows.append(row_id)
        self._bell.set()

    def _new_entry(self, entry: Happening) -> None:
        self._entries.append(entry)
        self._bell.set()

    def _put(self, kind: str, **data: str | int | None) -> None:
        self._messages.append(_told(kind, **data))

    # ---- waiting -----------------------------------------------------------------------------------------------------

    async def _ring_at(self, change: Callable[[], Awaitable[None]], pause: float = 0.0) -> None:
        """Ring at every change of models or profile, at most once in ``pause`` seconds."""
        while True:
            await change()
            self._ring_for_states()
            if pause:
                await trio.sleep(pause)
                self._ring_for_states()  # for what has changed meanwhile

    async def _ring_once_a_look(self, news: Callable[[], Awaitable[None]]) -> None:
        """Ring when a reader has news; it has them until it is looked at."""
        while True:
            looked = self._looked
            await news()
            self._bell.set()
            await looked.wait()

    def _ring_for_states(self) -> None:
        self._sources.states_changed()
        self._states_due = True
        self._bell.set()


def _made(kind: str, **data: str | int | None) -> bytes:
    return _message(kind, msgspec.json.encode(data))


_told = lru_cache(maxsize=HELD_MESSAGES)(_made)
"""The same; a message that all feeds tell at about the same time is made once."""


@lru_cache(maxsize=HELD_MESSAGES)
def _history_message(entry: Happening) -> bytes:
    """An entry of the timeline is put into words here, once for all feeds, and not at all without one."""
    return _message("history", msgspec.json.encode(told(entry)))


def _message(kind: str, data: bytes) -> bytes:
    """One frame. The data is JSON within a JSON string: llama-swap's page decodes it twice."""
    return b"event:message\ndata:%s\n\n" % msgspec.json.encode({"type": kind, "data": data.decode()})


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


class FeedRoutes:
    """Every method is one route."""

    def __init__(self, sources: EventSources) -> None:
        self._sources = sources

    async def logs(self) -> Response:
        """The combined log so far; a browser is sent to the page."""
        if "text/html" in request.headers.get("Accept", ""):
            return see("ui/")
        return text_answer(_text(self._sources.logs.combined().take()))

    async def follow(self, which: str = "") -> Response:
        """The combined log, ``proxy`` for the program's own, ``upstream`` for all processes, or one model's.

        ``?no-history`` leaves out what there is so far. This program's own: ``?no-follow``, nothing but that, and
        ``?search=``, only lines with a text; ``?times``, each with its time in front.
        """
        view, logs, history = self._sources.view, self._sources.logs, "no-history" not in request.args
        match which:
            case "":
                reader = logs.combined(history=history)
            case "proxy":
                reader = logs.program(history=history)
            case "upstream":
                reader = logs.upstream(history=history)
            case model:
                if (model_id := view.model_id(model)) is None:
                    raise ModelNotFound(model, view.catalog.snapshot.near(model))
                reader = logs.upstream(model_id, history=history)
        reader.search, reader.times = request.args.get("search", ""), "times" in request.args
        if "no-follow" in request.args:
            return text_answer(_text(reader.take()))
        lifetime = self._sources.lifetime
        return endless_answer(LogText(reader, lifetime), TEXT, lifetime.feeds)

    async def events(self) -> Response:
        return endless_answer(EventFeed(self._sources), EVENT_STREAM, self._sources.lifetime.feeds)


class LogText(Pieces):
    """Log lines until the client leaves or the server begins to end."""

    def __init__(self, reader: LogReader, lifetime: Lifetime) -> None:
        self._reader = reader
        self._lifetime = lifetime

    async def __anext__(self) -> bytes:
        with self._lifetime.follower():
            await trio.lowlevel.checkpoint()  # held lines come without one
            while not (lines := self._reader.take()):
                await self._reader.wait()
            return _text(lines).encode()
        raise StopAsyncIteration
