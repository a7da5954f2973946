"""What the schedule is told of a model and of the machine: the configuration's words in the schedule's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from appliance.catalog.catalog import Headers
from appliance.core.config.types import Config, Memory
from appliance.core.engines.machine import Look
from appliance.core.fit.estimate import RAM, estimate
from appliance.core.fit.plan import RESERVE, Plan, asked_of, budgets_of, plan
from appliance.core.fit.shape import Shape
from appliance.core.models.model import Model, engine_flags
from appliance.core.scheduling.effects import Terms
from appliance.core.scheduling.policy import NO_MEMORY, FreePolicy, Limits, Policy, policy_of
from appliance.core.settings import DEFAULT_MODELS_MAX, FleetSettings

BESIDE_WEIGHTS = 1.1
"""A file of which nothing else is known takes its size and a tenth more, until it has been measured."""
EXPECTATIONS = 256
"""Models whose estimates are kept; one takes about a millisecond, and every request asks."""


def limits_of(config: Config | None, settings: FleetSettings, look: Look | None = None) -> Limits:
    """The command line's number of models wins; a configuration with models of its own and no number sets none.

    Without a word on memory in the configuration the machine that was looked at sets the budgets; without a look none
    are set.
    """
    automatic = budgets_of(look) if look is not None else NO_MEMORY
    if config is None:
        most = DEFAULT_MODELS_MAX if settings.models_max is None else settings.models_max
        return Limits(capacity=most, memory=automatic, queue=settings.queue_limit)
    usual = 0 if config.models else DEFAULT_MODELS_MAX
    most = usual if config.models_max is None else config.models_max
    return Limits(
        capacity=most if settings.models_max is None else settings.models_max,
        memory=in_bytes(config.memory) or automatic,
        queue=config.queue_limit,
    )


def policy_for(config: Config | None) -> Policy:
    """Groups and matrix say who runs beside whom of the models that a configuration has; without any, all may."""
    return policy_of(config) if config is not None and config.models else FreePolicy()


def terms_of(
    model: Model, config: Config | None, settings: FleetSettings, room: Mapping[str, int] = NO_MEMORY
) -> Terms:
    """``config`` is the configuration in force, which may not know the model. ``room`` are the memory budgets of the
    devices that its engine uses; without them all of it is expected in main memory.
    """
    own = model.config
    if config is None or own is None:
        patience = settings.patience if config is None else config.patience
        return Terms(patience=_patience(patience), memory=expected_of(model, settings, room))
    return Terms(
        priority=config.routing.scheduler.settings.fifo.priority.get(model.id, 0),
        limit=own.limit,
        pinned=own.pinned,
        ttl=own.ttl,
        patience=_patience(own.patience),
        min_loaded=own.min_loaded_time,
        memory=in_bytes(own.memory) or {RAM: round(model.size * BESIDE_WEIGHTS)},
    )


def expected_of(model: Model, settings: FleetSettings, room: Mapping[str, int] = NO_MEMORY) -> Mapping[str, int]:
    """Bytes by device that a model on disk will take, started with what is known of it."""
    shape = model.info.shape if model.info is not None else None
    if shape is None:
        return {RAM: round(model.size * BESIDE_WEIGHTS)}
    flags = (*engine_flags(model), *model.args, *settings.engine_args)
    return _expected(shape, flags, tuple(room.items()), _companions(model.mmproj, model.draft, model.created))


def plan_of(
    model: Model, settings: FleetSettings, room: Mapping[str, int], reserve: int = RESERVE, flags: Sequence[str] = ()
) -> Plan | None:
    """How to start a model on disk in the memory that is free; None where its file does not say enough.

    ``flags`` are further ones that its engine gets. Asks the disk for the sizes of its companions.
    """
    shape = model.info.shape if model.info is not None else None
    if shape is None:
        return None
    said = (*engine_flags(model), *model.args, *settings.engine_args, *flags)
    gpus = tuple(device for device in room if device != RAM)
    projector, draft = _companions(model.mmproj, model.draft, model.created)
    return plan(shape, room, asked_of(said, gpus=gpus, projector=projector, draft=draft), reserve=reserve)


@lru_cache(maxsize=EXPECTATIONS)
def _expected(
    shape: Shape, flags: tuple[str, ...], room: tuple[tuple[str, int], ...], companions: tuple[int, Shape | None]
) -> Mapping[str, int]:
    gpus = tuple(device for device, _ in room if device != RAM)
    asked = asked_of(flags, gpus=gpus, projector=companions[0], draft=companions[1])
    found = plan(shape, dict(room), asked, reserve=0).estimate if room else estimate(shape, asked.options)
    return found.by_device()


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
