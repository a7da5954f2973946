"""Room for one more model: the number of models, their memory, and which ones go when it is short."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

NO_MEMORY: Mapping[str, int] = {}


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of all loaded models together. ``capacity`` 0 means any number of processes."""

    capacity: int = 0
    memory: Mapping[str, int] = NO_MEMORY
    """Bytes by device; a device that is not named has no limit."""
    queue: int = 1000
    """Largest number of queued tickets."""


class Occupant(Struct, frozen=True, kw_only=True):
    """A process that has a place, or a queued model that is promised one."""

    model: str
    memory: Mapping[str, int] = NO_MEMORY
    fixed: bool = False
    """It never makes room: pinned, or promised a place and not there yet."""
    held: bool = False
    """It may go, but not yet: in use, starting, or loaded too recently."""
    cost: int = 1
    last_used: int = 0

    @property
    def order(self) -> tuple[bool, int, int]:
        """The order in which models go: the free before the held, the cheap before the expensive, the long unused
        before others.
        """
        return self.held, self.cost, self.last_used


def fits(limits: Limits, memory: Iterable[Mapping[str, int]]) -> bool:
    """True if models with these needs may be loaded together."""
    taken = list(memory)
    if limits.capacity and len(taken) > limits.capacity:
        return False
    return all(sum(one.get(device, 0) for one in taken) <= most for device, most in limits.memory.items())


def make_room(limits: Limits, needed: Mapping[str, int], staying: Sequence[Occupant]) -> list[str] | None:
    """Return which others must go so that one more model fits beside ``staying``; None if not even all of them suffice.

    It takes models in `order` until the model fits, and then spares those that were not needed after all.
    """
    stay = list(staying)
    going: list[Occupant] = []
    for occupant in sorted((o for o in staying if not o.fixed), key=lambda o: o.order):
        if fits(limits, [needed, *(o.memory for o in stay)]):
            break
        stay.remove(occupant)
        going.append(occupant)
    if not fits(limits, [needed, *(o.memory for o in stay)]):
        return None
    for occupant in reversed(going[:]):
        if fits(limits, [needed, occupant.memory, *(o.memory for o in stay)]):
            going.remove(occupant)
            stay.append(occupant)
    return [occupant.model for occupant in going]
