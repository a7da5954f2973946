"""One look at the machine: processors, memory, network, cards that the kernel tells of."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import psutil
from msgspec import structs

from appliance.core.machine import GpuSample, NetworkCounters, Sample, SystemSample
from appliance.core.sizes import MIB
from appliance.platform import cards_linux

MAX_INTERFACES = 32
"""Network interfaces in a sample, those with most traffic; a container host has hundreds."""

log = logging.getLogger(__name__)


class Sampler:
    """Takes the samples. Its methods block for a millisecond or some, and are called by one task, in threads."""

    def __init__(self, cards: list[cards_linux.Slot]) -> None:
        self._cards = cards
        self._busy_before = _processor_times()

    def take(self, now: datetime, nvidia: Sequence[GpuSample] = ()) -> Sample:
        """One look at everything but NVIDIA's GPUs, of which samples are given. Raises OSError or psutil.Error."""
        gpus = [structs.replace(gpu, timestamp=now) for gpu in nvidia]
        gpus += [cards_linux.sample(card, index, now) for index, card in enumerate(self._cards, start=len(gpus))]
        return Sample(system=self._system(now), gpus=tuple(gpus))

    def look(self, nvidia: Sequence[GpuSample]) -> Sample | None:
        """`take`, now. None where the system does not let itself be looked at, or not in a way psutil understands."""
        try:
            return self.take(datetime.now(UTC), nvidia)
        except (OSError, psutil.Error, LookupError, ValueError) as error:
            log.debug("no sample of the machine: %s", error)
            return None

    def _system(self, now: datetime) -> SystemSample:
        before, self._busy_before = self._busy_before, _processor_times()
        memory, swap = psutil.virtual_memory(), swap_bytes()
        load = _load_average()
        return SystemSample(
            timestamp=now,
            cpu_util_per_core=tuple(_percents(before, self._busy_before)),
            mem_total_mb=memory.total // MIB,
            mem_used_mb=memory.used // MIB,
            mem_free_mb=memory.free // MIB,
            swap_total_mb=swap[0] // MIB,
            swap_used_mb=swap[1] // MIB,
            load_avg_1=load[0],
            load_avg_5=load[1],
            load_avg_15=load[2],
            net_io=_network(),
        )


def new_sampler() -> Sampler:
    """Blocks for a moment: use a thread."""
    return Sampler(cards_linux.sampled() if sys.platform == "linux" else [])


def swap_bytes() -> tuple[int, int]:
    """Bytes in all, and in use. Nothing on a Windows whose performance counters are switched off."""
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError):
        return 0, 0
    return swap.total, swap.used


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
    """Return the load of each core in between. Cores may come and go; a new one is counted from its start."""
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
