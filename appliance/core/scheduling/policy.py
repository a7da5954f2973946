"""The two conditions that running models must satisfy: there is room for all of them, and the configuration's rules.

Room is their number and their memory; `make_room` decides which models go when it is short. A policy knows neither: it
gets one target and every model that has a process, whatever its state. It knows nothing of time and use either:
`core.scheduling.schedule` knows whether an evicted model is still at work, and which requests wait for which model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct, structs

from appliance.core.config.matrix import DEFAULT_COST, Eviction, Matrix
from appliance.core.config.types import DEFAULT_GROUP, Config, Group

NO_MEMORY: Mapping[str, int] = {}


class FleetLimits(Struct, frozen=True, kw_only=True):
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


def fits(limits: FleetLimits, memory: Iterable[Mapping[str, int]]) -> bool:
    """True if models with these needs may be loaded together."""
    taken = list(memory)
    if limits.capacity and len(taken) > limits.capacity:
        return False
    return not shortage(limits, taken)


def shortage(limits: FleetLimits, memory: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    """Return the bytes that are missing, by device, for models with these needs to be loaded together."""
    missing: dict[str, int] = {}
    for device, most in limits.memory.items():
        if (taken := sum(one.get(device, 0) for one in memory)) > most:
            missing[device] = taken - most
    return missing


def make_room(limits: FleetLimits, needed: Mapping[str, int], staying: Sequence[Occupant]) -> list[str] | None:
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
    # Taking models in order may take too many: a small one that went first is of no use once a large one has gone
    # behind it. So each is tried again with everything else that goes, the dearest first. The result has no model to
    # spare, but it need not be the smallest set: to find that is a knapsack problem, and every event would pay for it.
    for occupant in reversed(going[:]):
        if fits(limits, [needed, occupant.memory, *(o.memory for o in stay)]):
            going.remove(occupant)
            stay.append(occupant)
    return [occupant.model for occupant in going]


def make_fit(limits: FleetLimits, loaded: Iterable[Occupant]) -> list[str]:
    """Return who goes so that what is loaded fits the memory again: the fewest, or all that take something where it is
    short if nothing makes it fit. What is held or fixed stays.
    """
    staying = [structs.replace(occupant, fixed=occupant.fixed or occupant.held) for occupant in loaded]
    # The number of processes is left out: only the system can take memory away, and a lower number stops nothing that
    # runs (rule 10 of the schedule).
    memory = structs.replace(limits, capacity=0)
    going = make_room(memory, NO_MEMORY, staying)
    if going is not None:
        return going
    # Not even all idle models together are enough, because leased ones hold too much. The idle ones go anyway, where
    # memory is short: it is needed now, and the leased ones follow as they become idle.
    short = shortage(memory, [o.memory for o in staying])
    return [o.model for o in staying if not o.fixed and any(o.memory.get(d, 0) for d in short)]


def too_large(limits: FleetLimits, needed: Mapping[str, int]) -> str:
    """Say which limits one model exceeds, and what helps."""
    over = [d for d, most in limits.memory.items() if needed.get(d, 0) > most]
    said = " and ".join(f"{needed[d] >> 20} MiB of {d} (limit {limits.memory[d] >> 20} MiB)" for d in over)
    return f"it takes {said}; raise the limit under 'memory', or give the model less"


class Policy(Protocol):
    """Answers are pure: the same question always has the same answer."""

    @property
    def kind(self) -> Literal["group", "matrix"]:
        """The kind of set that an `Eviction` names."""
        ...

    def plan(self, target: str, running: Sequence[str]) -> Eviction:
        """Return the ``running`` models that ``target`` displaces, in their order; never itself."""
        ...

    def cost_of(self, model: str) -> int:
        """Return the cost of evicting the model, at least 1; higher is worse."""
        ...


class FreePolicy:
    """Every model may run beside every other one."""

    kind: Literal["group"] = "group"

    def plan(self, target: str, running: Sequence[str]) -> Eviction:
        return Eviction((), None, _together(target, running, ()))

    def cost_of(self, model: str) -> int:
        return DEFAULT_COST


class GroupPolicy:
    """Groups of llama-swap (0bdb3720). A model without a group is in ``(default)``, and so is one that no file names.

    A target displaces the others of its group if that group swaps, and the members of other groups if its group is
    exclusive and theirs is not persistent. It displaces nothing else: a model of a group that is not exclusive
    displaces no other group, even an exclusive one that runs. That is one-sided, and files rely on it. It also applies
    to a target that is already running.
    """

    kind: Literal["group"] = "group"

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self._groups = {DEFAULT_GROUP: Group(), **groups}
        self._home = {member: name for name, group in groups.items() for member in group.members}

    def plan(self, target: str, running: Sequence[str]) -> Eviction:
        home = self._home_of(target)
        group = self._groups[home]
        evict = tuple(
            model
            for model in running
            if model != target
            and (group.swap if (other := self._home_of(model)) == home else self._displaces(group, other))
        )
        return Eviction(evict, home, _together(target, running, evict), len(evict) * DEFAULT_COST)

    def cost_of(self, model: str) -> int:
        return DEFAULT_COST

    def _home_of(self, model: str) -> str:
        return self._home.get(model, DEFAULT_GROUP)

    def _displaces(self, group: Group, other: str) -> bool:
        return group.exclusive and not self._groups[other].persistent


class MatrixPolicy:
    """The sets of a matrix."""

    kind: Literal["matrix"] = "matrix"

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix

    def plan(self, target: str, running: Sequence[str]) -> Eviction:
        return self._matrix.solve(target, running)

    def cost_of(self, model: str) -> int:
        return self._matrix.cost_of(model)


def policy_of(config: Config) -> Policy:
    """Return the policy of a normalised configuration. Raises `MatrixError` if it was not checked."""
    router = config.routing.router
    if router.use == "matrix" and router.settings.matrix is not None:
        return MatrixPolicy(Matrix(router.settings.matrix, config.models))
    return GroupPolicy(router.settings.groups)


def _together(target: str, running: Sequence[str], evict: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({target, *running}.difference(evict)))
