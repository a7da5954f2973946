"""The choice of the engine that a model is started on, as the fleet asks for it; and one engine that somebody named."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from msgspec import structs

from appliance.core.engine import Engine
from appliance.core.machine_look import MachineLook


class Chooser(Protocol):
    """Answers at once, without a look at the disk."""

    def choose(
        self, model: str = "", tried: Collection[str] = (), word: str = "", cards: tuple[str, ...] = ()
    ) -> Engine | None:
        """The engine for the model, with its seat, which is none of those ``tried``; None when there is no other.

        ``word`` is what the model's own configuration asks for, as `Wanted.word`; ``cards`` are the graphics cards that
        it names. Without a model: what a model gets of which nothing is known.
        """
        ...

    async def lacks(self, cards: tuple[str, ...]) -> str:
        """Why no engine can use these graphics cards, in words; empty: one can. Builds are asked for theirs first."""
        ...

    def failed(self, engine: Engine, model: str, why: str) -> None:
        """The model could not be started on the engine, or its process died at work."""
        ...

    def pardoned(self, seat: str, model: str) -> None:
        """The seat failed because of a request under which another one failed as well."""
        ...

    def context_helps(self, engine: Engine, architecture: str) -> bool:
        """False: it was tried, and the engine read again what it had been given back."""
        ...

    def context_tried(self, engine: Engine, architecture: str, why: str) -> None:
        """A context was given back to a model of this architecture; ``why`` says why it did not help, if so."""
        ...

    @property
    def look(self) -> MachineLook | None:
        """The machine; None while nobody has looked."""
        ...

    async def check(self, engine: Engine) -> str:
        """Return the fault of the engine's files, right before it is started; empty: none."""
        ...

    async def look_again(self) -> list[str]:
        """Ask the builds for what they did not say; return each seat with its standing, for an error."""
        ...


class OneEngine:
    """One engine that somebody named: nothing else will do."""

    def __init__(self, engine: Engine) -> None:
        self._engine = structs.replace(engine, seat=engine.seat or f"{engine.id or engine.name}:")
        self._helpless: set[str] = set()
        """Architectures whose contexts are of no use to it."""

    def choose(
        self, model: str = "", tried: Collection[str] = (), word: str = "", cards: tuple[str, ...] = ()
    ) -> Engine | None:
        return None if self._engine.seat in tried else self._engine

    async def lacks(self, cards: tuple[str, ...]) -> str:
        return f"{self._engine.name} was not asked for its graphics cards; leave out gpu" if cards else ""

    def failed(self, engine: Engine, model: str, why: str) -> None:
        """There is nothing else to be used meanwhile."""

    def pardoned(self, seat: str, model: str) -> None:
        """It was never accused."""

    def context_helps(self, engine: Engine, architecture: str) -> bool:
        return architecture not in self._helpless

    def context_tried(self, engine: Engine, architecture: str, why: str) -> None:
        """Nothing of this is written down: the next run of the program tries it again."""
        (self._helpless.add if why else self._helpless.discard)(architecture)

    @property
    def look(self) -> MachineLook | None:
        """None: nothing looks at the machine for a single engine."""
        return None

    async def check(self, engine: Engine) -> str:
        return engine.damage

    async def look_again(self) -> list[str]:
        return [self._engine.name]
