"""Compresses captures when there is time for it: they are kept as they are until then, at the budget's expense."""

from __future__ import annotations

import time
from collections.abc import Sequence

import trio

from appliance.core.records.captures import Body, CaptureBuffer, Packing

PAUSE = 0.5
"""Seconds before the first batch: under load most captures are gone by then, and were not worth compressing."""
BATCH = 1 << 20
"""Bytes compressed in one go; some ten milliseconds in a thread of its own."""
SHARE = 10
"""One part in so many of a core's time goes into compressing, however much there is of it."""


class Packer:
    """Owns the compressing for one `CaptureBuffer` after another: another budget makes another one."""

    def __init__(self) -> None:
        self.captures = CaptureBuffer(0)
        self._open: dict[Body, None] = {}
        self._wake = trio.Event()

    def wake(self) -> None:
        """There is something to compress among the captures."""
        self._wake.set()

    def open(self, body: Body) -> None:
        """Compress what there is of an answer under way."""
        self._open[body] = None
        self._wake.set()

    async def run(self) -> None:
        """Compress until cancelled; what is left then is lost with the captures."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            await trio.sleep(PAUSE)
            while batch := self.batch():
                began = time.monotonic()
                packed = await trio.to_thread.run_sync(_pack, batch, abandon_on_cancel=True)
                for packing, result in zip(batch, packed, strict=True):
                    packing.put(result)
                await trio.sleep((SHARE - 1) * (time.monotonic() - began))

    def batch(self) -> list[Packing]:
        """Return the next piece of work. Answers under way come first: no budget but their own holds their memory."""
        batch, left = list[Packing](), BATCH
        while self._open and left > 0:
            body = next(iter(self._open))
            del self._open[body]
            if not body.closed and not body.given_up:
                batch.append(body.packing())
                left -= body.raw
        return batch + self.captures.waiting(left)


def _pack(batch: Sequence[Packing]) -> list[bytes]:
    return [packing.work() for packing in batch]
