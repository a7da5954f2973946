"""The memory that models may take here: what it is, what each is expected to take of it, and what others leave."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import trio
from msgspec import structs

from appliance.core.config.types import Config, ModelConfig
from appliance.core.engines.machine import Look
from appliance.core.fit.estimate import RAM
from appliance.core.fit.plan import RESERVE, GpuMemory, Plan, squeezed
from appliance.core.models.model import Model
from appliance.core.scheduling.effects import Terms
from appliance.core.scheduling.policy import NO_MEMORY, Limits
from appliance.core.settings import FleetSettings
from appliance.engines.found import Engine
from appliance.fleet.terms import in_bytes, limits_of, plan_of, terms_of
from appliance.platform.drivers import Gpus, process_memory
from appliance.platform.machine import free_memory

SAMPLES: Mapping[str, GpuMemory] = {}
AFTER = 1.0
EVERY = 30.0
"""Seconds after readiness until the first look, and between looks: servers grow while they are used."""


class Budgets:
    """Owned by the fleet. Everything but `plan` answers at once.

    Where the configuration says nothing of memory, the machine sets the budgets as soon as it has been looked at. They
    decide who makes room for whom and refuse nobody: a model that takes more than there is may try it alone.
    """

    def __init__(self, settings: FleetSettings) -> None:
        self.look: Look | None = None
        """The machine; None while nobody has looked."""
        self._settings = settings
        self._config: Config | None = None
        self._left: Mapping[str, int] = NO_MEMORY
        self._samples = SAMPLES

    def limits(self, config: Config | None) -> Limits:
        """What applies under this configuration, from now on."""
        self._config = config
        limits = limits_of(config, self._settings, self.look)
        return structs.replace(
            limits, memory={d: min(most, self._left.get(d, most)) for d, most in limits.memory.items()}
        )

    def terms(self, model: Model, engine: Engine | None) -> Terms:
        """What is settled about a model, if it runs on this engine."""
        memory = self.limits(self._config).memory
        devices = (RAM, *(engine.gpus.values() if engine is not None else ()))
        room = {device: memory[device] for device in devices if device in memory}
        terms = terms_of(model, self._config, self._settings, room)
        return structs.replace(terms, memory=self._capped(terms.memory, memory))

    def taken(
        self, model: Model, engine: Engine | None, measured: Mapping[str, int], buffers: Mapping[str, int]
    ) -> Mapping[str, int]:
        """What a running model counts for: see `corrected`."""
        expected = self.terms(model, engine).memory
        return self._capped(corrected(expected, model.config, measured, buffers), self.limits(self._config).memory)

    def sampled(self, samples: Mapping[str, GpuMemory], own: Mapping[str, int]) -> bool:
        """GPUs were looked at while our models took ``own`` there; whether other budgets apply now."""
        self._samples = samples
        if self._config is not None and self._config.vram_policy == "keep":
            return False
        budgets = limits_of(self._config, self._settings, self.look).memory
        before, self._left = self._left, squeezed(budgets, samples, own, before=self._left)
        return before != self._left

    def plan(self, model: Model, engine: Engine, further: Mapping[str, int] = NO_MEMORY) -> Plan | None:
        """How the model is best started on this engine in what is free now, and in ``further`` memory elsewhere.

        Asks the system, for a millisecond. None where the model's file does not say enough.
        """
        room = {RAM: free_memory()}
        for device in dict.fromkeys(engine.gpus.values()):
            free = self._free(device)
            if free is not None:
                room[device] = free
        return plan_of(model, self._settings, {**room, **further}, RESERVE)

    def _free(self, device: str) -> int | None:
        if (sample := self._samples.get(device)) is not None:
            return max(0, sample.total - sample.used)
        number = int(device.removeprefix("gpu")) if device.removeprefix("gpu").isdecimal() else -1
        gpus = self.look.gpus if self.look is not None else ()
        return gpus[number].free if 0 <= number < len(gpus) else None

    def _capped(self, taken: Mapping[str, int], budgets: Mapping[str, int]) -> Mapping[str, int]:
        """Nobody takes more than there is, but where somebody said what that is."""
        if self._config is not None and self._config.memory:
            return taken
        return {device: min(size, budgets.get(device, size)) for device, size in taken.items()}


async def keep_measuring(
    pid: int, devices: Callable[[], Collection[str]], gpus: Gpus, tell: Callable[[Mapping[str, int]], None]
) -> None:
    """Look at a ready process, for those devices that count, until cancelled. ``tell`` gets bytes by device."""
    await trio.sleep(AFTER)
    while True:
        if wanted := devices():
            taken = await process_memory(pid, tuple(wanted), gpus)
            await trio.lowlevel.checkpoint_if_cancelled()  # the process may have ended meanwhile
            tell(taken)
        await trio.sleep(EVERY)


def corrected(
    expected: Mapping[str, int],
    config: ModelConfig | None,
    taken: Mapping[str, int],
    buffers: Mapping[str, int] = NO_MEMORY,
) -> Mapping[str, int]:
    """Bytes by device that count from now on.

    The ``buffers`` that the server says it has allocated replace what was expected of it. What was measured counts
    where it is more: weights that are read from the file on demand are not resident yet, and caches grow. Nothing goes
    below what the configuration says: of a server in a container only the client can be seen; and of a configured one
    that says nothing, what is measured is all that is known.
    """
    if config is not None:
        least: Mapping[str, int] = in_bytes(config.memory)
    else:
        least = NO_MEMORY if buffers else expected
    known = {d: max(taken.get(d, 0), buffers.get(d, 0), least.get(d, 0)) for d in {**taken, **buffers}}
    return {**(NO_MEMORY if buffers and config is None else expected), **known}
