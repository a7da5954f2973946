"""Presence: which boxes are there, from the beats that they send each second, measured with the receiver's own clock.

Silence has two causes that look alike: the other box is gone, or this one receives nothing. Taken for the first, the
second one makes a healthy box dead, and its requests go elsewhere. So silence only counts while this box can be sure of
its own ears:

- It receives its own beats, too, since they come back from the server of the bus. While they do not, it is cut off: by
  a broken connection, or by a server that stands still and has not been noticed yet. If the last one is old, the clock
  has jumped: this box was asleep, frozen or starved.
- It receives beats of at least half of the pool, itself included. A smaller part is taken for the one that was cut off.

After each gap a whole `GONE` has to pass before anyone is called gone. A silent box that is not called gone is
unknown: then the links to the boxes, which are HTTP, say alone who is up.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Annotated

from msgspec import Meta, Struct

from appliance.features.pool.core.roster import BoxName, Count

BEAT = 1.0  # seconds between two beats of a box
GONE = 4.0  # seconds of silence after which a box is gone: three beats may be lost or late
GAP = 2.0  # seconds without an own beat after which its ears are not trusted: it notices that before `GONE` of others
REPLACED = 8  # Incarnations of a box that are remembered as over. A beat is not late by that many starts of a program.

Short = Annotated[str, Meta(max_length=64)]


class Beat(Struct, frozen=True, kw_only=True):
    """A box's sign of life, as JSON on the bus. Fields that it does not know are for later versions."""

    box: BoxName
    incarnation: Short  # a random word, made at each start of the program
    sequence: Count  # its beats are numbered from 1
    version: Short = ""
    generation: Count = 0  # the roster that it has; where it is another one, one of the two boxes asks for the newer
    drained: bool = False
    speed: float = 0.0  # nominal requests a second of its best engine, as that was measured; 0: it was not
    listen: Annotated[str, Meta(max_length=300)] = ""
    """URL of its API for clients, with the address that it listens on; empty: an older version does not tell."""
    keyless: bool | None = None  # Its API asks nobody for a key. None: an older version does not tell.
    stopping: bool = False  # True in the last beat of a program that ends in good order: it is gone at once


class LastBeat(Struct, frozen=True):
    """The newest beat of a box, and the own clock when it came."""

    beat: Beat
    at: float


class Presence:
    """One box's view of the others. ``now`` is its own clock, which counts sleep, at the moment of the call."""

    def __init__(self, me: str) -> None:
        self._me = me
        self.heard: dict[str, LastBeat] = {}  # newest beat of each box that ever came, this one included
        self._replaced: dict[str, list[str]] = {}
        self._listens_since = math.inf  # Since then this box has been receiving. Infinite: it is cut off.

    def on_beat(self, beat: Beat, now: float) -> bool:
        """Take a beat; False: it is the second copy of one, or older than one that was taken."""
        last = self.heard.get(beat.box)
        over = self._replaced.setdefault(beat.box, [])
        if last is not None and now - last.at > GONE:
            # Nothing is late by so much. Another box may have sent beats under this name; the true ones go on.
            last = None
            over.clear()
        if last is not None and last.beat.incarnation != beat.incarnation:
            if beat.incarnation in over:
                return False
            over[:] = [*over, last.beat.incarnation][-REPLACED:]
        elif last is not None and beat.sequence <= last.beat.sequence:
            return False
        self._look(now)
        self.heard[beat.box] = LastBeat(beat, now)
        if beat.box == self._me:
            self._listens_since = min(self._listens_since, now)
        return True

    def cut_off(self, now: float) -> bool:
        """Say whether this box receives nothing of the bus."""
        self._look(now)
        return self._listens_since == math.inf

    def boxes(self, names: Collection[str], now: float) -> dict[str, bool | None]:
        """Return for each box of the roster whether it is up; None: unknown. This one is up. Others are forgotten."""
        for name in self.heard.keys() - set(names):
            del self.heard[name], self._replaced[name]
        self._look(now)
        stopped = {name for name, last in self.heard.items() if last.beat.stopping}  # then its silence is its own
        up = {name for name, last in self.heard.items() if now - last.at <= GONE} - stopped | {self._me}
        sure = now - self._listens_since > GONE and 2 * len(up.intersection(names)) >= len(names)
        return {name: True if name in up else False if sure or name in stopped else None for name in names}

    def _look(self, now: float) -> None:
        own = self.heard.get(self._me)
        if own is None or now - own.at > GAP:
            self._listens_since = math.inf
