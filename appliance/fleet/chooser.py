"""The choice of the engine that a model is started on, as the fleet asks for it; and one engine that somebody named.

A feature knows the engines of a machine, and chooses among them. A verb asks the one that the program has for its
`EngineSource`, and so does a server.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, structs

from appliance.core.engine import Engine
from appliance.core.machine_look import MachineLook
from appliance.errors import EngineNotFound, ModelFailedToStart
from appliance.platform.inside import engine_inside, engine_not_found

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.core.records.history import Tell  # with the scheduling, which `version` does without
    from appliance.core.rpc_workers import Crew, WantedCrew
    from appliance.platform.gpus import Gpus
    from appliance.store.carried import CarriedEngines


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

    async def crew(self, wanted: WantedCrew, engine: Engine) -> Crew:
        """Return the workers that the model is to be started with on this engine.

        Raises ModelFailedToStart when it cannot do with those that are there, and UsageError for an invalid endpoint.
        """
        ...

    async def look_again(self) -> list[str]:
        """Ask the builds for what they did not say; return each seat with its standing, for an error."""
        ...


class EngineChoice(Chooser, Protocol):
    """A `Chooser` with what a whole server asks of it, while it is open."""

    @property
    def speed(self) -> float:
        """One by the seconds that a nominal request takes on the engine that a model gets; 0: unknown."""
        ...

    @property
    def is_starting(self) -> bool:
        """True while no engine is proven and one waits for its trial."""
        ...

    def doubt(self) -> None:
        """Look at the machine again before the next use of what is known of it: it was asleep."""
        ...


class FoundEngines(Protocol):
    """The engines among which one run of the program chooses."""

    def open(self, tell: Tell | None = None) -> AbstractAsyncContextManager[EngineChoice]:
        """Own what is known of them, for the length of the block. ``tell`` gets what happens to the choice."""
        ...


class EngineSource(Protocol):
    """The engines of this machine."""

    def find(self, named: str | None) -> Engine:
        """Return the engine to use. ``named`` is the value of ``--engine``. Never one that is damaged.

        Raises UsageError when what the user named cannot be used, and EngineNotFound when nothing was named and nothing
        here is whole.
        """
        ...

    def ids(self) -> tuple[str, ...]:
        """Return the ids of all engines that are here, best place first."""
        ...

    def found(self, named: str | None, *, optional: bool = False) -> FoundEngines:
        """Return the engine that was named, else every one that is here. Raises as `find`.

        ``optional``: there need not be any.
        """
        ...

    def carried(self, packaged: Path | None) -> CarriedEngines:
        """Return the engines' part in bundles. ``packaged`` is this program's folder, if a package manager keeps it."""
        ...

    def gpus(self) -> AbstractAsyncContextManager[Gpus]:
        """Own what asks the drivers of graphics cards, for the length of the block."""
        ...

    async def look(self) -> MachineLook:
        """Look at the machine once. A driver that does not answer is one of the look's problems, by name."""
        ...

    def recover(self) -> None:
        """Put in place, or away, what a killed program has left. Waits for the disk; raises OSError."""
        ...


class OneEngine:
    """One engine that somebody named: nothing else will do. None: there is not any."""

    def __init__(self, engine: Engine | None) -> None:
        self._engine = engine and structs.replace(engine, seat=engine.seat or f"{engine.id or engine.name}:")
        self._helpless: set[str] = set()
        """Architectures whose contexts are of no use to it."""

    def choose(
        self, model: str = "", tried: Collection[str] = (), word: str = "", cards: tuple[str, ...] = ()
    ) -> Engine | None:
        return None if self._engine is None or self._engine.seat in tried else self._engine

    async def lacks(self, cards: tuple[str, ...]) -> str:
        if self._engine is None or not cards:
            return ""
        return f"{self._engine.name} was not asked for its graphics cards; leave out gpu"

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

    async def crew(self, wanted: WantedCrew, engine: Engine) -> Crew:
        raise ModelFailedToStart(wanted.model, "this program asks no workers; leave out rpc")

    async def look_again(self) -> list[str]:
        return [self._engine.name] if self._engine is not None else []

    @property
    def speed(self) -> float:
        return 0.0

    @property
    def is_starting(self) -> bool:
        return False

    def doubt(self) -> None:
        """Nothing is known of the machine."""


class NamedEngine:
    """The engines of a program that knows no more than the one that somebody names, and the one inside it."""

    def find(self, named: str | None) -> Engine:
        from appliance.engines.named import ENGINE_VARIABLE, engine_at

        value, option = (named, "--engine") if named is not None else (os.environ.get(ENGINE_VARIABLE), ENGINE_VARIABLE)
        inside = engine_inside()
        engine = engine_at(value, option, inside) if value else inside and inside.find()
        if engine is None:
            raise engine_not_found(("--engine PATH",))
        return engine

    def ids(self) -> tuple[str, ...]:
        inside = engine_inside()
        engine = inside and inside.find()
        return (engine.id,) if engine is not None else ()

    def found(self, named: str | None, *, optional: bool = False) -> FoundEngines:
        try:
            return FoundOne(self.find(named))
        except EngineNotFound:
            if not optional:
                raise
            return FoundOne(None)

    def carried(self, packaged: Path | None) -> CarriedEngines:
        from appliance.store.carried import NoCarriedEngines

        return NoCarriedEngines()

    def gpus(self) -> AbstractAsyncContextManager[Gpus]:
        from appliance.platform.gpus import NoGpus

        return nullcontext(NoGpus())

    async def look(self) -> MachineLook:
        from appliance.platform.gpus import plain_look

        return plain_look()

    def recover(self) -> None:
        """Nothing is ever changed."""


class FoundOne(Struct, frozen=True):
    """One engine to choose from; None: there is not any."""

    engine: Engine | None

    @asynccontextmanager
    async def open(self, tell: Tell | None = None) -> AsyncGenerator[EngineChoice]:
        yield OneEngine(self.engine)
