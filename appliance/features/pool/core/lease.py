"""The lease of a placement: at most one box at a time decides where a model is loaded, and orders it.

The bus keeps one record for each model, and changes it by compare-and-set: a put names the revision that it replaces.
Nothing else of the bus is relied on. Requests and answers are lost, late and doubled, reads are old, and no clock is
shared. These eight rules are the whole safety, and the histories in the tests break when one of them is left out:

1. A holder acts only while its own clock is before *sent* + `TERM` - `MARGIN`: the time at which it sent the put that
   was acknowledged. The acknowledgement may have taken long, so its arrival says nothing.
2. Others take over by compare-and-set on a record that they saw unchanged for a whole `TERM`. A release, or the next
   holder, has changed the record, which makes the put a conflict. A read may be old; the put proves it.
3. The clocks count sleep (`appliance.platform.machine.here.with_sleep`). A box that wakes has no lease any more, before
   anything of it runs.
4. The record is never deleted. It is released by an empty holder, so its epoch goes on. Where the whole store was lost,
   the highest epoch that this box knows goes into the new record, and not before the store is a `TERM` old: a holder
   from before the loss may act until then (see `KnownStore`).
5. Nothing renews a term. When it is over, the same holder begins a new epoch, like any other.
6. Each order carries epoch and holder, and a box refuses an order of an older epoch than it knows, or of another holder
   in the same epoch (`Fences`). That is the only guard against an order that was sent, and then delayed by a freeze.
7. A term is longer than the longest election of the bus: otherwise each election would end all terms.
8. No lease is needed to *answer*. Two boxes with the same model waste memory and harm nothing. So whenever a lease
   cannot be had in time, the request goes on without one, and no order is sent.

A conflict does not mean that another box has written: the first of two copies of one's own put may have, and its answer
may be late. After a conflict, as after a lost answer, the record is read again: it is mine or another's, never guessed.

Drift: a term of 13 s on a clock that is 5 % slow takes 13.7 s; a wait of 15 s on one that is 5 % fast takes 14.3 s.

Assumed of the bus: a request does not outlive the store that it was sent to, and a lost store does not come back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from appliance.core.lenient_json import decoded
from appliance.features.pool.core.roster import Count

TERM = 15.0  # Seconds. An election takes 4 to 11 (rule 7).
MARGIN = 2.0  # seconds by which a holder stops before others may take over: for clocks that differ by up to 7 %
FRESH = 30.0  # seconds for which a decision is followed, about as long as a load; then the lists of models tell
FOUNDED = "founded"  # The key that tells one store from the next. Its value is made once and never changed.
CREATE = 0  # the revision of a key that does not exist
MOST_MODELS = 1000  # models whose epochs a box knows; the one that was noted first goes first
LONGEST_MODEL = 256  # bytes of the name of a model that is placed; one with a longer name is loaded without an order

Holder = Annotated[str, Meta(max_length=128)]  # the box and the incarnation of its program


class PlacementRecord(Struct, frozen=True, kw_only=True, array_like=True):
    """A model's record on the bus: a JSON list, to which later versions may add."""

    holder: Holder  # empty: released
    epoch: Count
    box: Annotated[str, Meta(max_length=63)] = ""  # the box that was chosen; empty: none in this term
    at: float = 0.0  # Unix time of the decision. It is read with other clocks, so it is only a hint: see rule 8.

    def fresh(self, wall: float) -> bool:
        """True if there is a decision, and it was made in the last `FRESH` seconds or so. ``wall``: Unix time."""
        return bool(self.box) and abs(wall - self.at) < FRESH


def understood(value: bytes) -> PlacementRecord:
    """Return the record in these bytes. Garbage, or the mark of a tool, is a term that runs out."""
    return decoded(PlacementRecord, value) or PlacementRecord(holder="(unreadable)", epoch=0)


def can_be_placed(model: str) -> bool:
    """True if its name can be said on the bus, and kept."""
    try:
        return len(model.encode()) <= LONGEST_MODEL
    except UnicodeEncodeError:
        return False


class ReadKey(Struct, frozen=True):
    """A step: read this key, and tell `PlacementLease.on_entry`."""

    key: str


class PutKey(Struct, frozen=True):
    """A step: put the value if the key has this revision, and tell `on_stored`. Else `attempt` begins anew."""

    key: str
    value: bytes
    revision: int


Step = ReadKey | PutKey | Literal["held"]  # held: the attempt ends, for another box has the lease, or may have it


class Fences:
    """The largest epoch of each model that one box knows, and its holder. Owned by the box, not by a lease.

    A box that forgot its fences in a crash would obey an old order. So `stored` is written before an order is carried
    out, and handed to the next process. Holders are not stored: after a crash, only a new epoch is admitted.
    """

    def __init__(self, stored: Mapping[str, int], most: Callable[[], float]) -> None:
        """``most`` returns the largest epoch that can be by now (`roster.most_changes`); larger ones are not noted."""
        self._most = most
        self._known: dict[str, tuple[int, str | None]] = {}
        for model, epoch in stored.items():
            self._note(model, epoch, None)

    def highest(self, model: str) -> int:
        return self._known.get(model, (0, None))[0]

    def saw(self, model: str, epoch: int, holder: str) -> None:
        """Take note of a record; an empty holder has released it."""
        if epoch > self.highest(model):
            self._note(model, epoch, holder)

    def admits(self, model: str, epoch: int, holder: str) -> bool:
        """Say whether an order may be carried out, and take note of its epoch."""
        self.saw(model, epoch, holder)
        return self._known.get(model) == (epoch, holder)

    def _note(self, model: str, epoch: int, holder: str | None) -> None:
        if epoch <= self._most() and can_be_placed(model):
            self._known.pop(model, None)
            self._known[model] = (epoch, holder)
            if len(self._known) > MOST_MODELS:
                del self._known[next(iter(self._known))]

    def stored(self) -> dict[str, int]:
        """Return the epochs to keep in a file."""
        return {model: epoch for model, (epoch, _) in self._known.items()}


class KnownStore:
    """The store behind the bus, as one box knows it. All leases of the box share it.

    A bus loses its store when one server becomes a cluster of three. Then revisions begin anew, so a put that is based
    on a read from before may succeed by accident; and a missing record does not say that nobody holds it. The key
    `FOUNDED` tells one store from the next, since no value of it comes twice. A box that has seen one value for a
    `TERM` knows that all terms from before that store are over. A new process has to learn that again.
    """

    def __init__(self, me: str) -> None:
        self.me = me  # the holder's name in records: the box and the incarnation of its program
        self.founded: bytes | None = None
        self.settled_at = math.inf  # the own clock from which on a missing record means that nobody can hold it
        self._made = 0

    def on_founded(self, value: bytes | None, now: float) -> PutKey | None:
        """Take the value of `FOUNDED`. The step founds the store, if it is new."""
        if value is None:
            self._made += 1
            return PutKey(FOUNDED, f"{self.me} {self._made}".encode(), CREATE)
        if value != self.founded:
            self.founded, self.settled_at = value, now + TERM
        return None


class _Put(Struct, frozen=True):
    """A put of the record by this box."""

    epoch: int
    sent: float
    value: bytes
    founded: bytes | None  # the store that was known before the record was read


class PlacementLease:
    """One box's lease of one model. Its owner carries out one step at a time, and tells the outcome of each.

    An attempt asks which store it is, reads the record, puts its own, and asks whether it is still the same store: four
    requests of half a millisecond. Each call of `attempt` begins anew, whatever became of the last step: a step without
    an answer is just left. ``now`` is always the box's own clock in seconds: at the moment before a step is carried
    out, or after an answer came.
    """

    def __init__(self, model: str, key: str, fences: Fences, store: KnownStore) -> None:
        self.model = model
        self.key = key
        self.epoch: int = 0  # The epoch of the last term, for orders. It counts only while `held`.
        self._fences, self._store = fences, store
        self._until = -math.inf
        self._last: _Put | None = None
        self._stored = CREATE  # its revision, while FOUNDED is asked once more
        self._own: tuple[int, bytes] | None = None  # revision and value of the newest record known to be of this box
        self._seen: tuple[int, bytes] | None = None
        self._unchanged_since = math.inf

    def held(self, now: float) -> bool:
        """True while this box may send orders for the model (rule 1)."""
        return now < self._until

    def left(self, now: float) -> float:
        """Seconds for which it still may."""
        return max(0.0, self._until - now)

    def attempt(self) -> Step:
        """Begin to take the lease, which is not held."""
        self._stored = CREATE
        return ReadKey(FOUNDED)

    def on_entry(self, key: str, value: bytes | None, revision: int, now: float) -> Step | None:
        """Take the answer to a read: the key's value and revision, or None for a key that is not there.

        No further step: the box has the lease now if `held` says so; otherwise it may attempt anew.
        """
        if key == FOUNDED:
            return self._on_founded(value, now)
        if value is None:
            return self._take(CREATE, now) if now >= self._store.settled_at else "held"
        record = understood(value)
        self._fences.saw(self.model, record.epoch, record.holder)
        if (revision, value) != self._seen:
            self._seen, self._unchanged_since = (revision, value), now
        last = self._last
        if last is not None and value == last.value and last.founded == self._store.founded:
            self._own = self._seen  # its acknowledgement was lost
        if record.holder and self._seen != self._own and now - self._unchanged_since < TERM:
            return "held"
        return self._take(revision, now)

    def on_stored(self, key: str, revision: int) -> Step:
        """Take the acknowledgement of a put: of the record, or of `FOUNDED`."""
        self._stored = revision if key == self.key else CREATE
        return ReadKey(FOUNDED)

    def release(self, box: str, wall: float, now: float) -> PutKey | None:
        """Stop holding at once, and return the step that tells others: with the box that was chosen, if there is one.

        If the put is lost, the others wait for a term, and this box does not. None: the term was over already.
        """
        own, held = self._own, self.held(now)
        self._until = -math.inf
        record = PlacementRecord(holder="", epoch=self.epoch, box=box, at=wall)
        return PutKey(self.key, msgspec.json.encode(record), own[0]) if own and held else None

    def _take(self, revision: int, now: float) -> PutKey:
        # The fence knows the record's epoch, and that of orders whose record was lost.
        epoch = self._fences.highest(self.model) + 1
        value = msgspec.json.encode(PlacementRecord(holder=self._store.me, epoch=epoch, at=now))
        self._last = _Put(epoch, now, value, self._store.founded)
        return PutKey(self.key, value, revision)

    def _on_founded(self, value: bytes | None, now: float) -> Step | None:
        stored, self._stored = self._stored, CREATE
        if (founding := self._store.on_founded(value, now)) is not None:
            return founding
        if stored == CREATE or self._last is None:
            return ReadKey(self.key)
        # An order of this epoch, or of a later one, may have come meanwhile: from a holder whose record was lost.
        put = self._last
        is_new = value == put.founded and put.epoch > self.epoch
        if is_new and self._fences.admits(self.model, put.epoch, self._store.me):
            self.epoch, self._until = put.epoch, put.sent + TERM - MARGIN
            self._own = stored, put.value
        return None
