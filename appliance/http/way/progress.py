"""Progress for a client that waits for its answer: comments, the load of its model, words of the program.

Comments keep proxies on the way from cutting a stream that is silent for long. One task serves all streams: waiting
costs a stream an entry in a dictionary, and no timer of its own. All wait equally long, so the order in which they came
is the order in which their comments are due.

``sendLoadingState`` shows a streaming chat client the load of its model, as the model's reasoning. A `Sender` passes
pieces on from a source that may be silent for long. Both write in a task beside the work that the answer waits for
(`write_meanwhile`), and the client never holds that work up.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec
import trio
from msgspec import Struct

from appliance.core.answers.loading_text import JOKES, LoadingText
from appliance.core.bodies.sse import PING, Dialect, SseEvent, encode
from appliance.core.exchange import error_in
from appliance.core.lenient_json import decoded
from appliance.errors import ApplianceError
from appliance.fleet.lease import QueuePlace
from appliance.http.way.handover import HandoverReply
from appliance.traffic.record import aside
from appliance.traffic.request import Headers, Sink
from appliance.trio_parts import beside

EVENT_STREAM = (b"Content-Type", b"text/event-stream")
UNBUFFERED = ((b"Cache-Control", b"no-cache"), (b"X-Accel-Buffering", b"no"))
"""Tells proxies on the way to pass a stream on as it comes."""
LAST_WORDS = 1.0
"""Seconds that what is being written gets to be whole before an error follows it."""
HEAD_START = 0.02
"""Seconds in which a request may still be refused with a status of its own, or find its model ready."""
TICK = 0.75
"""Seconds between two looks at how the load goes."""


def queue_headers(place: QueuePlace) -> Headers:
    """The headers about the wait of a request: the place to which it came, and its time, past or expected."""
    if place.came_to is None:
        return ()
    headers = [(b"X-Queue-Position", b"%d" % place.came_to)]
    if place.waited:
        headers.append((b"X-Queue-Wait", b"%.3f" % place.waited))
    elif (expected := place.expected()) is not None:
        headers.append((b"X-Queue-Expected", b"%.3f" % expected))
    return headers


def waiting_comment(place: QueuePlace) -> bytes:
    """A comment with the place in the queue, and the seconds until loads are over, where these are known."""
    position, expected = place.position(), place.expected()
    known = f"; queue_position={position}" if position is not None else ""
    known += f"; expected_wait={expected:.1f}" if expected is not None else ""
    return f": ping{known}\n\n".encode() if known else PING


class Ping:
    """One stream that is waited for; made by `Pings.begin`."""

    def __init__(self, sink: Sink, waiting: dict[Ping, None], due: float, place: QueuePlace | None) -> None:
        self.due = due
        self._sink = sink
        self._waiting = waiting
        self._place = place

    def say(self) -> None:
        """Start the answer where that has not happened. Bytes that the client does not take now wait in its sink."""
        if self._sink.status is None:
            about = queue_headers(self._place) if self._place is not None else ()
            self._sink.start(200, (EVENT_STREAM, *UNBUFFERED, *about))
        self._sink.push(waiting_comment(self._place) if self._place is not None else PING)

    def stop(self) -> None:
        """Stop writing comments. Idempotent."""
        self._waiting.pop(self, None)


class Pings:
    """``after``: seconds of silence, 0 for no comments at all."""

    def __init__(self, after: float) -> None:
        self.after = after or math.inf
        self._waiting: dict[Ping, None] = {}
        self._some = trio.Event()

    def begin(self, sink: Sink, place: QueuePlace | None = None) -> Ping:
        """Write comments into this answer until `Ping.stop`; meanwhile nothing else may write into it.

        They tell of its ``place`` in the queue, where there is one.
        """
        ping = Ping(sink, self._waiting, trio.current_time() + self.after, place)
        if self.after < math.inf:
            self._waiting[ping] = None
            self._some.set()
        return ping

    async def run(self) -> None:
        """Say what is due, until cancelled."""
        while True:
            await self._some.wait()
            while self._waiting:
                # All wait equally long and are put behind the others after each comment. So the first is always the
                # next one due, and one task with one timer serves every stream.
                due = next(iter(self._waiting)).due  # a request that is over is not held while this sleeps
                await trio.sleep_until(due)
                self._say_due()
            self._some = trio.Event()

    def _say_due(self) -> None:
        now = trio.current_time()
        while self._waiting and (ping := next(iter(self._waiting))).due <= now:
            del self._waiting[ping]
            ping.due = now + self.after
            self._waiting[ping] = None
            ping.say()  # the client may be found gone, and stop it


class ProgressWriter(Protocol):
    """Writes in a task of its own."""

    async def run(self) -> None:
        """Return when the last line has been written."""
        ...

    def stop(self) -> None:
        """End after the line that is being written."""
        ...


@asynccontextmanager
async def write_meanwhile(writer: ProgressWriter) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """Run ``writer`` beside the block. What is yielded returns when the writer has written its last.

    An ApplianceError of the block leaves as itself, when the writer has finished what it was writing.
    """
    done = trio.Event()

    async def run() -> None:
        try:
            await writer.run()
        finally:
            done.set()

    async def stop() -> None:
        writer.stop()
        await done.wait()

    # The answer may begin only when the writer has written its last line: two writers in one stream would tear each
    # other's records. So the block calls ``stop`` before the first byte of the engine passes, and waits for it. Leaving
    # the block cancels a writer that still waits for its client.
    async with beside(run):
        try:
            yield stop
        except ApplianceError:
            with trio.move_on_after(LAST_WORDS):
                await stop()
            raise


class LoadingStream:
    """Starts the answer as a chat stream and writes into it until the model is ready. In place of `pings.Ping`.

    `run` is a task beside the request's; `ready` and `stop` are called by the request. Nothing that it writes holds
    the request up: it waits for its model, and talks to it, whether or not the client reads.
    """

    def __init__(self, sink: Sink, model: str, place: QueuePlace, ping_after: float, *, jokes: bool) -> None:
        self._sink = sink
        self._model = model
        self._place = place
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
                await self._say(self._text.tick(waited, *_progress_of(self._place)))
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
            self._sink.start(200, (EVENT_STREAM, *UNBUFFERED, *queue_headers(self._place)))

    async def _say(self, text: str) -> None:
        chunk = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": self._model,
            "choices": [{"index": 0, "delta": {"reasoning_content": text}, "finish_reason": None}],
        }
        await self._sink.write(encode(SseEvent(msgspec.json.encode(chunk).decode())))


class _Progress(Struct):
    """llama-server's progress of a load (its README): ``value`` is the part of the current stage that is done."""

    value: float | None = None


def _progress_of(place: QueuePlace) -> tuple[int | None, float | None, float | None, float | None]:
    raw = place.progress()
    progress = decoded(_Progress, raw) if raw is not None else None
    return place.position(), progress.value if progress is not None else None, place.fetched(), place.expected()


class Sender:
    """Writes what it is given into the client's answer, and comments while it is given nothing. See `sending`."""

    def __init__(self, sink: Sink, ping_after: float) -> None:
        self.headers: Headers = (EVENT_STREAM, *UNBUFFERED)
        self._status = 200
        self._sink = sink
        self._aside = aside(sink)
        self._interval = ping_after or math.inf
        self._given, self._taken = trio.open_memory_channel[bytes](0)

    async def send(self, record: bytes) -> None:
        await self._given.send(record)

    async def refuse(self, reply: HandoverReply, limit: int, dialect: Dialect) -> None:
        """Pass on an answer without a stream: as it is, or as a record where a stream has begun already."""
        content = await reply.read(limit)
        if self._sink.status is not None:
            content = error_in(content, reply.status, dialect)
        else:
            self._status, self.headers, self._interval = reply.status, reply.headers, math.inf
        await self.send(content)

    def stop(self) -> None:
        """Nothing is sent any more."""
        self._given.close()

    async def run(self) -> None:
        try:
            while True:
                record: bytes | None = None
                with trio.move_on_after(self._interval):
                    record = await self._taken.receive()
                to = self._aside if record is None else self._sink
                self.begin(to)
                await to.write(PING if record is None else record)
        except trio.EndOfChannel:
            pass

    def begin(self, sink: Sink) -> None:
        """Start the answer, unless it has started."""
        if self._sink.status is None:
            sink.start(self._status, self.headers)


@asynccontextmanager
async def sending(sink: Sink, ping_after: float) -> AsyncGenerator[Sender]:
    """The block gives the sender what is to be written into the answer, which ends when the block is left.

    An ApplianceError of the block leaves as itself.
    """
    sender = Sender(sink, ping_after)
    async with write_meanwhile(sender) as stop:
        yield sender
        await stop()
    sender.begin(sink)  # where there was nothing to send
    await sink.end()
