"""The target of a request: the model or the peers that its name means at this moment.

The profile that is active now changes what names mean; it is kept in memory alone. Files that came since the last look
are included.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import unquote

import trio
from msgspec import Struct, structs

from appliance.catalog.catalog import NEWS, Catalog, Snapshot, find_model
from appliance.catalog.supply import Supply
from appliance.core.bodies.filters import Edits, compile_edits
from appliance.core.config.types import Config
from appliance.core.models.holders import groups_of, told_apart
from appliance.core.models.model import Model
from appliance.core.models.names import MAX_NAME, meanings
from appliance.core.models.swap_listing import swap_state
from appliance.core.scheduling.routing import UNPINNED, Here, Local, Remote, Router, TargetState, Virtual, choose
from appliance.errors import Busy, ModelNotFound, NotPlaced
from appliance.fleet.owner import Fleet
from appliance.traffic.other_servers import OtherServers
from appliance.trio_parts import Changed

log = logging.getLogger(__name__)
NO_EDITS = Edits(by_name={})
MAX_SEGMENTS = 8
"""The most parts of a path that may name a model on disk: names have one slash, or as many as folders."""
MAX_KNOWN = 4096
"""Names whose meaning is kept; of one model there are as many as ways to write it in capitals."""


class ActiveProfile:
    """At most one profile of the configuration, none at the start."""

    def __init__(self) -> None:
        self.name: str | None = None
        """Changed by `choose` alone."""
        self._changed = Changed()

    def choose(self, name: str | None) -> None:
        """Make this profile the active one, or none. The caller has checked that the configuration has it."""
        if name == self.name:
            return
        self.name = name
        self._changed.wake()

    async def wait_changed(self) -> None:
        await self._changed.wait()


async def refresh(catalog: Catalog) -> None:
    """See new files in the models folders, in a thread; the way there and back costs more than a short list."""
    if not catalog.is_fresh(NEWS):
        await trio.to_thread.run_sync(catalog.refresh, NEWS, abandon_on_cancel=True)


class Target(Struct, frozen=True, kw_only=True):
    """Either ``model``, or ``peers`` as pairs of peer id and the model's name there."""

    model: Model | None = None
    peers: tuple[tuple[str, str], ...] = ()
    boxes: tuple[tuple[str, str], ...] = ()
    """Other boxes of the pool that have just this model, whether this one has it or not."""
    identity: str = ""
    """Identity of the model (`core.models.identity`), where other boxes have it too; empty: not known."""
    requested: str
    """The name that filters go by, and that is sent upstream: what the client, a pin or a selector named."""
    renamed: bool = False
    """It is not the name in the request."""
    selector: str | None = None
    stands_in_for: Model | None = None
    """The model that the selector wants, and that is not ready."""
    instead_of: str = ""
    """The name in the request, which means nothing here: the target is the default for those."""
    asks: bool = False
    """The model is not here, and its download needs the request's consent."""

    @property
    def label(self) -> str:
        """The target's name in logs."""
        return self.model.id if self.model is not None else "/".join(self.peers[0])


Reserved = tuple[str, str]
"""One request that a selector gave to a target: the ids of both."""


class Targets:
    """Resolves names against the configuration, the disk, the peers and the active profile."""

    def __init__(
        self, catalog: Catalog, fleet: Fleet, peers: OtherServers, supply: Supply, profile: ActiveProfile
    ) -> None:
        self._catalog = catalog
        self._fleet = fleet
        self._peers, self._supply = peers, supply
        self._profile = profile
        self._reserved: Counter[tuple[str, str]] = Counter()
        self._turns: Counter[str] = Counter()
        self._router: tuple[object, Router] = (None, Router(Config()))
        self._edits: tuple[object, dict[str, Edits]] = (None, {})
        self._known: dict[str, Target] = {}
        self._known_on: tuple[object, ...] = ()
        self.aliases: Mapping[str, str] = {}
        """Names that clients have given to models, in lower case, with those of the models; never changed in place."""
        self.fallback: Callable[[str, str], str] = lambda name, route: ""
        """Returns the model for a name that was not found, by the route of its request; empty: there is none."""

    @property
    def config(self) -> Config | None:
        """The configuration in force, None where there is none."""
        return self._catalog.snapshot.config

    @asynccontextmanager
    async def chosen(self, name: str, *, stand_ins: bool = False, route: str = "") -> AsyncGenerator[Target]:
        """The target of a request for ``name``; a selector counts it for as long as the block lasts.

        With ``stand_ins`` it may be one that stands in for a model that is not ready: see `choose`. With
        the ``route`` of its request, `fallback` may give another for a name that means nothing. Raises ModelNotFound,
        InvalidModelFile for a local file that cannot be used, and Busy when none of a selector's targets can take it.
        """
        target, reserved = self.known(name), None
        if target is None:
            try:
                target, reserved = await self.find(name, stand_ins=stand_ins)
            except ModelNotFound:
                if not route or not (other := self.fallback(name, route)):
                    raise
                target, reserved = await self.find(other, stand_ins=stand_ins)
                target = structs.replace(target, instead_of=name[:MAX_NAME], renamed=True)
        try:
            yield target
        finally:
            if reserved is not None:
                self.give_back(reserved)

    def stands_for(self, name: str) -> str | None:
        """Return the name that this one stands for, where nothing here is called so; None if there is none."""
        for one in meanings(name):
            if (base := self.aliases.get(one.casefold())) is not None:
                return base
            if one != name and (self._catalog.snapshot.find(one) is not None or self.router().resolve(one) is not None):
                return one
            if (written := self.router().as_written(one)) is not None:
                return written
        return None

    def known(self, name: str) -> Target | None:
        """Return the name's last target, if nothing that it depends on has changed since.

        A selector's answers are never known: each depends on the requests under way.
        """
        now = self._basis()
        if self._known_on != now:
            self._known_on = now
            self._known.clear()
        return self._known.get(name)

    def _basis(self) -> tuple[object, ...]:
        """Every input of a name's meaning: models and configuration, peers and their models, the profile,
        and the names that clients have given.
        """
        peers = self._peers
        return self._catalog.snapshot, peers.names(), peers.revision, peers.me, self._profile.name, self.aliases

    async def find(self, name: str, *, stand_ins: bool) -> tuple[Target, Reserved | None]:
        """The target that `chosen` gives, and what it has reserved there: `give_back` that. Raises as `chosen`."""
        basis = self._basis()
        wanted = self._pinned(name)
        meant = self.router().resolve(wanted)
        if meant is None and self._catalog.snapshot.find(wanted) is None and (other := self.stands_for(wanted)):
            wanted, meant = other, self.router().resolve(other)
        if isinstance(meant, Virtual):
            return await self._select(wanted, meant, stand_ins=stand_ins)
        if isinstance(meant, Here):
            target, reserved = await self.find(meant.name, stand_ins=stand_ins)
            if reserved is not None:
                return _alone(target), reserved  # selectors have models of this box alone, or of configured peers
            target = _alone(target)
        else:
            target = await self._target(wanted, meant, renamed=wanted != name)
        log.debug("the name '%s' means %s", name, target.label)
        if basis == self._known_on == self._basis():  # it was not changed while the disk was looked at
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[name] = target
        return target, None

    async def _select(self, wanted: str, virtual: Virtual, *, stand_ins: bool) -> tuple[Target, Reserved]:
        selector = virtual.id
        choice = choose(
            virtual.selector,
            lambda target: self._state(selector, target),
            self._turns[selector],
            stand_ins=stand_ins,
        )
        if choice is None:
            raise Busy(f"none of the targets of '{wanted}' can take a request now; all of them are stopping")
        self._turns[selector] = choice.turn
        reserved = selector, choice.target
        self._reserved[reserved] += 1
        try:
            meant = self.router().resolve(choice.target)
            target = await self._target(choice.target, meant, renamed=True, selector=selector)
            if (name := choice.stands_in_for) is not None:
                wanted_model = (await self._target(name, self.router().resolve(name))).model
                target = structs.replace(target, stands_in_for=wanted_model)
            return target, reserved
        except BaseException:
            self.give_back(reserved)
            raise

    def give_back(self, reserved: Reserved) -> None:
        """A request that a selector gave to a target is over."""
        self._reserved[reserved] -= 1

    async def worker(self, name: str) -> str:
        """Return the owner of the slots that a run on ``name`` takes: a model's id, or the selector. Raises as
        `chosen`.
        """
        async with self.chosen(name) as target:
            return name if target.selector is not None else target.label

    async def upstream(self, rest: str) -> tuple[Target, str]:
        """The target of ``/upstream/<rest>`` and the path for its server, which may be empty. Raises ModelNotFound."""
        found = self._split(rest)
        if found is None:
            raise self._not_found(unquote(rest.partition("/")[0]))
        name, path = found
        return await self._target(name, self.router().resolve(name)), path

    def rest_of(self, rest: str) -> str:
        """Return the decoded path that a raw path below ``/upstream/`` asks of the model's server."""
        found = self._split(rest)
        return unquote(found[1] if found is not None else rest[len(rest.partition("/")[0]) :])

    def _split(self, rest: str) -> tuple[str, str] | None:
        """The name at the beginning, of the configuration or else of what was found on disk, and the raw rest."""
        found = self.router().longest_prefix(rest, self._profile.name)
        if found is not None:
            return found
        segments = rest.split("/", MAX_SEGMENTS)[:MAX_SEGMENTS]
        for end in range(len(segments), 0, -1):
            raw = "/".join(segments[:end])
            name = unquote(raw)
            if self.router().pin(self._profile.name, name) is None:
                return None
            if len(name) <= MAX_NAME and self._catalog.snapshot.find(name) is not None:
                return name, rest[len(raw) :]
        return None

    def router(self) -> Router:
        """Names as they are now, models found at peers included."""
        snapshot, me = self._catalog.snapshot, self._peers.me
        key = (snapshot, self._peers.names(), me, self._profile.name)
        if self._router[0] != key:
            config = self._peers.complete(snapshot.config or Config())
            own = {me: tuple(_listed(snapshot, self._profile.name))} if me else {}
            self._router = (key, Router(config, {**self._peers.boxes(), **own}, me))
        return self._router[1]

    def names(self) -> list[str]:
        """Every model that can be asked for: here, at peers, and the selectors."""
        local = [model.id for model in self._catalog.snapshot.models if not model.hidden]
        config = self._peers.complete(self._catalog.snapshot.config or Config())
        remote = [model for peer in config.peers.values() for model in peer.models]
        return list(dict.fromkeys((*local, *config.selectors, *remote)))

    def edits(self, model: Model) -> Edits:
        """Return the configuration's edits of bodies for the model."""
        if model.config is None:
            return NO_EDITS
        return self._compiled().get(model.id, NO_EDITS)

    def peer_edits(self, peer_id: str) -> Edits:
        return self._compiled().get(f"/{peer_id}", NO_EDITS)  # no model id begins with a slash

    def sent_name(self, target: Target) -> str | None:
        """The model's name for the server, where it is not the one in the request."""
        if target.model is None:
            return target.peers[0][1]
        return self.edits(target.model).sent_model(target.requested if target.renamed else None)

    def is_at_choice(self, target: Target) -> bool:
        """Return whether another box of the pool may answer, although the target's model is loaded here."""
        return self._peers.decides(target.boxes)

    async def look(self) -> None:
        """Look at the disk: a model is not what it was."""
        await refresh(self._catalog)

    async def wait_known(self, model: Model) -> None:
        """Find out what the model is."""
        await self._catalog.identities.of(model)

    def is_still(self, model: Model, identity: str) -> bool:
        """Return whether it is known that the model is just this, and its process too. Looks at the disk."""
        return self._catalog.identities.current(model) == identity and self._fleet.is_as_started(model)

    def _compiled(self) -> dict[str, Edits]:
        config = self._catalog.snapshot.config
        if self._edits[0] is not config:
            known = config or Config()
            compiled = {i: compile_edits(m.filters, m.use_model_name) for i, m in known.models.items()}
            compiled |= {f"/{i}": compile_edits(peer.filters) for i, peer in known.peers.items()}
            self._edits = (config, compiled)
        return self._edits[1]

    def _pinned(self, name: str) -> str:
        pin = self.router().pin(self._profile.name, name)
        if pin is None:
            raise ModelNotFound(name)
        return name if pin is UNPINNED else pin

    async def _target(
        self,
        name: str,
        meant: Local | Remote | Virtual | Here | None,
        *,
        renamed: bool = False,
        selector: str | None = None,
    ) -> Target:
        match meant:
            case Here(own):
                target = await self._target(own, self.router().resolve(own), renamed=True, selector=selector)
                return _alone(target)
            case Local(model_id):
                if self.config is not None and self.config.models[model_id].disabled:
                    raise ModelNotFound(name, (), f"; models.{model_id}.disabled in the configuration switches it off")
                model = await find_model(self._catalog, model_id)
                target = await self._shared(model, model_id)
            case Remote(peers):
                known = self._peers.boxes()
                boxes = tuple(pair for pair in peers if pair[0] in known)
                if len(boxes) < len(peers):  # a configured peer is meant as it always was
                    peers, boxes = tuple(pair for pair in peers if pair not in boxes), ()
                # A model on this disk is in no configuration, so the name of the other boxes' copies was found first.
                is_bare = bool(boxes) and name == boxes[0][1]
                model = self._catalog.snapshot.find(name) if is_bare else None
                if model is not None and model.error is None:
                    target = await self._shared(model, name)
                else:
                    identity = self._agreed(name) if is_bare else ""
                    target = Target(peers=peers, boxes=boxes, identity=identity, requested=name)
            case _:
                try:
                    model = await find_model(self._catalog, name)
                except ModelNotFound:
                    return self._coming(name, renamed=renamed, selector=selector)
                target = await self._shared(model, model.id)
        return structs.replace(target, requested=name, renamed=renamed, selector=selector)

    async def _shared(self, model: Model, name: str) -> Target:
        """Return the model, and the boxes that have the same one under this name."""
        if not self._peers.holders(name):
            return Target(model=model, requested=name)
        identity = await self._catalog.identities.of(model)
        same = tuple((one.box, name) for one in self._peers.holders(name) if identity and one.identity == identity)
        return Target(model=model, boxes=same, identity=identity, requested=name)

    def _agreed(self, name: str) -> str:
        """Return what the boxes mean by a name that this one does not have. Raises ModelNotFound where that is several
        models, and Busy while that may still turn out to be one.
        """
        groups = groups_of(self._peers.holders(name))
        if len(groups) > 1:
            why = told_apart(name, groups)
            if any(one.identity == "" for group in groups for one in group):
                raise Busy(f"model '{name}' is being compared between boxes; send the request again, or, if {why}")
            raise ModelNotFound(name, (), f" under this name alone: {why}")
        return groups[0][0].identity or "" if groups else ""

    def _coming(self, name: str, *, renamed: bool, selector: str | None) -> Target:
        """Return a model that its first request downloads. Raises ModelNotFound where that may not be."""
        config = self.config or Config()
        wanted = self._supply.meant(name, config)
        if wanted is None:
            raise self._not_found(name, self._supply.advice(name, config))
        model = Model(id=str(wanted.reference), source="cache", fetch=(wanted,))
        return Target(
            model=model, requested=name, renamed=renamed, selector=selector, asks=config.auto_download == "ask"
        )

    def _not_found(self, name: str, advice: str = "") -> ModelNotFound:
        near = (*self._catalog.snapshot.near(name), *self.router().near(name))
        return ModelNotFound(name, tuple(dict.fromkeys(near))[:3], advice)

    def _state(self, selector: str, target: str) -> TargetState:
        meant = self.router().resolve(target)
        while isinstance(meant, Here):
            meant = self.router().resolve(meant.name)
        reserved = self._reserved[selector, target]
        if not isinstance(meant, Local):
            at_once = isinstance(meant, Remote) and self._peers.may_answer(meant.peers)
            return TargetState("stopped", reserved, remote=True, at_once=at_once)
        status = self._fleet.known(meant.model_id)
        state = swap_state(status.state) if status is not None else "stopped"
        known = state if state in ("ready", "starting", "stopping") else "stopped"
        return TargetState(known, reserved, at_once=self._fleet.takes(meant.model_id))


def _alone(target: Target) -> Target:
    """Return the target without the other boxes: a name that says which box is meant leaves no choice."""
    if target.model is None:
        raise NotPlaced(target.requested, "the box that was asked does not have it")
    return structs.replace(target, peers=(), boxes=(), identity="", renamed=True)


def _listed(snapshot: Snapshot, profile: str | None) -> Iterator[str]:
    """Return the names that other boxes read in this one's list of models, see `ModelLister`."""
    config = snapshot.config or Config()
    for model in snapshot.models:
        if not model.hidden and not (model.config is not None and (model.config.unlisted or model.config.disabled)):
            yield model.id
            if model.config is not None and config.include_aliases_in_list:
                yield from model.config.aliases
    yield from config.selectors
    if profile in config.profiles:
        yield from (name for name, target in config.profiles[profile].pins.items() if target)
