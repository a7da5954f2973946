"""The timeline: what became of models, engines and the configuration, each with the reason of its decision.

A `Happening` is made where something is decided, and holds facts alone; `core.records.history_words` is for readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Literal, Protocol, get_args

from msgspec import Struct

from appliance.core.followers import Followers
from appliance.core.scheduling.effects import EVICTING, Cause, Drain, Effect, Grant, Refuse, Start, Stop
from appliance.errors import ApplianceError, ModelFailedToStart, shortened

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000

Kind = Literal[
    "loading",
    "loaded",
    "failed",
    "evicted",
    "unloaded",
    "refused",
    "fallback",
    "crashed",
    "hung",
    "engine",
    "reload",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
Trigger = Literal["asked", "signal", "file"]
"""Why files are read again: a request, SIGHUP, or because they have changed."""
NEVER = datetime.fromtimestamp(0, UTC)


class Happening(Struct, frozen=True, kw_only=True, omit_defaults=True, eq=False):
    """One entry of the timeline. The history assigns ``id`` and ``timestamp``."""

    id: int = 0
    timestamp: datetime = NEVER
    kind: Kind
    model: str = ""
    cause: Cause | None = None
    """Why a process was stopped."""
    requests: int = 0
    """The requests that wait for a load, or that were refused."""
    seconds: float = 0.0
    """The time of a load, or for how long the first request has waited for it."""
    engine: str = ""
    """The seat on which it happened, or that was left."""
    following: str = ""
    """The seat that is used instead."""
    error: str = ""
    reason: str = ""
    """The error's word, as in an answer. Of a fallback: ``replayed`` or ``continued`` (a request), ``started`` (a
    model). Of a reload: its `Trigger`.
    """
    what: str = ""
    """``configuration`` or ``presets``, of a reload."""
    changed: tuple[str, ...] = ()
    """Models whose processes are out of date."""


class HistoryQuery(Struct, frozen=True, kw_only=True):
    """Which entries are wanted. ``after`` and ``before`` are ids, and neither is among the answer.

    With ``after`` or ``start`` the oldest of those that fit are the answer, else the newest.
    """

    models: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = ()
    after: int | None = None
    before: int | None = None
    start: datetime | None = None
    limit: int = DEFAULT_LIMIT

    @property
    def from_oldest(self) -> bool:
        return self.before is None and (self.after is not None or self.start is not None)


Tell = Callable[[Happening], None]
"""Puts an entry into the timeline. It neither blocks nor raises."""


def told_to_nobody(happening: Happening) -> None:
    """A `Tell` for a program without a timeline."""


class KeptTimeline(Protocol):
    """The entries, kept for readers."""

    def add(self, happening: Happening, /) -> None:
        """Put it into the timeline, now; this neither blocks nor raises."""
        ...

    def follow(self, on_entry: Tell, /) -> AbstractContextManager[None]:
        """Call ``on_entry`` with every entry that comes in the block. It must neither block nor raise."""
        ...

    async def read(self, query: HistoryQuery, /) -> list[Happening]:
        """Return entries, the oldest first. Raises Busy where they cannot be read now."""
        ...


class NoTimeline:
    """A timeline that keeps nothing: its entries have no ids, and go to its followers alone."""

    def __init__(self) -> None:
        self._followers = Followers[Tell]()
        self.follow = self._followers.follow

    def add(self, happening: Happening, /) -> None:
        for on_entry in self._followers.calls:
            on_entry(happening)

    async def read(self, query: HistoryQuery, /) -> list[Happening]:
        return []


def happenings(effects: Iterable[Effect]) -> list[Happening]:
    """Return the entries for what the schedule has decided: loads, ends of processes, refusals.

    Requests that one decision refuses for the same reason share an entry.
    """
    found: list[Happening] = []
    refused: dict[tuple[str, int], tuple[int, ApplianceError]] = {}
    for effect in effects:
        match effect:
            case Start(model, requests, waited):
                found.append(Happening(kind="loading", model=model, requests=requests, seconds=waited))
            case Stop(model, cause):
                kind: Kind = "hung" if cause.rule == "hung" else "evicted" if cause.rule in EVICTING else "unloaded"
                found.append(Happening(kind=kind, model=model, cause=cause))
            case Refuse(_, model, error):
                before, _ = refused.get((model, id(error)), (0, error))
                refused[model, id(error)] = before + 1, error
            case Drain() | Grant():
                pass
    return [*found, *(refusal(model, error, requests) for (model, _), (requests, error) in refused.items())]


def refusal(model: str, error: ApplianceError, requests: int = 1) -> Happening:
    """The entry for requests that get this error instead of the model."""
    told = str(error).removesuffix(error.tail) if isinstance(error, ModelFailedToStart) else str(error)
    return Happening(kind="refused", model=shortened(model), requests=requests, error=told, reason=error.reason)
