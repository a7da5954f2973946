"""The words between `core.scheduling.schedule` and the fleet: the schedule's effects, and the terms of a model."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal

from msgspec import Struct

from appliance.core.scheduling.policy import NO_MEMORY
from appliance.errors import ApplianceError


class Terms(Struct, frozen=True, kw_only=True):
    """The settings of one model for the scheduler. Times are in seconds."""

    priority: int = 0
    limit: int = 0
    """Largest number of tickets at once; 0 means any number."""
    pinned: bool = False
    ttl: float = 0
    """0 means never."""
    patience: float = 10.0
    min_loaded: float = 0
    memory: Mapping[str, int] = NO_MEMORY
    """Bytes that the model is expected to take, by device."""


DEFAULT_TERMS = Terms()


class ProcessState(Enum):
    """The states of one model process."""

    STARTING = "loading"
    READY = "loaded"
    DRAINING = "draining"
    STOPPING = "stopping"


GOING = (ProcessState.DRAINING, ProcessState.STOPPING)

Rule = Literal[
    "group",
    "matrix",
    "number",
    "memory",
    "squeeze",
    "idle",
    "asked",
    "shutdown",
    "outdated",
    "removed",
    "moved",
    "hung",
    "condemned",
]
EVICTING: tuple[Rule, ...] = ("group", "matrix", "number", "memory", "squeeze")
"""The rules by which a model goes although nothing is wrong with it: another one, or somebody else, needs its place."""


class Cause(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a process stops: the facts that the decision had. `core.records.history_words` puts them into words."""

    rule: Rule
    by: str = ""
    """The model that needs the place."""
    set: str = ""
    """The group or the set of a matrix that decided."""
    idle: float = 0.0
    """Seconds since its last use."""
    longest_idle: bool = False
    """Nothing that could have gone instead was used less recently."""
    short: Mapping[str, int] = NO_MEMORY
    """Bytes that were missing, by device, where it takes some."""
    most: int = 0
    """The number of processes that may run at once, where that was reached."""
    leases: int = 0
    """Requests that it still had: their time was up."""
    note: str = ""
    """The fault of the process, or the engine that the model moves to."""


ASKED = Cause(rule="asked")
OUTDATED = Cause(rule="outdated")


class Start(Struct, frozen=True):
    """Spawn a process for this model; answer with `Schedule.ready` or `Schedule.exited`."""

    model: str
    requests: int = 1
    """The tickets that wait for it."""
    waited: float = 0.0
    """Seconds that the first of them has waited."""


class Stop(Struct, frozen=True):
    """End the process of this model; answer with `Schedule.exited`."""

    model: str
    cause: Cause = ASKED


class Foresight(Struct, frozen=True, kw_only=True):
    """The effect that a request for a model would have."""

    goes: tuple[str, ...] = ()
    """Models that would be stopped for it, as soon as none of them is held."""
    held: tuple[str, ...] = ()
    """The part of them that is in use, or was loaded just now: the request waits for it."""
    before: tuple[str, ...] = ()
    """Models that load before it, those that load now included."""
    refused: ApplianceError | None = None
    """The error that it would get at once."""

    @property
    def room(self) -> Literal["free", "idle", "none"]:
        """Memory for the model: free now, free once idle models go, or there is none before a model in use ends."""
        if self.refused is not None or self.held:
            return "none"
        return "idle" if self.goes else "free"


class Drain(Struct, frozen=True):
    """The model should go but is leased: call `Schedule.expire` when its leases have had enough time."""

    model: str


class Grant(Struct, frozen=True):
    """The holder of this ticket may use the model until it releases the ticket."""

    ticket: int
    model: str


class Refuse(Struct, frozen=True):
    """The holder of this ticket gets this error instead of a model."""

    ticket: int
    model: str
    error: ApplianceError


Effect = Start | Stop | Drain | Grant | Refuse
