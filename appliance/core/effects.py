"""What the schedule answers with, and what it is told of a model: the words between `core.schedule` and the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal

from msgspec import Struct

from appliance.core.room import NO_MEMORY
from appliance.errors import ApplianceError


class Terms(Struct, frozen=True, kw_only=True):
    """What is settled about one model. Times in seconds."""

    priority: int = 0
    limit: int = 0
    """Tickets at once; 0 is any number."""
    pinned: bool = False
    ttl: float = 0
    """0 is never."""
    patience: float = 10.0
    min_loaded: float = 0
    memory: Mapping[str, int] = NO_MEMORY
    """Bytes by device that it is expected to take."""


DEFAULT_TERMS = Terms()


class State(Enum):
    """The life of one model process."""

    STARTING = "loading"
    READY = "loaded"
    DRAINING = "draining"
    STOPPING = "stopping"


GOING = (State.DRAINING, State.STOPPING)
Why = Literal["evicted", "idle", "unloaded"]


class Start(Struct, frozen=True):
    """Spawn a process for this model; answer with `Schedule.ready` or `Schedule.exited`."""

    model: str


class Stop(Struct, frozen=True):
    """End the process of this model; answer with `Schedule.exited`."""

    model: str
    why: Why = "unloaded"


class Drain(Struct, frozen=True):
    """The model is asked to go but leased: call `Schedule.expire` when its leases have had long enough."""

    model: str


class Grant(Struct, frozen=True):
    """The holder of this ticket may use the model until it releases the ticket."""

    ticket: int
    model: str


class Refuse(Struct, frozen=True):
    """The holder of this ticket gets this error instead of a model."""

    ticket: int
    error: ApplianceError


Effect = Start | Stop | Drain | Grant | Refuse
