"""Who answers a request: the model or the peers that its name means at this moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import unquote

from msgspec import Struct

from appliance.catalog.catalog import Catalog
from appliance.core.config.types import Config
from appliance.core.filters import Edits, compile_edits
from appliance.core.model import Model
from appliance.core.naming import MAX_NAME
from appliance.core.routing import UNPINNED, Local, Remote, Router, TargetState, Virtual, choose
from appliance.core.swap_listing import swap_state
from appliance.errors import Busy, ModelNotFound
from appliance.fleet.owner import Fleet
from appliance.peers.owner import Peers
from appliance.traffic.choice import find_model
from appliance.traffic.profile import ActiveProfile

NO_EDITS = Edits(by_name={})
MAX_SEGMENTS = 8
"""Of a path that may be the name of a model on disk: names there have one slash, or as many as folders."""


class Target(Struct, frozen=True, kw_only=True):
    """Either ``model``, or ``peers`` as pairs of peer id and the model's name there."""

    model: Model | None = None
    peers: tuple[tuple[str, str], ...] = ()
    requested: str
    """The name that filters go by, and that is sent upstream: what the client, a pin or a selector named."""
    renamed: bool = False
    """It is not the name in the request."""
    selector: str | None = None

    @property
    def label(self) -> str:
        """What logs call it."""
        return self.model.id if self.model is not None else "/".join(self.peers[0])


class Targets:
    """Resolves names against the configuration, the disk, the peers and the active profile."""

    def __init__(self, catalog: Catalog, fleet: Fleet, peers: Peers, profile: ActiveProfile) -> None:
        self._catalog = catalog
        self._fleet = fleet
        self._peers = peers
        self._profile = profile
        self._reserved: Counter[tuple[str, str]] = Counter()
        self._turns: Counter[str] = Counter()
        self._router: tuple[object, Router] = (None, Router(Config()))
        self._edits: tuple[object, dict[str, Edits]] = (None, {})

    @asynccontextmanager
    async def chosen(self, name: str) -> AsyncGenerator[Target]:
        """The target of a request for ``name``; a selector counts it for as long as the block runs.

        Raises ModelNotFound, InvalidModelFile for a local file that cannot be used, and Busy when none of a selector's
        targets can take it.
        """
        wanted = self._pinned(name)
        meant = self.router().resolve(wanted)
        if not isinstance(meant, Virtual):
            yield await self._target(wanted, meant, renamed=wanted != name)
            return
        choice = choose(meant.selector, lambda target: self._state(meant.id, target), self._turns[meant.id])
        if choice is None:
            raise Busy(f"none of the targets of '{wanted}' can take a request now; all of them are stopping")
        self._turns[meant.id] = choice.turn
        self._reserved[meant.id, choice.target] += 1
        try:
            target = self.router().resolve(choice.target)
            yield await self._target(choice.target, target, renamed=True, selector=meant.id)
        finally:
            self._reserved[meant.id, choice.target] -= 1

    async def worker(self, name: str) -> str:
        """Whose slots a run on ``name`` takes: the id behind the name, or the selector. Raises as `chosen`."""
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
        """What a raw path below ``/upstream/`` asks of the model's server, decoded."""
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
        snapshot = self._catalog.snapshot
        key = (snapshot, self._peers.names())
        if self._router[0] != key:
            config = self._peers.complete(snapshot.config or Config())
            self._router = (key, Router(config))
        return self._router[1]

    def names(self) -> list[str]:
        """Every model that can be asked for: here, at peers, and the selectors."""
        local = [model.id for model in self._catalog.snapshot.models if not model.hidden]
        config = self._peers.complete(self._catalog.snapshot.config or Config())
        remote = [model for peer in config.peers.values() for model in peer.models]
        return list(dict.fromkeys((*local, *config.selectors, *remote)))

    def edits(self, model: Model) -> Edits:
        """What the configuration does to bodies for the model."""
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
        self, name: str, meant: Local | Remote | Virtual | None, *, renamed: bool = False, selector: str | None = None
    ) -> Target:
        match meant:
            case Local(model_id):
                model = await find_model(self._catalog, model_id)
                return Target(model=model, requested=name, renamed=renamed, selector=selector)
            case Remote(peers):
                return Target(peers=peers, requested=name, renamed=renamed, selector=selector)
            case _:
                try:
                    model = await find_model(self._catalog, name)
                except ModelNotFound:
                    raise self._not_found(name) from None
                return Target(model=model, requested=name, renamed=renamed, selector=selector)

    def _not_found(self, name: str) -> ModelNotFound:
        near = (*self._catalog.snapshot.near(name), *self.router().near(name))
        return ModelNotFound(name, tuple(dict.fromkeys(near))[:3])

    def _state(self, selector: str, target: str) -> TargetState:
        meant = self.router().resolve(target)
        reserved = self._reserved[selector, target]
        if not isinstance(meant, Local):
            return TargetState("stopped", reserved, remote=True)
        status = self._fleet.known(meant.model_id)
        match swap_state(status.state) if status is not None else "stopped":
            case "ready":
                return TargetState("ready", reserved)
            case "starting":
                return TargetState("starting", reserved)
            case "stopping":
                return TargetState("stopping", reserved)
            case _:
                return TargetState("stopped", reserved)
