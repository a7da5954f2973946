"""Captures are compressed beside the requests, when the loop has time.

Until then they are kept as they are, at the budget's expense.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import trio

from appliance.core.records.captures import CaptureBuffer, CapturedBody, Packing

PAUSE = 0.5
"""Seconds before the first batch, and between two looks whether the loop has time."""
BATCH = 1 << 20
"""Bytes compressed in one go; some ten milliseconds in a thread of its own."""
SHARE = 40
"""One part in so many of a core's time goes into compressing, however much there is of it."""
BUSY = 0.25
"""The share of its time that the loop works when it has no time for anything that can wait. A request each 5 ms takes
a tenth; one client that asks again and again takes half or more."""


class Load:
    """Measures how busy the thread of the loop is. A look costs two clocks."""

    def __init__(self) -> None:
        self._since, self._worked = time.monotonic(), time.thread_time()

    def is_light(self) -> bool:
        """True if the thread has worked for less than `BUSY` of the time since the last look."""
        since, worked = self._since, self._worked
        self._since, self._worked = time.monotonic(), time.thread_time()
        return self._worked - worked < BUSY * (self._since - since)


class Packer:
    """Owns the compressing for one `CaptureBuffer` after another: another budget makes another one."""

    def __init__(self, load: Callable[[], Load]) -> None:
        self.captures = CaptureBuffer(0)
        self._load = load
        self._open: dict[CapturedBody, None] = {}
        self._wake = trio.Event()

    def wake(self) -> None:
        """There is something to compress among the captures."""
        self._wake.set()

    def open(self, body: CapturedBody) -> None:
        """Compress what there is of an answer under way."""
        self._open[body] = None
        self._wake.set()

    def close(self, body: CapturedBody) -> None:
        """The answer is over. Where no capture is made of it, nobody would use what is compressed."""
        self._open.pop(body, None)

    async def run(self) -> None:
        """Compress until cancelled; the rest is lost with the captures."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            load, pause = self._load(), PAUSE
            while self._open or self.captures.is_raw:
                await trio.sleep(pause)
                began, pause = time.monotonic(), PAUSE
                if batch := self.batch(light=load.is_light()):
                    packed = await trio.to_thread.run_sync(_pack, batch, abandon_on_cancel=True)
                    for packing, result in zip(batch, packed, strict=True):
                        packing.put(result)
                    # A pause in proportion to the work takes the same share of a core on every machine. A fixed pause
                    # would be too short for a slow one, which would then compress without end.
                    pause = (SHARE - 1) * (time.monotonic() - began)

    def batch(self, *, light: bool = True) -> list[Packing]:
        """Return the next piece of work. Answers under way come first: no budget but their own holds their memory.

        Others are compressed only under a ``light`` load: under another one most are gone before it is their turn.
        """
        batch, left = list[Packing](), BATCH
        while self._open and left > 0:
            body = next(iter(self._open))
            # An answer leaves the set before its work: it comes back by itself when more of it has passed.
            del self._open[body]
            if not body.given_up:
                batch.append(body.packing())
                left -= body.raw
        return batch + self.captures.waiting(left) if light else batch


def _pack(batch: Sequence[Packing]) -> list[bytes]:
    return [packing.work() for packing in batch]
