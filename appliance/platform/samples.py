"""How busy the machine is: one look every few seconds, and the looks of the last hour."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import psutil
import trio
from msgspec import structs

from appliance.core.machine import MIB, GpuSample, NetworkCounters, Performance, Sample, SystemSample
from appliance.platform import drm
from appliance.platform.gpus import Gpus, open_gpus

KEPT = 3600.0
"""Seconds of samples that are kept."""
FIRST = 1.0
"""Seconds to the first sample: how busy a processor is shows only between two looks."""
MAX_INTERFACES = 32
"""Network interfaces in a sample, those with most traffic; a container host has hundreds."""

log = logging.getLogger(__name__)


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

    def since(self, after: datetime | None = None) -> Performance:
        """The samples taken later than ``after`` (which has a time zone), all of them without it."""
        wanted = tuple(self._newer(after))
        gpus = tuple(gpu for sample in wanted for gpu in sample.gpus)
        return Performance(
            enabled=self.enabled, sys_stats=tuple(sample.system for sample in wanted), gpu_stats=gpus or None
        )

    def add(self, sample: Sample) -> None:
        """Append the newest sample; the oldest makes room for it."""
        self._ring.append(sample)
        if self._tell is not None:
            self._tell(sample)

    def _newer(self, after: datetime | None) -> Iterator[Sample]:
        return (sample for sample in self._ring if after is None or sample.system.timestamp > after)


class Sampler:
    """Takes the samples. Its methods block for a millisecond or some, and are called by one task, in threads."""

    def __init__(self, cards: list[drm.Card]) -> None:
        self._cards = cards
        self._busy_before = _processor_times()

    def take(self, now: datetime, nvidia: Sequence[GpuSample] = ()) -> Sample:
        """One look at everything but NVIDIA's GPUs, of which samples are given.

        Raises OSError or psutil.Error when the system does not even tell its memory.
        """
        gpus = [structs.replace(gpu, timestamp=now) for gpu in nvidia]
        gpus += [drm.sample(card, index, now) for index, card in enumerate(self._cards, start=len(gpus))]
        return Sample(system=self._system(now), gpus=tuple(gpus))

    def _system(self, now: datetime) -> SystemSample:
        before, self._busy_before = self._busy_before, _processor_times()
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        load = _load_average()
        return SystemSample(
            timestamp=now,
            cpu_util_per_core=tuple(_percents(before, self._busy_before)),
            mem_total_mb=memory.total // MIB,
            mem_used_mb=memory.used // MIB,
            mem_free_mb=memory.free // MIB,
            swap_total_mb=swap.total // MIB,
            swap_used_mb=swap.used // MIB,
            load_avg_1=load[0],
            load_avg_5=load[1],
            load_avg_15=load[2],
            net_io=_network(),
        )


def new_sampler() -> Sampler:
    """Blocks for a moment: use a thread."""
    return Sampler(drm.find_cards() if sys.platform == "linux" else [])


@asynccontextmanager
async def open_samples(every: float | None, tell: Callable[[Sample], None] | None = None) -> AsyncGenerator[Samples]:
    """Own the one task that samples every so many seconds, for the length of the block. None: no samples at all.

    ``tell`` hears every new sample.

    Owns the process that asks NVIDIA's driver as well, which others ask through `platform.gpus`.
    """
    samples = Samples(every, tell)
    async with open_gpus() as gpus, trio.open_nursery() as nursery:
        if every is not None:
            nursery.start_soon(_fill, samples, every, gpus)
        yield samples
        nursery.cancel_scope.cancel()


async def _fill(samples: Samples, every: float, gpus: Gpus) -> None:
    sampler = await trio.to_thread.run_sync(new_sampler, abandon_on_cancel=True)
    due = trio.current_time() + min(FIRST, every)
    while True:
        await trio.sleep_until(due)
        nvidia = await gpus.samples()
        sample = await trio.to_thread.run_sync(_take, sampler, nvidia, abandon_on_cancel=True)
        if sample is not None:
            samples.add(sample)
        due = max(due + every, trio.current_time())  # after the machine has slept, one sample and not many


def _take(sampler: Sampler, nvidia: Sequence[GpuSample]) -> Sample | None:
    """A sample, unless the system does not let itself be looked at, or not in a way that psutil understands."""
    try:
        return sampler.take(datetime.now(UTC), nvidia)
    except (OSError, psutil.Error, LookupError, ValueError) as error:
        log.debug("no sample of the machine: %s", error)
        return None


def resident_bytes(pid: int) -> int | None:
    """Memory that a process has in RAM, pages shared with others included. None when it is gone or not ours to see."""
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return None


def _processor_times() -> list[tuple[float, float]]:
    """Seconds of each core since the start: (busy, all). Nothing where a sandbox hides them (Android does)."""
    try:
        return [_busy_and_all(times._asdict()) for times in psutil.cpu_times(percpu=True)]
    except OSError:
        return []


def _busy_and_all(seconds: dict[str, float]) -> tuple[float, float]:
    total = sum(seconds.values()) - seconds.get("guest", 0.0) - seconds.get("guest_nice", 0.0)  # part of user and nice
    return total - seconds["idle"] - seconds.get("iowait", 0.0), total


def _percents(before: list[tuple[float, float]], after: list[tuple[float, float]]) -> Iterator[float]:
    """How busy each core was in between. Cores may come and go; one that is new is counted from its start."""
    for index, (busy, total) in enumerate(after):
        busy_before, total_before = before[index] if index < len(before) else (0.0, 0.0)
        passed = total - total_before
        yield round(min(100.0, max(0.0, 100 * (busy - busy_before) / passed)), 1) if passed > 0 else 0.0


def _load_average() -> tuple[float, float, float] | tuple[None, None, None]:
    if sys.platform == "win32":
        return None, None, None
    try:
        one, five, fifteen = os.getloadavg()
    except OSError:
        return None, None, None
    return round(one, 2), round(five, 2), round(fifteen, 2)


def _network() -> tuple[NetworkCounters, ...]:
    try:
        counters = psutil.net_io_counters(pernic=True, nowrap=False)
    except OSError:
        return ()
    busiest = sorted(counters.items(), key=lambda item: -(item[1].bytes_recv + item[1].bytes_sent))[:MAX_INTERFACES]
    return tuple(
        NetworkCounters(name=sys.intern(name), bytes_recv=io.bytes_recv, bytes_sent=io.bytes_sent)
        for name, io in sorted(busiest, key=lambda item: item[0])
    )
