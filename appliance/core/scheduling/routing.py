"""The meaning of a model's name in a request: local models, peers', names pinned by a profile, and selectors.

The rules are llama-swap's (0bdb3720), and names are exact. Two things are added: a bare name that several peers have
means all of them, and the strategy ``meanwhile``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Final, Literal
from urllib.parse import quote, unquote

from msgspec import Struct

from appliance.core.config.types import Config, Selector
from appliance.core.models.names import ModelNames, Named

# ---- what a name means -----------------------------------------------------------------------------------------------


class Local(Struct, frozen=True):
    """A model of this program. ``requested`` is the name the client used, which goes upstream."""

    model_id: str
    requested: str


class Remote(Struct, frozen=True):
    """A model of one or more peers, in the order of the file: pairs of peer id and the model's name there."""

    peers: tuple[tuple[str, str], ...]
    requested: str


class Here(Struct, frozen=True):
    """A name of this box alone, out of ``BOX/NAME`` with its own name in the pool."""

    name: str


class Virtual(Struct, frozen=True):
    """A selector; `choose` gives the target, which is then resolved in turn."""

    id: str
    selector: Selector


class Unpinned(Enum):
    """A type of its own, because None is an answer of `Router.pin`."""

    UNPINNED = "unpinned"


NO_BOXES: Mapping[str, Iterable[str]] = {}
UNPINNED: Final = Unpinned.UNPINNED
"""The profile does not mention the name, so its usual meaning applies."""


class Router:
    """The names of one configuration, including the models of its peers. Immutable.

    ``boxes`` are those of the pool, with the names that each of them lists; ``me`` is this one. In a pool ``BOX/NAME``
    means one thing everywhere, so it comes before every other name.
    """

    def __init__(self, config: Config, boxes: Mapping[str, Iterable[str]] = NO_BOXES, me: str = "") -> None:
        self._config = config
        self._of_boxes: dict[str, Here | Remote] = {
            full: Here(name) if box == me else Remote(((box, name),), full)
            for box, names in boxes.items()
            for name in names
            for full in (f"{box}/{name}",)
        }
        self._local = {alias: id for id, model in reversed(config.models.items()) for alias in model.aliases}
        self._local |= {id: id for id in config.models}
        told = [(peer_id, model) for peer_id, peer in config.peers.items() for model in peer.models]
        self._full: dict[str, tuple[str, str]] = {}
        for peer_id, model in told:
            self._full.setdefault(f"{peer_id}/{model}", (peer_id, model))
        self._bare: dict[str, list[tuple[str, str]]] = {}
        for peer_id in config.peers:
            for model in dict.fromkeys(config.peers[peer_id].models):
                self._bare.setdefault(model, []).append((peer_id, model))
        pins = [name for profile in config.profiles.values() for name in profile.pins]
        self._most_segments = _most_segments([*self._local, *self._full, *self._bare, *pins, *self._of_boxes])

    def resolve(self, name: str) -> Local | Remote | Virtual | Here | None:
        """Look up models of one box of the pool, selectors, then model ids, aliases, full names of peers' models
        (``peer/model``), and bare ones.

        Pins of a profile come before all of this: see `pin`.
        """
        if (of_box := self._of_boxes.get(name)) is not None:
            return of_box
        if (selector := self._config.selectors.get(name)) is not None:
            return Virtual(name, selector)
        if (model_id := self._local.get(name)) is not None:
            return Local(model_id, name)
        if (full := self._full.get(name)) is not None:
            return Remote((full,), name)
        if bare := self._bare.get(name):
            return Remote(tuple(bare), name)
        return None

    def pin(self, profile: str | None, name: str) -> str | Unpinned | None:
        """Return the name that ``name`` stands for while the profile is active; None if it must not be found.

        The answer is resolved, and never pinned again.
        """
        pins = self._pins(profile)
        return pins[name] or None if name in pins else UNPINNED

    def longest_prefix(self, rest: str, profile: str | None = None) -> tuple[str, str] | None:
        """Split the path behind ``/upstream/`` into a name to resolve and the path for the model's server.

        The longest run of segments that names a model wins; selectors do not count. ``rest`` is as in the request line:
        percent-encoded, and so is the remainder. That is "" when the path ends with the name, else it begins with a
        slash. The longest pin of the profile is replaced before, once.
        """
        segments = [(unquote(raw), raw) for raw in rest.split("/")]
        pins = self._pins(profile)
        if pinned := self._longest(segments, lambda name: name in pins):
            name, end = pinned
            if not (target := pins[name]):
                return None
            # The pin's target replaces its segments, so that a name may begin within the target and end in the rest of
            # the path. It is not pinned again: two pins that name each other would never end.
            segments = [*((part, quote(part, safe="")) for part in target.split("/")), *segments[end:]]
        found = self._longest(segments, lambda name: isinstance(self.resolve(name), Local | Remote | Here))
        if found is None:
            return None
        name, end = found
        return name, "".join(f"/{raw}" for _, raw in segments[end:])

    def near(self, name: str) -> tuple[str, ...]:
        """Return known names that look like an unknown one, best first."""
        return self._all_names.near(name)

    def as_written(self, name: str) -> str | None:
        """Return the name that this one is but for the case of letters; of a peer's model, the full one."""
        return self._all_names.find(name)

    @cached_property
    def _all_names(self) -> ModelNames:
        known = [Named(id, tuple(model.aliases)) for id, model in self._config.models.items()]
        known += [Named(id) for id in self._config.selectors]
        known += [Named(full, (model,)) for full, (_, model) in self._full.items()]
        return ModelNames(known)

    def _pins(self, profile: str | None) -> Mapping[str, str | None]:
        known = self._config.profiles.get(profile) if profile is not None else None
        return known.pins if known is not None else {}

    def _longest(self, segments: Sequence[tuple[str, str]], known: Callable[[str], bool]) -> tuple[str, int] | None:
        """Return the longest known name at the beginning and the number of its segments; empty segments do not
        count.
        """
        found: tuple[str, int] | None = None
        parts: list[str] = []
        for end, (part, _) in enumerate(segments, 1):
            if not part:
                continue
            parts.append(part)
            # No name has more segments. Without this a path of ten thousand slashes would cost ten thousand joins and
            # look-ups.
            if len(parts) > self._most_segments:
                break
            if known("/".join(parts)):
                found = "/".join(parts), end
        return found


def _most_segments(names: Iterable[str]) -> int:
    return max((name.count("/") + 1 for name in names), default=0)


# ---- selectors -------------------------------------------------------------------------------------------------------


class TargetState(Struct, frozen=True):
    """A selector's questions about a target."""

    state: Literal["stopped", "starting", "ready", "stopping"]
    """The state of a local model's process; unused for a peer's model."""
    reserved: int = 0
    """Number of requests that this selector gave to the target and that are not over."""
    remote: bool = False
    at_once: bool = False
    """It takes one more request without a wait, as far as is known."""


class RouteChoice(Struct, frozen=True):
    target: str
    """One of the selector's targets, as the file spells it."""
    turn: int
    """The counter for the selector's next choice."""
    stands_in_for: str | None = None
    """Another of the selector's targets, which is to be loaded."""


def choose(
    selector: Selector, states: Callable[[str], TargetState], turn: int = 0, *, stand_ins: bool = True
) -> RouteChoice | None:
    """Return the target of one request; None when none can take it now (a 503).

    ``turn`` counts, from 0, choices among equals. pin: the first. warm: the first that is ready, else the first that
    starts, else the first. spillover: see there. meanwhile: the first; while it is not ready, the first of the others
    that takes the request at once, if the request permits ``stand_ins``.
    """
    if not selector.targets:
        return None
    match selector.strategy:
        case "pin":
            return RouteChoice(selector.targets[0], turn)
        case "warm":
            # Reversed, because a later entry replaces an earlier one: of several targets in one state the first in the
            # file wins.
            by_state = {states(target).state: target for target in reversed(selector.targets)}
            return RouteChoice(by_state.get("ready") or by_state.get("starting") or selector.targets[0], turn)
        case "spillover":
            return _spill(selector, states, turn)
        case "meanwhile":
            wanted, *others = selector.targets
            if not stand_ins or states(wanted).state == "ready":
                return RouteChoice(wanted, turn)
            # A stand-in that is not ready is never loaded: that would delay both. Neither is one waited for, which
            # would put it back into the queue behind the model whose place it takes.
            found = next((target for target in others if states(target).at_once), None)
            return RouteChoice(wanted, turn) if found is None else RouteChoice(found, turn, stands_in_for=wanted)


def _spill(selector: Selector, states: Callable[[str], TargetState], turn: int) -> RouteChoice | None:
    """Return one of the least used active targets while it has less than ``spillover`` requests; then start one more.

    A target is active if it runs, starts, or has requests of this selector. A local target that stops is skipped.
    """
    asked = [(target, states(target)) for target in selector.targets]
    usable = [(target, state) for target, state in asked if state.remote or state.state != "stopping"]
    active = [(target, state.reserved) for target, state in usable if _is_active(state)]
    cold = [target for target, state in usable if not _is_active(state)]
    least = min((reserved for _, reserved in active), default=0)
    if active and (least < selector.settings.spillover or not cold):
        # A cold target is started only when every active one is full. An even spread over all targets would load them
        # all, and keep them loaded, for a few requests that one could serve.
        equals = [target for target, reserved in active if reserved == least]
        return RouteChoice(equals[turn % len(equals)], turn + 1)
    return RouteChoice(cold[0], turn) if cold else None


def _is_active(state: TargetState) -> bool:
    return state.reserved > 0 or (not state.remote and state.state in ("starting", "ready"))
