"""Facts about the machine and a model, as the schedule uses them: the configuration in its words, and memory.

The memory is what there is, what each model is expected to take of it, and what others leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

import trio
from msgspec import structs

from appliance.catalog.headers import Headers
from appliance.core.config.types import Config, Memory, ModelConfig
from appliance.core.engine import Engine, Manual
from appliance.core.fit.budget import budgets_of, squeezed
from appliance.core.fit.estimate import estimate
from appliance.core.fit.plan import RESERVE, FitOptions, asked_of, plan
from appliance.core.fit.refusal import reserve_in, why_refused
from appliance.core.machine_look import MachineLook
from appliance.core.memory import RAM, FitPlan, GpuMemory
from appliance.core.models.model import Model, start_flags
from appliance.core.models.shape import Shape
from appliance.core.scheduling.effects import Terms
from appliance.core.scheduling.policy import NO_MEMORY, FleetLimits, FreePolicy, Policy, policy_of
from appliance.core.settings import DEFAULT_MODELS_MAX, FleetSettings
from appliance.errors import WillNotFit
from appliance.platform.drivers import Gpus, process_memory
from appliance.platform.machine import free_memory, group_memory, own_bytes, total_memory
from appliance.trio_parts import every

SAMPLES: Mapping[str, GpuMemory] = {}
AT_ONCE = 1e-6
"""Seconds, where none at all would mean for ever."""
AFTER = 1.0
EVERY = 30.0
"""Seconds after readiness until the first look, and between looks: servers grow while they are used."""
BESIDE_WEIGHTS = 1.1
"""A file of which nothing else is known takes its size and a tenth more, until it has been measured."""
EXPECTATIONS = 256
"""Models whose estimates are kept; one takes about a millisecond, and every request asks."""


class Budgets:
    """Owned by the fleet. Everything but `plan` answers at once.

    Where the configuration says nothing of memory, the machine sets the budgets as soon as it has been looked at. They
    decide who makes room for whom and refuse nobody: a model that takes more than there is may try it alone.
    """

    def __init__(self, settings: FleetSettings) -> None:
        self.look: MachineLook | None = None
        """The machine; None before the first look."""
        self._settings = settings
        self._config: Config | None = None
        self._left: Mapping[str, int] = NO_MEMORY
        self._samples = SAMPLES

    def limits(self, config: Config | None) -> FleetLimits:
        """Return the limits of this configuration, which apply from now on."""
        self._config = config
        limits = limits_of(config, self._settings, self.look)
        return structs.replace(
            limits, memory={d: min(most, self._left.get(d, most)) for d, most in limits.memory.items()}
        )

    def terms(self, model: Model, engine: Engine | None, kept: float | None = None) -> Terms:
        """Return the terms of a model, if it runs on this engine. ``kept`` replaces its ``ttl``: see `Fleet.keep`."""
        memory = self.limits(self._config).memory
        devices = (RAM, *(engine.gpus.values() if engine is not None else ()))
        room = {device: memory[device] for device in devices if device in memory}
        terms = terms_of(model, self._config, self._settings, room, engine.manual if engine is not None else None)
        if kept is not None:
            terms = structs.replace(terms, ttl=0.0 if kept == math.inf else max(kept, AT_ONCE))
        return structs.replace(terms, memory=self._capped(terms.memory, memory))

    def taken(
        self, model: Model, engine: Engine | None, measured: Mapping[str, int], buffers: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return the memory that a running model counts for: see `corrected`."""
        expected = self.terms(model, engine).memory
        return self._capped(corrected(expected, model.config, measured, buffers), self.limits(self._config).memory)

    def sampled(self, samples: Mapping[str, GpuMemory], own: Mapping[str, int]) -> bool:
        """GPUs were looked at while our models took ``own`` there; whether other budgets apply now."""
        self._samples = samples
        if self._config is not None and self._config.vram_policy == "keep":
            return False
        budgets = limits_of(self._config, self._settings, self.look).memory
        # The full budgets are reduced, and not the ones that were reduced before. Otherwise the use of others would be
        # taken off again with each sample, until nothing is left.
        before, self._left = self._left, squeezed(budgets, samples, own, before=self._left)
        return before != self._left

    def plan(
        self,
        model: Model,
        engine: Engine,
        further: Mapping[str, int] = NO_MEMORY,
        others: Mapping[str, int] = NO_MEMORY,
        cached: int = 0,
    ) -> FitPlan | None:
        """Plan the model's start on this engine in the memory that is free now, and in ``further`` memory elsewhere.

        ``others`` is the memory of other models, and ``cached`` the most that their caches of prompts may grow to. Asks
        the system, for a millisecond. None where the model's file does not say enough.
        """
        room, reserve = self.room(engine), reserve_here()
        free = room[RAM] - reserve
        budget = self.limits(self._config).memory.get(RAM, free + others.get(RAM, 0)) - others.get(RAM, 0)
        # Memory that is free, but beyond the budget that the other models leave, is not this model's to take. It counts
        # as spoken for, like the caches that other models may still fill.
        spoken_for = cached + max(0, free - budget)
        return plan_of(model, self._settings, {**room, **further}, reserve, spoken_for, engine.manual)

    def check(self, model: Model, engine: Engine | None, found: FitPlan | None = None) -> None:
        """Raise WillNotFit for a model that this program's group cannot take. Asks the system.

        ``found`` is the plan in the memory that is free. Without one the group is taken to be empty but for this
        program, since all other models could go. ``engine`` is None for a command that may run elsewhere.
        """
        if self._settings.allow_overcommit or (self._config is not None and self._config.allow_overcommit):
            return
        group = group_memory() if self._settings.fit else None
        cards = set(engine.gpus.values()) if engine is not None else set[str]()
        if group is None or not cards <= self.room(engine).keys():  # a card of which nobody knows what is free
            return
        limit, left = group
        if found is not None:
            needed: int | FitPlan = found
        else:
            left = max(0, limit - own_bytes())
            needed = self._needed(model, engine, left, reserve_in(limit))
        if why := why_refused(needed, left, limit):
            raise WillNotFit(model.id, why)

    def _needed(self, model: Model, engine: Engine | None, left: int, reserve: int) -> int | FitPlan:
        if model.config is not None and RAM in (said := in_bytes(model.config.memory)):
            return said[RAM]
        if engine is None:
            return 0
        room = {**self.room(engine), RAM: left}
        found = plan_of(model, self._settings, room, reserve, manual=engine.manual) if model.config is None else None
        return found or (0 if len(room) > 1 else model.size)

    def room(self, engine: Engine | None) -> dict[str, int]:
        """Return the bytes that are free now where this engine puts models, by device. Asks the system."""
        room = {RAM: free_memory()}
        for device in dict.fromkeys(engine.gpus.values() if engine is not None else ()):
            free = self._free(device)
            if free is not None:
                room[device] = free
        return room

    def devices(self) -> dict[str, GpuMemory]:
        """Return main memory and the cards, with what is used of each by anybody. Asks the system."""
        most, free = total_memory(), free_memory()
        found = {RAM: GpuMemory(most - min(free, most), most)}
        for number, gpu in enumerate(self.look.gpus if self.look is not None else ()):
            free = self._free(f"gpu{number}")
            if gpu.total and free is not None:
                found[f"gpu{number}"] = GpuMemory(max(0, gpu.total - free), gpu.total)
        return found

    def _free(self, device: str) -> int | None:
        if (sample := self._samples.get(device)) is not None:
            return max(0, sample.total - sample.used)
        number = int(device.removeprefix("gpu")) if device.removeprefix("gpu").isdecimal() else -1
        gpus = self.look.gpus if self.look is not None else ()
        return gpus[number].free if 0 <= number < len(gpus) else None

    def _capped(self, taken: Mapping[str, int], budgets: Mapping[str, int]) -> Mapping[str, int]:
        """Cap a model at the device's memory, unless a budget is configured for it."""
        if self._config is not None and self._config.memory:
            return taken
        return {device: min(size, budgets.get(device, size)) for device, size in taken.items()}


async def keep_measuring(
    pid: int, devices: Callable[[], Collection[str]], gpus: Gpus, tell: Callable[[Mapping[str, int]], None]
) -> None:
    """Look at a ready process, for those devices that count, until cancelled. ``tell`` gets bytes by device."""

    async def look() -> None:
        if wanted := devices():
            taken = await process_memory(pid, tuple(wanted), gpus)
            await trio.lowlevel.checkpoint_if_cancelled()  # the process may have ended meanwhile
            tell(taken)

    await every(EVERY, look, first=AFTER)


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


def limits_of(config: Config | None, settings: FleetSettings, look: MachineLook | None = None) -> FleetLimits:
    """The command line's number of models wins; a configuration with models of its own and no number sets none.

    Without a word on memory in the configuration the machine that was looked at sets the budgets; without a look none
    are set.
    """
    automatic = budgets_of(look) if look is not None else NO_MEMORY
    if config is None:
        most = DEFAULT_MODELS_MAX if settings.models_max is None else settings.models_max
        return FleetLimits(capacity=most, memory=automatic, queue=settings.queue_limit)
    usual = 0 if config.models else DEFAULT_MODELS_MAX
    most = usual if config.models_max is None else config.models_max
    return FleetLimits(
        capacity=most if settings.models_max is None else settings.models_max,
        memory=in_bytes(config.memory) or automatic,
        queue=config.queue_limit,
    )


def reserve_here() -> int:
    """Return the bytes of each device that stay free on this machine. Asks the system."""
    return reserve_in(total_memory())


def policy_for(config: Config | None) -> Policy:
    """Groups and matrix say who runs beside whom of the models that a configuration has; without any, all may."""
    return policy_of(config) if config is not None and config.models else FreePolicy()


def terms_of(
    model: Model,
    config: Config | None,
    settings: FleetSettings,
    room: Mapping[str, int] = NO_MEMORY,
    manual: Manual | None = None,
) -> Terms:
    """``config`` is the configuration in force, which may not know the model. ``room`` are the memory budgets of the
    devices that its engine uses; without them all of it is expected in main memory. ``manual`` is that engine's.
    """
    own = model.config
    if config is None or own is None:
        patience = settings.patience if config is None else config.patience
        return Terms(patience=_patience(patience), memory=expected_of(model, settings, room, manual))
    return Terms(
        priority=config.routing.scheduler.settings.fifo.priority.get(model.id, 0),
        limit=own.limit,
        pinned=own.pinned,
        ttl=own.ttl,
        patience=_patience(own.patience),
        min_loaded=own.min_loaded_time,
        memory=in_bytes(own.memory) or {RAM: round(model.size * BESIDE_WEIGHTS)},
    )


def expected_of(
    model: Model, settings: FleetSettings, room: Mapping[str, int] = NO_MEMORY, manual: Manual | None = None
) -> Mapping[str, int]:
    """Bytes by device that a model on disk will take, started with what is known of it."""
    shape = model.info.shape if model.info is not None else None
    if shape is None:
        return {RAM: round(model.size * BESIDE_WEIGHTS)}
    flags = start_flags(model, settings.engine_args)
    companions = _companions(model.mmproj, model.draft, model.created)
    return _expected(shape, flags, tuple(room.items()), companions, manual)


def plan_of(
    model: Model,
    settings: FleetSettings,
    room: Mapping[str, int],
    reserve: int = RESERVE,
    spoken_for: int = 0,
    manual: Manual | None = None,
) -> FitPlan | None:
    """Plan the start of a model on disk in the memory that is free; None where its file does not say enough.

    ``spoken_for`` is as `plan` has it, ``manual`` is the engine's. Asks the disk for the sizes of its companions.
    """
    shape = model.info.shape if model.info is not None else None
    if shape is None:
        return None
    said = start_flags(model, settings.engine_args)
    companions = _companions(model.mmproj, model.draft, model.created)
    return _plan(shape, said, tuple(room.items()), companions, manual, reserve, spoken_for)


@lru_cache(maxsize=EXPECTATIONS)
def _plan(
    shape: Shape,
    flags: tuple[str, ...],
    room: tuple[tuple[str, int], ...],
    companions: tuple[int, Shape | None],
    manual: Manual | None,
    reserve: int,
    spoken_for: int,
) -> FitPlan:
    """A folder holds the same model under several names, and in several finetunes, which take the same memory."""
    gpus = tuple(device for device, _ in room if device != RAM)
    asked = _asked(flags, gpus, *companions, manual)
    return plan(shape, dict(room), asked, reserve=reserve, spoken_for=spoken_for)


@lru_cache(maxsize=EXPECTATIONS)
def _expected(
    shape: Shape,
    flags: tuple[str, ...],
    room: tuple[tuple[str, int], ...],
    companions: tuple[int, Shape | None],
    manual: Manual | None,
) -> Mapping[str, int]:
    gpus = tuple(device for device, _ in room if device != RAM)
    asked = _asked(flags, gpus, *companions, manual)
    found = plan(shape, dict(room), asked, reserve=0) if room else estimate(shape, asked.options)
    return found.by_device()


@lru_cache(maxsize=EXPECTATIONS)
def _asked(
    flags: tuple[str, ...], gpus: tuple[str, ...], projector: int, draft: Shape | None, manual: Manual | None
) -> FitOptions:
    """Most models of a folder are started with the same flags."""
    return asked_of(flags, gpus=gpus, projector=projector, draft=draft, manual=manual)


@lru_cache(maxsize=EXPECTATIONS)
def _companions(projector: str | None, draft: str | None, as_of: int) -> tuple[int, Shape | None]:
    """Bytes of the projector's file, and the draft model's shape; asks the disk once for each pair of files.

    ``as_of`` is when the model itself was last changed. A draft model whose header tells nothing counts by its size.
    """
    headers = Headers()
    size = headers.read(projector).size if projector else 0
    drafting = headers.read(draft) if draft else None
    if drafting is None or drafting.info is None or drafting.info.shape is None:
        return size + (round(drafting.size * BESIDE_WEIGHTS) if drafting is not None else 0), None
    return size, drafting.info.shape


def in_bytes(memory: Memory) -> Mapping[str, int]:
    """A normalised configuration holds numbers only."""
    return {device: size for device, size in memory.items() if isinstance(size, int)}


def _patience(seconds: float) -> float:
    return math.inf if seconds < 0 else seconds
