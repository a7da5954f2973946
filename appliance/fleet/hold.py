"""The hold of conversations on their slots between requests, as the fleet and the way of a request know it.

A model's process has slots, and each holds what it has read last. `SlotHold` says which slot a request gets, and may
keep what a slot holds beyond its process. The one here keeps nothing: then each process chooses slots by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from appliance.core.models.model import Model
from appliance.core.records.accounting import Usage
from appliance.core.records.cache_misses import SlotNews

if TYPE_CHECKING:
    from appliance.fleet.launch import Launch

SHORT = 8192
"""Bytes of a body up to which a request is short: some 2,000 tokens."""


class RestoreFailed(Exception):
    """The process ended while it read a context. Its request has not been sent."""


class SlotPlace(Protocol):
    """One request's place in its model's process, until its lease ends."""

    @property
    def is_ready(self) -> bool:
        """False: `HeldPlace.prepare` it before the request is sent."""
        ...

    @property
    def held(self) -> HeldPlace | None:
        """The same place, if something is saved for it, or given back."""
        ...

    def named_in(self, body: bytes) -> bytes:
        """Return the JSON object with the name of its slot."""
        ...

    def release(self, *, refused: bool) -> None:
        """The request is over; ``refused``: nothing of an answer has come."""
        ...


class HeldPlace(SlotPlace, Protocol):
    """A place of which something is saved or given back."""

    restored: int
    """Tokens that came back for it."""
    seconds: float
    """The time that `prepare` took."""

    async def prepare(self) -> None:
        """Save what the slot has, and have the engine read what it lacks; at once if it `is_ready`.

        Raises RestoreFailed.
        """
        ...

    def learn(self, usage: Usage) -> SlotNews:
        """Take over what the answer says of its prompt. Return the fate of its conversation's context."""
        ...


class Slots(Protocol):
    """The slots of one process."""

    def place(
        self, ticket: int, session: str, body: bytes, owner: bytes, wanted: int, *, names_slot: bool
    ) -> SlotPlace:
        """Give the request with this ticket a slot. ``owner`` is its client.

        ``wanted`` is the slot that the request names, -1 for none. ``names_slot``: its engine lets requests of this
        kind name theirs.
        """
        ...

    def place_short(self, body: bytes, owner: bytes, *, names_slot: bool) -> SlotPlace | Literal[False] | None:
        """The same for a request of fewer than `SHORT` bytes that names no slot. False: `place` it.

        None: no slot is idle, so that the engine chooses.
        """
        ...

    def needed(self) -> int:
        """Return about how many tokens of context the requests need that are using slots."""
        ...


class SlotHold:
    """Told of every load and end of a model. This one holds nothing; a feature's is made of it."""

    def of(self, model_id: str) -> Slots | None:
        """Return the slots of the model's process; None: it chooses the slots of its requests by itself."""
        return None

    async def give_way(self) -> None:
        """Remove what there is no room for beside the models, before the next one is planned."""

    async def prepared(self, model: Model, launch: Launch) -> Launch:
        """Return the launch of a process with all that the hold needs of it."""
        return launch

    def begin(self, model: Model, launch: Launch) -> None:
        """Its process is ready."""

    async def keep(self, model_id: str) -> None:
        """Keep what the model's process has read, until cancelled or nothing of it is to be kept."""

    def end(self, model_id: str) -> None:
        """Its process is gone."""


class Unnamed:
    """The place of a request that names a slot, and may not."""

    __slots__ = ()
    is_ready = True
    held = None

    def named_in(self, body: bytes) -> bytes:
        """Return the JSON object, in which the last of several members with one name counts, without a slot."""
        before, _, after = body.rpartition(b"}")
        return b'%b,"id_slot":-1}%b' % (before, after) if before else body

    def release(self, *, refused: bool) -> None:
        """See `SlotPlace.release`."""
