"""The models that are configured, found and running at this moment, for the routes and feeds that show them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from appliance.catalog.catalog import Catalog
from appliance.core.config.types import Config, ModelConfig
from appliance.core.models.swap_listing import Listing, Object, model_status, swap_state, with_found
from appliance.fleet.owner import Fleet
from appliance.fleet.status import ChildStatus
from appliance.peers.owner import Peers
from appliance.traffic.profile import ActiveProfile


class Running(Struct, frozen=True, kw_only=True):
    """One entry of ``GET /running``; ``state`` is llama-swap's word."""

    model: str
    state: str
    cmd: str
    proxy: str
    ttl: int
    name: str
    description: str


class View:
    """Reads, decides nothing."""

    def __init__(self, fleet: Fleet, catalog: Catalog, peers: Peers, profile: ActiveProfile) -> None:
        self.fleet = fleet
        self.catalog = catalog
        self.peers = peers
        self.profile = profile
        self._whole: tuple[object, Config] = (None, Config())
        self._listing: tuple[object, Listing] = (None, Listing(Config()))

    @property
    def config(self) -> Config:
        """The configuration with what was found on disk and at peers beside it; the defaults without one."""
        basis = snapshot, _ = self.catalog.snapshot, self.peers.names()
        if self._whole[0] != basis:
            self._whole = (basis, self.peers.complete(with_found(snapshot.config, snapshot.models)))
        return self._whole[1]

    def entries(self, base: Mapping[str, Object], now: int) -> list[Object]:
        """The ``data`` of ``GET /v1/models``, see `Listing`; models found on disk are not part of the file."""
        basis = config, _ = self.catalog.snapshot.config, self.peers.names()
        if self._listing[0] != basis:
            self._listing = (basis, Listing(self.peers.complete(config or Config())))
        remote = {f"{peer.id}/{model.id}" for peer in self.peers.snapshot() for model in peer.models if model.loaded}
        return self._listing[1].entries(base, profile=self.profile.name, now=now, remote=remote)

    def running(self) -> list[Running]:
        """Every process that is not stopped, by id."""
        models = self.config.models
        statuses = [status for status in self.fleet.status() if swap_state(status.state) != "stopped"]
        return [_running(status, models.get(status.model, ModelConfig())) for status in statuses]

    def model_status(self) -> list[Object]:
        states = {status.model: status.state for status in self.fleet.status()}
        return model_status(self.config, states)

    def model_id(self, name: str) -> str | None:
        """The id of a local model by id or alias, of one that runs although its file is gone too."""
        model = self.catalog.snapshot.find(name)
        if model is not None:
            return model.id
        return name if self.fleet.known(name) is not None or self.fleet.logs.knows(name) else None

    def profiles(self) -> Object:
        """``GET /api/profiles``."""
        profiles = sorted(self.config.profiles.items())
        return {
            "active": self.profile.name,
            "profiles": [{"id": name, **msgspec.to_builtins(profile)} for name, profile in profiles],
        }


def _running(status: ChildStatus, model: ModelConfig) -> Running:
    own = not model.cmd
    address = f"http://127.0.0.1:{status.port}" if status.port else ""
    return Running(
        model=status.model,
        state=swap_state(status.state),
        cmd=shlex.join(status.argv) if own else model.cmd,
        proxy=address if own else model.proxy,
        ttl=max(model.ttl, 0),
        name=model.name,
        description=model.description,
    )
