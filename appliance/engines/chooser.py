"""Who is asked which engine a model is started on: the owner of all engines, or one engine and nothing else."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from msgspec import structs

from appliance.core.engines.machine import Look
from appliance.engines.found import Engine


class Chooser(Protocol):
    """Answers at once, without a look at the disk."""

    def choose(self, model: str = "", tried: Collection[str] = (), word: str = "") -> Engine | None:
        """The engine for the model, with its seat, which is none of those ``tried``; None when there is no other.

        ``word`` is what the model's own configuration asks for, as `Wanted.word`. Without a model: what a model gets
        of which nothing is known.
        """
        ...

    def failed(self, engine: Engine, model: str, why: str) -> None:
        """The model could not be started on the engine, or its process died at work."""
        ...

    def pardoned(self, seat: str, model: str) -> None:
        """The seat failed because of a request under which another one failed as well."""
        ...

    @property
    def look(self) -> Look | None:
        """The machine; None while nobody has looked."""
        ...

    async def check(self, engine: Engine) -> str:
        """What is wrong with the engine's files, right before it is started; empty: nothing."""
        ...


class OneEngine:
    """One engine that somebody named: nothing else will do."""

    def __init__(self, engine: Engine) -> None:
        self._engine = structs.replace(engine, seat=engine.seat or f"{engine.id or engine.name}:")

    def choose(self, model: str = "", tried: Collection[str] = (), word: str = "") -> Engine | None:
        return None if self._engine.seat in tried else self._engine

    def failed(self, engine: Engine, model: str, why: str) -> None:
        """There is nothing else to be used meanwhile."""

    def pardoned(self, seat: str, model: str) -> None:
        """It was never accused."""

    @property
    def look(self) -> Look | None:
        """Nobody looks for the sake of one engine."""
        return None

    async def check(self, engine: Engine) -> str:
        return engine.damage
