"""The work of this box for its pool: it loads a model of its own, or has the files of one that other boxes have."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal
from urllib.parse import quote

import trio

from appliance.catalog.catalog import find_model
from appliance.core.models.holders import groups_of, told_apart
from appliance.core.models.model import Model
from appliance.errors import ApplianceError, Busy, ModelNotFound, NotPlaced
from appliance.features.pool.core.blobs import BLOBS, FilesOfModel, HashedFile
from appliance.features.pool.doors import ask_at
from appliance.features.pool.member_source import Members
from appliance.features.pool.peers import Peers
from appliance.fleet.owner import Fleet
from appliance.fleet.status import state_of
from appliance.http.owners import Owners
from appliance.upstream.address import Address

HASH_PAUSE = 1.0  # seconds between two questions for hashes that a box computes, which take minutes for 40 GB
MOST_FETCHES = 16  # models that are fetched together: another box may say that it has many, and never give one

log = logging.getLogger(__name__)


def room_for(fleet: Fleet, model: Model) -> Literal["free", "idle", "none"]:
    """Return what a load of the model takes from others here. Asks the system."""
    return fleet.outlook.foresee(model, fleet.launches.engine_for(model)).room


def refuse_eviction(fleet: Fleet, model: Model) -> None:
    """Raises NotPlaced where the model is not loaded, and its load would evict another one."""
    if state_of(fleet.known(model.id)) == "unloaded" and room_for(fleet, model) != "free":
        raise NotPlaced(model.id, "that would unload another model on the box that was asked")


class OwnHands:
    """The work that another box can order. Each returns once it has begun."""

    def __init__(self, nursery: trio.Nursery, owners: Owners, peers: Peers) -> None:
        self._nursery, self._owners, self._peers = nursery, owners, peers
        self._fetching: set[str] = set()

    def require(self, model: str) -> None:
        """Raises ModelNotFound for a model that neither this box has nor another one."""
        if self._owners.catalog.snapshot.find(model) is None and not self._holders(model):
            raise ModelNotFound(model)

    async def load(self, model: str, *, evict: bool) -> None:
        """Raises ApplianceError where the model cannot be loaded, or only by evicting others."""
        found = await find_model(self._owners.catalog, model)
        if not evict:
            refuse_eviction(self._owners.fleet, found)
        self._owners.fleet.load_soon(found)

    async def fetch(self, model: str) -> None:
        """Fetch a model's files from other boxes, then load it. Raises ApplianceError; downloads tell of later ones."""
        if self._owners.catalog.snapshot.find(model) is not None:
            await self.load(model, evict=True)
        elif model not in self._fetching:
            if len(self._fetching) >= MOST_FETCHES:
                raise Busy(f"{MOST_FETCHES} models are being fetched from other boxes already")
            self._fetching.add(model)
            self._nursery.start_soon(self._fetch, model)

    async def _fetch(self, model: str) -> None:
        try:
            files, members = await self._sources(model)
            download = await self._owners.supply.fetch_from(Members(members, files, model))
            status = await download.wait()
            if status.error is None:
                await self.load(model, evict=True)
        except (ApplianceError, OSError) as error:
            log.warning("model '%s' was not fetched from another box: %s", model, error)
        finally:
            self._fetching.discard(model)

    async def _sources(self, model: str) -> tuple[tuple[HashedFile, ...], list[Address]]:
        """Return the model's files, and the boxes that have just these. Raises ModelNotFound if there are none."""
        while True:
            listed = await self._lists(model)
            if not listed:
                raise ModelNotFound(model)
            known = {box: found.files for box, found in listed.items() if found.files is not None}
            if known:
                files = next(iter(known.values()))
                return files, [self._peers.address(box) for box, same in known.items() if same == files]
            await trio.sleep(HASH_PAUSE)

    async def _lists(self, model: str) -> Mapping[str, FilesOfModel]:
        """Ask every box that has the model for its files; each begins to compute the hashes that it lacks."""
        found: dict[str, FilesOfModel] = {}

        async def ask(box: str) -> None:
            with suppress(ApplianceError):
                found[box] = await ask_at(
                    self._peers.address(box), "GET", f"{BLOBS}?model={quote(model)}", FilesOfModel
                )

        async with trio.open_nursery() as nursery:
            for box in self._holders(model):
                nursery.start_soon(ask, box)
        return found

    def _holders(self, model: str) -> list[str]:
        """Return the boxes that have the model. Raises NotPlaced where they have several of its name."""
        groups = groups_of(self._peers.holders(model))
        if len(groups) > 1:
            raise NotPlaced(model, told_apart(model, groups))
        return [one.box for group in groups for one in group]
