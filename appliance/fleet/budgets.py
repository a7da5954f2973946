"""Facts about the machine and a model, as the schedule uses them: the configuration in its words, and memory.

The memory is what there is, what each model is expected to take of it, and what others leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import trio
from msgspec import structs

from appliance.core.config.types import Config, Memory, ModelConfig
from appliance.core.engine import Engine
from appliance.core.machine_look import MachineLook
from appliance.core.memory import RAM, FitPlan, GpuMemory, Sizes
from appliance.core.models.model import Model
from appliance.core.scheduling.effects import Terms
from appliance.core.scheduling.policy import NO_MEMORY, FleetLimits, FreePolicy, Policy, policy_of
from appliance.core.settings import DEFAULT_MODELS_MAX, FleetSettings
from appliance.errors import WillNotFit
from appliance.fleet.estimate import Estimate, by_size
from appliance.platform.gpus import Gpus, process_memory
from appliance.platform.machine import free_memory, total_memory
from appliance.trio_parts import every

SAMPLES: Mapping[str, GpuMemory] = {}
AT_ONCE = 1e-6
"""Seconds, where none at all would mean for ever."""
AFTER = 1.0
EVERY = 30.0
"""Seconds after readiness until the first look, and between looks: servers grow while they are used."""


class Budgets:
    """Owned by the fleet. Everything but `plan` answers at once.

    Where the configuration says nothing of memory, the machine sets the budgets as soon as it has been looked at. They
    decide who makes room for whom and refuse nobody: a model that takes more than there is may try it alone.
    """

    def __init__(self, settings: FleetSettings, estimate: Estimate) -> None:
        self.estimate = estimate
        self.look: MachineLook | None = None
        """The machine; None before the first look."""
        self._settings = settings
        self._config: Config | None = None
        self._left: Sizes = NO_MEMORY
        self._samples = SAMPLES

    def limits(self, config: Config | None) -> FleetLimits:
        """Return the limits of this configuration, which apply from now on."""
        self._config = config
        limits = limits_of(config, self._settings, self._automatic())
        left = {d: min(most, self._left.get(d, most)) for d, most in limits.memory.items()}
        return structs.replace(limits, memory=left)

    def terms(self, model: Model, engine: Engine | None, kept: float | None = None) -> Terms:
        """Return the terms of a model, if it runs on this engine. ``kept`` replaces its ``ttl``: see `Fleet.keep`."""
        memory = self.limits(self._config).memory
        if self._config is not None and model.config is not None:
            expected = by_size(model)
        else:
            devices = (RAM, *(engine.gpus.values() if engine is not None else ()))
            room = {device: memory[device] for device in devices if device in memory}
            manual = engine.manual if engine is not None else None
            expected = self.estimate.expect(model, room, manual, self._settings.engine_args)
        terms = terms_of(model, self._config, self._settings, expected)
        if kept is not None:
            terms = structs.replace(terms, ttl=0.0 if kept == math.inf else max(kept, AT_ONCE))
        return structs.replace(terms, memory=self._capped(terms.memory, memory))

    def taken(self, model: Model, engine: Engine | None, measured: Sizes, buffers: Sizes) -> Sizes:
        """Return the memory that a running model counts for: see `corrected`."""
        expected = self.terms(model, engine).memory
        return self._capped(corrected(expected, model.config, measured, buffers), self.limits(self._config).memory)

    def sampled(self, samples: Mapping[str, GpuMemory], own: Sizes) -> bool:
        """GPUs were looked at while our models took ``own`` there; whether other budgets apply now."""
        self._samples = samples
        if self._config is not None and self._config.vram_policy == "keep":
            return False
        budgets = limits_of(self._config, self._settings, self._automatic()).memory
        # The full budgets are reduced, and not the ones that were reduced before. Otherwise the use of others would be
        # taken off again with each sample, until nothing is left.
        before, self._left = self._left, self.estimate.squeeze(budgets, samples, own, self._left)
        return before != self._left

    def plan(self, model: Model, engine: Engine, room: Sizes, others: int, cached: int) -> FitPlan | None:
        """Plan the model's start on this engine in this room. None where the model's file does not say enough.

        ``others`` is the main memory of other models, ``cached`` the most that their caches of prompts may grow to.
        """
        budget, args = self.limits(self._config).memory.get(RAM), self._settings.engine_args
        left = budget - others if budget is not None else None
        return self.estimate.plan(model, room, engine.manual, args, budget=left, cached=cached)

    def check(self, model: Model, engine: Engine | None, found: FitPlan | None = None) -> None:
        """Raise WillNotFit for a model that this program's group cannot take; see `Estimate.why_refused`."""
        allows_all = self._settings.allow_overcommit or (self._config is not None and self._config.allow_overcommit)
        if allows_all or not self._settings.fit:
            return
        room, cards = self.room(engine), set(engine.gpus.values()) if engine is not None else set[str]()
        if not cards <= room.keys():  # a card of which nobody knows what is free
            return
        if why := self.estimate.why_refused(model, engine, room, self._settings.engine_args, found):
            raise WillNotFit(model.id, why)

    def room(self, engine: Engine | None) -> dict[str, int]:
        """Return the bytes that are free now where this engine puts models, by device. Asks the system."""
        free, used = self._free(), engine.gpus.values() if engine is not None else ()
        return {RAM: free_memory(), **{device: free[device] for device in used if device in free}}

    def devices(self) -> dict[str, GpuMemory]:
        """Return main memory and the cards, with what is used of each by anybody. Asks the system."""
        most, free = total_memory(), self._free()
        found = {RAM: GpuMemory(most - min(free_memory(), most), most)}
        for number, gpu in enumerate(self.look.gpus if self.look is not None else ()):
            if gpu.total and (device := f"gpu{number}") in free:
                found[device] = GpuMemory(max(0, gpu.total - free[device]), gpu.total)
        return found

    def _free(self) -> Sizes:
        """Return the free bytes of each card: as it was sampled, else as it was when somebody looked at the machine."""
        seen = enumerate(self.look.gpus if self.look is not None else ())
        free = {f"gpu{number}": gpu.free for number, gpu in seen if gpu.free is not None}
        return free | {device: max(0, one.total - one.used) for device, one in self._samples.items()}

    def _automatic(self) -> Sizes:
        return self.estimate.budgets(self.look) if self.look is not None else NO_MEMORY

    def _capped(self, taken: Sizes, budgets: Sizes) -> Sizes:
        """Cap a model at the device's memory, unless a budget is configured for it."""
        if self._config is not None and self._config.memory:
            return taken
        return {device: min(size, budgets.get(device, size)) for device, size in taken.items()}


async def keep_measuring(
    pid: int, devices: Callable[[], Collection[str]], gpus: Gpus, tell: Callable[[Sizes], None]
) -> None:
    """Look at a ready process, for those devices that count, until cancelled. ``tell`` gets bytes by device."""

    async def look() -> None:
        if wanted := devices():
            taken = await process_memory(pid, tuple(wanted), gpus)
            await trio.lowlevel.checkpoint_if_cancelled()  # the process may have ended meanwhile
            tell(taken)

    await every(EVERY, look, first=AFTER)


def corrected(expected: Sizes, config: ModelConfig | None, taken: Sizes, buffers: Sizes = NO_MEMORY) -> Sizes:
    """Bytes by device that count from now on.

    The ``buffers`` that the server says it has allocated replace what was expected of it. What was measured counts
    where it is more: weights that are read from the file on demand are not resident yet, and caches grow. Nothing goes
    below what the configuration says: of a server in a container only the client can be seen; and of a configured one
    that says nothing, what is measured is all that is known.
    """
    others = NO_MEMORY if buffers and config is None else expected
    least = in_bytes(config.memory) if config is not None else others
    known = {d: max(taken.get(d, 0), buffers.get(d, 0), least.get(d, 0)) for d in {**taken, **buffers}}
    return {**others, **known}


def limits_of(config: Config | None, settings: FleetSettings, automatic: Sizes = NO_MEMORY) -> FleetLimits:
    """The command line's number of models wins; a configuration with models of its own and no number sets none.

    Without a word on memory in the configuration the ``automatic`` budgets apply.
    """
    most = 0 if config is not None and config.models else DEFAULT_MODELS_MAX
    if config is not None and config.models_max is not None:
        most = config.models_max
    return FleetLimits(
        capacity=most if settings.models_max is None else settings.models_max,
        memory=(in_bytes(config.memory) if config is not None else NO_MEMORY) or automatic,
        queue=(config or settings).queue_limit,
    )


def policy_for(config: Config | None) -> Policy:
    """Groups and matrix say who runs beside whom of the models that a configuration has; without any, all may."""
    return policy_of(config) if config is not None and config.models else FreePolicy()


def terms_of(model: Model, config: Config | None, settings: FleetSettings, expected: Sizes = NO_MEMORY) -> Terms:
    """``config`` is the configuration in force, which may not know the model; ``expected`` counts where it says
    nothing of memory."""
    own = model.config
    if config is None or own is None:
        return Terms(patience=_patience((config or settings).patience), memory=expected)
    return Terms(
        priority=config.routing.scheduler.settings.fifo.priority.get(model.id, 0),
        limit=own.limit,
        pinned=own.pinned,
        ttl=own.ttl,
        patience=_patience(own.patience),
        min_loaded=own.min_loaded_time,
        memory=in_bytes(own.memory) or expected,
    )


def in_bytes(memory: Memory) -> Sizes:
    """A normalised configuration holds numbers only."""
    return {device: size for device, size in memory.items() if isinstance(size, int)}


def _patience(seconds: float) -> float:
    return math.inf if seconds < 0 else seconds
