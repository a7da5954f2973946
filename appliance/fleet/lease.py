"""One request's hold on a running model, from the question to the end of its block."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import trio
from msgspec import Raw

from appliance.core.models.model import Model
from appliance.core.records.progress import Held
from appliance.errors import ApplianceError, Busy
from appliance.fleet.hold import SlotPlace
from appliance.upstream.client import Address

RETRY = 5.0
"""Seconds after which a request may come again that has waited too long; more where its model's load takes longer."""


class QueuePlace:
    """Handed to `Fleet.lease`, which fills it in; safe to ask at any time."""

    def __init__(self) -> None:
        self.came_to: int | None = None
        """The place in the queue when it came; 0: only its model's load was waited for. None: it did not wait."""
        self.waited = 0.0
        """Seconds that it has waited, once that is over."""
        self.load: tuple[float, float] | None = None
        """Its model's load within its wait: how many seconds before the end of the wait it began, and was over."""
        # These are functions and not values. A place changes with every event of the queue, and most places are never
        # asked for.
        self._position: Callable[[], int | None] | None = None
        self._expected: Callable[[], float | None] | None = None
        self._progress: Callable[[], Raw | None] | None = None
        self._fetched: Callable[[], float | None] | None = None

    def fetches(self, fetched: Callable[[], float | None]) -> None:
        """Its model is being downloaded."""
        self._fetched = fetched

    def take(
        self,
        position: Callable[[], int | None],
        progress: Callable[[], Raw | None],
        expected: Callable[[], float | None],
    ) -> None:
        self._position, self._progress, self._expected, self._fetched = position, progress, expected, None
        self.came_to = position() or 0

    def leave(self) -> None:
        """It waits no more."""
        self._position = self._progress = self._expected = self._fetched = None

    def held(self) -> Held | None:
        """The thing that it waits for; None when it has its model."""
        if self._fetched is not None:
            return "downloading"
        if self._position is None:
            return None
        return "loading" if self._position() is None else "waiting"

    def position(self) -> int | None:
        """The place in the queue, counted from 1; None when it waits for a load, or for nothing."""
        return self._position() if self._position else None

    def expected(self) -> float | None:
        """Seconds until it is served, as far as loads decide; None where none was measured, or it does not wait."""
        return self._expected() if self._expected else None

    def progress(self) -> Raw | None:
        """The engine's progress report of its loading, JSON; None where it sends none."""
        return self._progress() if self._progress else None

    def fetched(self) -> float | None:
        """How much of the model is downloaded, from 0 to 1; None when it is here."""
        return self._fetched() if self._fetched else None


class GivenUp(Exception):
    """The request was abandoned while it waited for the model."""


class Counted(Protocol):
    """An answer of which it is counted what has come."""

    received: int


class Lender(Protocol):
    """The part of the fleet that a lease uses. `lend`, `ask` and `take_back` are atomic."""

    @property
    def queue_timeout(self) -> float:
        """Seconds that a ticket may wait to be answered."""
        ...

    def lend(self, lease: Lease) -> Address | None:
        """The lease at once, where the model is ready for one more; None where it is to `ask`. Raises ModelNotFound."""
        ...

    async def supply_for(self, lease: Lease) -> None:
        """Fetch what the model lacks. Raises what `Supply.bring` does."""
        ...

    def ask(self, lease: Lease) -> None:
        """Place the ticket: `Lease.answer` is called now or later, at most once."""
        ...

    def waited(self, lease: Lease, seconds: float) -> None:
        """Its holder continues, after a wait of so many seconds."""
        ...

    def hear(self, lease: Lease) -> None:
        """Echo what the process has said by now, if output is echoed at all."""
        ...

    def take_back(self, lease: Lease, error: BaseException | None) -> None:
        """End the ticket. Total over all of its states, also one that was never placed."""
        ...


class Lease:
    """Made by `Fleet.lease`, which says what it promises; used once, with ``async with``.

    Nearly every request finds its model ready. It is lent to it in one synchronous step without an event, a timeout or
    a checkpoint, and none is needed to give it back.

    Total over every cancellation: whatever ends `__aenter__` early, or the block, comes to `take_back`, and between the
    two nothing is awaited. The schedule's `release` is total over every state of a ticket, so that it need not be known
    here how far this one came.
    """

    __slots__ = (
        "_answered",
        "_lender",
        "address",
        "answer_under_way",
        "asks",
        "model",
        "place",
        "placed",
        "refusal",
        "ticket",
    )

    def __init__(self, lender: Lender, ticket: int, model: Model, place: QueuePlace | None) -> None:
        self.ticket = ticket
        self.model = model
        """As the configuration in force says, from `Lender.lend` on."""
        self.place = place
        self._lender = lender
        self.address: Address | None = None
        """The address of the process; None before it is lent."""
        self.answer_under_way: Counted | None = None
        """Set by the holder as soon as there is one."""
        self.asks: tuple[str, bytes] | None = None
        """The path and the body that go to the process; None for anything but a request."""
        self.placed: SlotPlace | None = None
        """Its slot in the process, which ends with it."""
        self.refusal: ApplianceError | None = None
        """The error that the schedule has given instead of an address."""
        self._answered: trio.Event | None = None

    def take(self) -> Address | None:
        """Take the lease at once, where the model is ready for one more; None changes nothing. Raises ModelNotFound.

        `give_back` ends it, or an ``async with`` that begins with it.
        """
        self.address = self._lender.lend(self)
        return self.address

    def hear(self) -> None:
        """Called before its holder's client gets the end of an answer: the process's own words come first."""
        self._lender.hear(self)

    def give_back(self, error: Exception | None = None) -> None:
        self._lender.take_back(self, error)

    async def __aenter__(self) -> Address:
        try:
            self.address = self.address or self._lender.lend(self) or await self._wait()
            return self.address
        except BaseException as error:
            self._lender.take_back(self, error)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lender.take_back(self, error)

    @property
    def request(self) -> int:
        """The same for the same request to the same model; 0 for none."""
        return hash((self.model.id, *self.asks)) if self.asks is not None else 0

    @property
    def passed(self) -> int:
        """Bytes that have come for it."""
        return self.answer_under_way.received if self.answer_under_way is not None else 0

    def answer(self, answer: Address | ApplianceError) -> None:
        """The model is lent, or never will be."""
        if isinstance(answer, ApplianceError):
            self.refusal = answer
        else:
            self.address = answer
        if self._answered is not None:
            self._answered.set()

    async def _wait(self) -> Address:
        """Until the model is loaded. Raises what `Fleet.lease` says."""
        lender = self._lender
        await lender.supply_for(self)
        asked_at = trio.current_time()
        lender.ask(self)
        # `ask` carries effects out at once, and may have answered within the call. An event is made only for a real
        # wait.
        if self.address is None and self.refusal is None:
            self._answered = trio.Event()
            with trio.move_on_after(lender.queue_timeout):
                await self._answered.wait()
        # A grant in the very moment of the timeout counts: only a missing address says that it was too late. The ticket
        # is then still in the queue, and `__aenter__` takes it back, here as after every other failure.
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        if self.address is None:
            again = self.place.expected() if self.place is not None else None
            told = f"model '{self.model.id}' waited {lender.queue_timeout:g} s for its turn"
            raise Busy(told, retry_after=max(again or 0.0, RETRY))
        seconds = trio.current_time() - asked_at
        if self.place is not None:
            self.place.waited = seconds
            self.place.leave()
        lender.waited(self, seconds)
        return self.address
