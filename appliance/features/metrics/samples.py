"""The load of the machine: one look every few seconds, and the looks of the last hour."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial

import trio

from appliance.core.machine import MachinePerformance, Sample
from appliance.platform.gpus import Gpus
from appliance.trio_parts import beside, persist

KEPT = 3600.0
"""Seconds of samples that are kept."""
FIRST = 1.0
"""Seconds to the first sample: how busy a processor is shows only between two looks."""


class Samples:
    """The last hour of samples, oldest first. Made and filled by `open_samples`."""

    def __init__(self, every: float | None, tell: Callable[[Sample], None] | None = None) -> None:
        self.enabled = every is not None
        self._tell = tell
        self._ring: deque[Sample] = deque(maxlen=math.ceil(KEPT / every) if every else 0)

    @property
    def latest(self) -> Sample | None:
        """None before the first one, and when sampling is off."""
        return self._ring[-1] if self._ring else None

    def since(self, after: datetime | None = None) -> MachinePerformance:
        """The samples taken later than ``after`` (which has a time zone), all of them without it."""
        wanted = tuple(self._newer(after))
        gpus = tuple(gpu for sample in wanted for gpu in sample.gpus)
        return MachinePerformance(
            enabled=self.enabled, sys_stats=tuple(sample.system for sample in wanted), gpu_stats=gpus or None
        )

    def add(self, sample: Sample) -> None:
        """Append the newest sample; the oldest makes room for it."""
        self._ring.append(sample)
        if self._tell is not None:
            self._tell(sample)

    def _newer(self, after: datetime | None) -> Iterator[Sample]:
        return (sample for sample in self._ring if after is None or sample.system.timestamp > after)


@asynccontextmanager
async def open_samples(
    gpus: Gpus, every: float | None, tell: Callable[[Sample], None] | None = None
) -> AsyncGenerator[Samples]:
    """Own the task that samples every so many seconds, never for None. ``tell`` is called with every new sample."""
    samples = Samples(every, tell)
    async with beside() as nursery:
        if every is not None:
            nursery.start_soon(persist, "sampling the machine", partial(_fill, samples, every, gpus))
        yield samples


async def _fill(samples: Samples, every: float, gpus: Gpus) -> None:
    due = trio.current_time() + min(FIRST, every)
    await trio.sleep(min(FIRST, every) / 2)  # the user waits for the program to listen, not for this
    from appliance.platform.sampler import new_sampler  # with psutil, seven milliseconds of the start

    sampler = await trio.to_thread.run_sync(new_sampler, abandon_on_cancel=True)
    while True:
        await trio.sleep_until(due)
        nvidia = await gpus.samples()
        sample = await trio.to_thread.run_sync(sampler.look, nvidia, abandon_on_cancel=True)
        if sample is not None:
            samples.add(sample)
        due = max(due + every, trio.current_time())  # after the machine has slept, one sample and not many
