"""``sendLoadingState``: a streaming chat client reads how the load goes while it waits, as the model's reasoning."""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable

import msgspec
import trio

from appliance.core.answers.loading_text import JOKES, LoadingText
from appliance.core.bodies.sse import PING, Event, encode
from appliance.http.way.pings import EVENT_STREAM, UNBUFFERED
from appliance.traffic.request import Sink

HEAD_START = 0.02
"""Seconds in which a request may still be refused with a status of its own, or find its model ready."""
TICK = 0.75
"""Seconds between two looks at how the load goes."""


class LoadingStream:
    """Starts the answer as a chat stream and writes into it until the model is ready. In place of `pings.Ping`.

    `run` is a task beside the request's; `ready` and `stop` are called by the request. Nothing that it writes holds
    the request up: it waits for its model, and talks to it, whether or not the client reads.
    """

    def __init__(
        self,
        sink: Sink,
        model: str,
        position: Callable[[], int | None],
        progress: Callable[[], float | None],
        jokes: bool,
        ping_after: float = 15.0,
        fetched: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._sink = sink
        self._model = model
        self._position = position
        self._progress = progress
        self._fetched = fetched
        self._ping_after = ping_after or math.inf
        self._text = LoadingText(model, random.sample(JOKES, len(JOKES)) if jokes else ())
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._loaded = False
        self._waited_enough = trio.Event()
        self._stopped = trio.Event()

    async def run(self) -> None:
        """Write until `stop` is called; the first text goes out at once."""
        began = trio.current_time()
        started = not await self._over_within(HEAD_START)
        if started:
            self._start()
            await self._say(self._text.header())
            while not await self._over_within(TICK):
                waited = trio.current_time() - began
                await self._say(self._text.tick(waited, self._position(), self._progress(), self._fetched()))
            if self._loaded:
                await self._say(self._text.end(trio.current_time() - began))
        await self._ping(started=started)

    def ready(self) -> None:
        """The model is there, and the request is on its way to it."""
        self._loaded = True
        self._waited_enough.set()

    def stop(self) -> None:
        """The engine has begun to answer, or never will: `run` ends once what it had to say is out."""
        self._waited_enough.set()
        self._stopped.set()

    async def _over_within(self, patience: float) -> bool:
        with trio.move_on_after(patience):
            await self._waited_enough.wait()
        return self._waited_enough.is_set()

    async def _ping(self, *, started: bool) -> None:
        """Comments while the engine reads a long prompt."""
        while True:
            with trio.move_on_after(self._ping_after):
                await self._stopped.wait()
            if self._stopped.is_set():
                return
            if not started:
                self._start()
                started = True
            await self._sink.write(PING)

    def _start(self) -> None:
        if self._sink.status is None:
            self._sink.start(200, (EVENT_STREAM, *UNBUFFERED))

    async def _say(self, text: str) -> None:
        chunk = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": self._model,
            "choices": [{"index": 0, "delta": {"reasoning_content": text}, "finish_reason": None}],
        }
        await self._sink.write(encode(Event(msgspec.json.encode(chunk).decode())))
