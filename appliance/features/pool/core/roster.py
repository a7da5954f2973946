"""The roster: the list of boxes on which a pool agrees, and the plan of the bus that follows from it.

Every box has the whole roster and makes the plan of it alone. So two boxes with the same roster agree on the servers of
the bus, and nobody has to be asked. The order of joining decides: a box that joins is last, so it never pushes an older
voter out, and a voter that leaves is followed by the oldest box that is not a voter yet.

The name of a box is its name for the servers of the bus, too, in its certificate, and in the subject of its orders. A
second box with that name would be taken for the first one. So a name that has left stays in ``gone`` for ever, and
`Roster.with_box` refuses it. A box that comes back after a long time and does not find its name in ``boxes`` knows from
this that it has been removed: nobody else can have got the name meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from appliance.errors import BadRequest
from appliance.features.pool.core.bus_words import BusPlace
from appliance.features.pool.core.keys import server_name

VOTERS = 3  # Servers of a bus with a quorum. Two need both; a fourth would only raise the quorum to three.
DEFAULT_PORT = 4280  # port of a door; the next two are the bus's, for its clients and for the routes of its servers
CLIENTS, ROUTES = 1, 2

BoxName = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")]
"""A label of a DNS name: it is part of one in certificates, and a word of a subject on the bus."""
HostText = Annotated[str, Meta(pattern=r"^[0-9A-Za-z.:%_-]{1,253}\Z")]  # an IP address, or a name that resolves to one
DoorPort = Annotated[int, Meta(ge=1, le=65535 - ROUTES)]
PoolId = Annotated[str, Meta(pattern=r"^[0-9A-Za-z]{1,64}\Z")]
MOST = 1 << 53
Count = Annotated[int, Meta(ge=0, le=MOST)]  # grows by one at each change; JSON's numbers are exact up to there

MOST_ADDRESSES, MOST_BOXES, MOST_GONE = 64, 64, 10_000
LARGEST = 1_000_000  # Bytes of a roster as JSON. A message of the bus, a body at a door and an answer may have 1 MiB.
EARLY = 1_000_000  # so many changes may have been made where a clock stands at 1970


class Box(Struct, frozen=True, kw_only=True):
    """One program in the pool."""

    name: BoxName
    addresses: Annotated[tuple[HostText, ...], Meta(max_length=MOST_ADDRESSES)] = ()  # where it is dialled, best first
    port: DoorPort = DEFAULT_PORT
    dials_out: bool = False  # True if the others cannot dial it. It never serves the bus.
    drained: bool = False  # True if it gets no new work. It still serves the bus and answers by its own API.

    @property
    def can_be_dialled(self) -> bool:
        return bool(self.addresses) and not self.dials_out


class Roster(Struct, frozen=True, kw_only=True):
    """The boxes of one pool, in the order of joining. Raises ValueError for a name twice, and too many bytes."""

    pool: PoolId  # the id of the pool, which stays the same as long as the pool exists
    generation: Annotated[int, Meta(ge=1, le=MOST)] = 1  # Number of the change. The higher one is in force.
    boxes: Annotated[tuple[Box, ...], Meta(max_length=MOST_BOXES)]
    gone: Annotated[tuple[BoxName, ...], Meta(max_length=MOST_GONE)] = ()  # names that have left; the oldest goes
    bus: Annotated[str, Meta(max_length=2000)] = ""
    """URL of a NATS that is there already; empty: the boxes serve the bus. It stays the same, as ``pool`` does."""

    def __post_init__(self) -> None:
        names = [*(box.name for box in self.boxes), *self.gone]
        if len(set(names)) < len(names):
            raise ValueError("a roster names a box twice")
        if len(msgspec.json.encode(self)) > LARGEST:
            raise ValueError(f"a roster has at most {LARGEST} bytes")

    def box(self, name: str) -> Box | None:
        return next((box for box in self.boxes if box.name == name), None)

    def with_box(self, box: Box) -> Roster:
        """Return the roster after this box has joined. Raises BadRequest with a free name if its name is taken."""
        if len(self.boxes) >= MOST_BOXES:
            raise BadRequest(f"a pool has at most {MOST_BOXES} boxes; 'llama-appliance pool leave BOX' takes one out")
        free = self.free_name(box.name)
        if free != box.name:
            owner = "is a box of this pool" if self.box(box.name) else "was a box of this pool, and names are used once"
            raise BadRequest(f"'{box.name}' {owner}; choose another name, for example '{free}'", param="name")
        return self._changed((*self.boxes, box))

    def without(self, name: str) -> Roster:
        """Return the roster after this box has left. Raises BadRequest for an unknown name."""
        self._known(name)
        return self._changed(tuple(box for box in self.boxes if box.name != name), (*self.gone, name)[-MOST_GONE:])

    def drained(self, name: str, drained: bool) -> Roster:
        """Return the roster in which this box gets no new work, or gets it again; itself if that is so already."""
        return self._with_changed(replace(self._known(name), drained=drained))

    def moved(self, name: str, addresses: Sequence[str], port: int) -> Roster:
        """Return the roster in which this box has these addresses and this port; itself if that is so already."""
        return self._with_changed(replace(self._known(name), addresses=tuple(addresses), port=port))

    def free_name(self, wish: str) -> str:
        """Return the name, with a number after it if a box has it or had it."""
        taken = {*(box.name for box in self.boxes), *self.gone}
        number, name = 1, wish
        while name in taken:
            number += 1
            end = f"-{number}"
            name = wish[: 63 - len(end)].rstrip("-") + end
        return name

    def _known(self, name: str) -> Box:
        if (box := self.box(name)) is None:
            names = ", ".join(f"'{known.name}'" for known in self.boxes)
            raise BadRequest(f"there is no box '{name}' in this pool; it has {names}", param="box")
        return box

    def _with_changed(self, box: Box) -> Roster:
        boxes = tuple(box if old.name == box.name else old for old in self.boxes)
        return self if boxes == self.boxes else self._changed(boxes)

    def _changed(self, boxes: tuple[Box, ...], gone: tuple[str, ...] | None = None) -> Roster:
        try:
            return replace(self, boxes=boxes, gone=self.gone if gone is None else gone, generation=self.generation + 1)
        except ValueError as error:
            raise BadRequest(f"the pool cannot be changed: {error}") from None


def box_name(host: str) -> str:
    """Return the name for a box on a machine with this host name."""
    return re.sub(r"[^a-z0-9]+", "-", host.partition(".")[0].lower())[:63].strip("-") or "box"


def newer(one: Roster, other: Roster) -> Roster:
    """Return the one that is in force, in whichever order they are given.

    Two boxes that cannot reach each other may both make a change of the same generation. Then the order of the bytes
    decides, so that all boxes keep the same one; the box whose change was lost finds that out and makes it again.
    Raises ValueError for rosters of two pools.
    """
    if one.pool != other.pool:
        raise ValueError(f"the rosters of two pools: '{one.pool}' and '{other.pool}'")
    return max(one, other, key=lambda roster: (roster.generation, msgspec.json.encode(roster)))


def most_changes(wall: float) -> float:
    """Return how large a number of changes may be at this Unix time: nothing changes once a second since 1970.

    A bound that follows the own number would part the boxes: a box that somebody has led far ahead in many small steps
    could not be followed any more by one that was away. This one lets all of them follow, and a next change is always
    possible a second later.
    """
    return max(wall, EARLY)


def refusal(own: Roster, heard: Roster, wall: float) -> str:
    """Return why a roster from another box cannot be of this pool; empty: it may be. ``wall``: the Unix time."""
    if heard.pool != own.pool:
        return "the roster is another pool's"
    if heard.bus != own.bus:
        return "the roster names another bus than this pool was made with"
    if heard.generation > most_changes(wall):
        return f"the roster's generation {heard.generation} cannot be: is the clock of this box right?"
    return ""


class BusPlan(Struct, frozen=True, kw_only=True):
    """One box's part in the bus."""

    kind: Literal["none", "standalone", "voters", "external"] = "none"
    voters: tuple[str, ...] = ()  # Boxes that run a server. All boxes of a pool agree on them and on their order.
    serves: bool = False  # True if this box runs one of them, at the ports ``CLIENTS`` and ``ROUTES`` after its door's
    servers: tuple[BusPlace, ...] = ()  # for this box as a client, in the order to try: the own one first, on loopback
    routes: tuple[BusPlace, ...] = ()  # places of the other voters, for the own server
    url: str = ""  # the external bus


def bus_plan(roster: Roster, me: str) -> BusPlan:
    """Return this box's part: the oldest three boxes that can be dialled are voters; of fewer boxes one has a server.

    A frozen server stops its clients until their pings notice. So a box with a server uses that one: it fails together
    with the box, and takes no other one along. The others begin with different voters.
    """
    names = [box.name for box in roster.boxes]
    if len(names) < 2 or me not in names:
        return BusPlan()
    if roster.bus:
        return BusPlan(kind="external", url=roster.bus)
    able = [box for box in roster.boxes if box.can_be_dialled]
    voting = able[: VOTERS if min(len(names), len(able)) >= VOTERS else 1]
    if not voting:
        return BusPlan()
    place = names.index(me) % len(voting)
    others = [box for box in voting[place:] + voting[:place] if box.name != me]
    own = [
        BusPlace(host="127.0.0.1", port=box.port + CLIENTS, name=server_name(me)) for box in voting if box.name == me
    ]
    return BusPlan(
        kind="voters" if len(voting) > 1 else "standalone",
        voters=tuple(box.name for box in voting),
        serves=bool(own),
        servers=(*own, *_places(others, CLIENTS)),
        routes=_places(others, ROUTES) if own else (),
    )


def outvotes(roster: Roster, wanted: Roster) -> bool:
    """Return whether a change takes out half of the boxes that serve the bus, or more: they may be lost or stolen."""
    voters = bus_plan(roster, roster.boxes[0].name).voters if roster.boxes else ()
    return bool(voters) and 2 * sum(wanted.box(name) is None for name in voters) >= len(voters)


def _places(boxes: Sequence[Box], offset: int) -> tuple[BusPlace, ...]:
    """Return the best place of each box, and then the next best ones."""
    depth = max((len(box.addresses) for box in boxes), default=0)
    return tuple(
        BusPlace(host=box.addresses[rank], port=box.port + offset, name=server_name(box.name))
        for rank in range(depth)
        for box in boxes
        if rank < len(box.addresses)
    )
