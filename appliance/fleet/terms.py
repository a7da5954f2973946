"""What the schedule is told of a model and of the machine: the configuration's words in the schedule's."""

from __future__ import annotations

import math
from collections.abc import Mapping

from appliance.core.config.types import Config, Memory
from appliance.core.effects import Terms
from appliance.core.model import Model
from appliance.core.policy import FreePolicy, Policy, policy_of
from appliance.core.room import Limits
from appliance.core.settings import DEFAULT_MODELS_MAX, FleetSettings

RAM = "ram"
BESIDE_WEIGHTS = 1.1
"""A model takes its file and a tenth more, until it has been measured."""


def limits_of(config: Config | None, settings: FleetSettings) -> Limits:
    """The command line's number of models wins; a configuration with models of its own and no number sets none."""
    if config is None:
        most = DEFAULT_MODELS_MAX if settings.models_max is None else settings.models_max
        return Limits(capacity=most, queue=settings.queue_limit)
    usual = 0 if config.models else DEFAULT_MODELS_MAX
    most = usual if config.models_max is None else config.models_max
    return Limits(
        capacity=most if settings.models_max is None else settings.models_max,
        memory=in_bytes(config.memory),
        queue=config.queue_limit,
    )


def policy_for(config: Config | None) -> Policy:
    """Groups and matrix say who runs beside whom of the models that a configuration has; without any, all may."""
    return policy_of(config) if config is not None and config.models else FreePolicy()


def terms_of(model: Model, config: Config | None, settings: FleetSettings) -> Terms:
    """``config`` is the configuration in force, which may not know the model."""
    own = model.config
    if config is None or own is None:
        patience = settings.patience if config is None else config.patience
        return Terms(patience=_patience(patience), memory={RAM: round(model.size * BESIDE_WEIGHTS)})
    return Terms(
        priority=config.routing.scheduler.settings.fifo.priority.get(model.id, 0),
        limit=own.limit,
        pinned=own.pinned,
        ttl=own.ttl,
        patience=_patience(own.patience),
        min_loaded=own.min_loaded_time,
        memory=in_bytes(own.memory) or {RAM: round(model.size * BESIDE_WEIGHTS)},
    )


def in_bytes(memory: Memory) -> Mapping[str, int]:
    """A normalised configuration holds numbers only."""
    return {device: size for device, size in memory.items() if isinstance(size, int)}


def _patience(seconds: float) -> float:
    return math.inf if seconds < 0 else seconds
