"""Comments in streams that are silent for long, so that proxies on the way do not cut them.

One task serves all streams. Waiting costs a stream an entry in a dictionary, and no timer of its own: all wait equally
long, so the order in which they came is the order in which their comments are due.
"""

from __future__ import annotations

import math

import trio

from appliance.core.bodies.sse import PING
from appliance.fleet.lease import Place
from appliance.traffic.request import Headers, Sink

EVENT_STREAM = (b"Content-Type", b"text/event-stream")
UNBUFFERED = ((b"Cache-Control", b"no-cache"), (b"X-Accel-Buffering", b"no"))
"""Tells proxies on the way to pass a stream on as it comes."""


def queue_headers(place: Place) -> Headers:
    """What a client is told of its request's wait: the place to which it came, and its time, past or expected."""
    if place.came_to is None:
        return ()
    told = [(b"X-Queue-Position", b"%d" % place.came_to)]
    if place.waited:
        told.append((b"X-Queue-Wait", b"%.3f" % place.waited))
    elif (expected := place.expected()) is not None:
        told.append((b"X-Queue-Expected", b"%.3f" % expected))
    return told


def waiting_comment(place: Place) -> bytes:
    """A comment with the place in the queue, and the seconds until loads are over, where these are known."""
    position, expected = place.position(), place.expected()
    known = f"; queue_position={position}" if position is not None else ""
    known += f"; expected_wait={expected:.1f}" if expected is not None else ""
    return f": ping{known}\n\n".encode() if known else PING


class Ping:
    """One stream that is waited for; made by `Pings.begin`."""

    def __init__(self, sink: Sink, waiting: dict[Ping, None], due: float, place: Place | None) -> None:
        self.due = due
        self._sink = sink
        self._waiting = waiting
        self._place = place

    def say(self) -> None:
        """Start the answer where that has not happened. What the client's side does not take now waits there."""
        if self._sink.status is None:
            told = queue_headers(self._place) if self._place is not None else ()
            self._sink.start(200, (EVENT_STREAM, *UNBUFFERED, *told))
        self._sink.push(waiting_comment(self._place) if self._place is not None else PING)

    def stop(self) -> None:
        """Somebody else writes now. Twice is once."""
        self._waiting.pop(self, None)


class Pings:
    """``after``: seconds of silence, 0 for no comments at all."""

    def __init__(self, after: float) -> None:
        self.after = after or math.inf
        self._waiting: dict[Ping, None] = {}
        self._some = trio.Event()

    def begin(self, sink: Sink, place: Place | None = None) -> Ping:
        """Comments go into this answer until `Ping.stop`; nobody else writes into it meanwhile.

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
                ping = next(iter(self._waiting))
                if ping.due > trio.current_time():
                    await trio.sleep_until(ping.due)
                else:
                    del self._waiting[ping]
                    ping.say()
                    ping.due = trio.current_time() + self.after
                    self._waiting[ping] = None
            self._some = trio.Event()
