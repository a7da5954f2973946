"""``GET /api/disk``: the room that models, downloads and the program's folders take, measured when somebody asks.

A thread measures, and its answer is good for some seconds, however many ask. Downloads, states and times of the last
use are those of the moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

import trio
from msgspec import structs
from quart import Blueprint, Response

from appliance.errors import Busy
from appliance.features.disk.space import DiskTable, ModelSpace, measure
from appliance.fleet.status import state_of
from appliance.http.control.answers import is_trusted, json_answer
from appliance.http.kernel import Kernel
from appliance.http.owners import Owners
from appliance.store.activity import ActivityTable
from appliance.traffic.record import Recorder
from appliance.traffic.targets import refresh

EVERY = 10.0
"""Seconds for which a measurement is good, unless models come or go."""


class DiskRoutes:
    """One route."""

    def __init__(self, owners: Owners, recorder: Recorder) -> None:
        self._owners = owners
        self._recorder = recorder
        self._measured: DiskTable | None = None
        self._of: tuple[object, ...] = ()
        self._good_until = 0.0
        self._measuring = trio.Lock()

    async def show(self) -> Response:
        table = await self._measure()
        going = [one for one in self._owners.downloading() if one.state != "finished"]
        known = {one.model for one in going}
        last_used: dict[str, datetime] = {}
        with suppress(Busy):  # another program has locked the log: the answer comes without
            last_used = await self._recorder.read(ActivityTable.last_used)
        trusted = is_trusted()
        told = structs.replace(
            table,
            models=tuple(self._with_use(model, last_used, trusted=trusted) for model in table.models),
            unfinished=tuple(one for one in table.unfinished if one.model not in known),
            downloads=tuple(going),
        )
        return json_answer(told)

    async def _measure(self) -> DiskTable:
        owners = self._owners
        async with self._measuring:
            await refresh(owners.catalog)
            models, sources = owners.catalog.snapshot.models, owners.catalog.sources
            of = (models, _ends(owners))
            if (table := self._measured) is None or of != self._of or trio.current_time() > self._good_until:
                table = await trio.to_thread.run_sync(
                    measure, owners.folders, models, sources.cache, sources.models_dir
                )
                self._measured, self._of, self._good_until = table, of, trio.current_time() + EVERY
        return table

    def _with_use(self, model: ModelSpace, last_used: dict[str, datetime], *, trusted: bool) -> ModelSpace:
        why = model.why
        if not why and model.source != "cache" and not trusted:
            why = f"it is in the models folder; 'llama-appliance rm {model.model}' on the server's machine removes it"
        state = state_of(self._owners.fleet.known(model.model))
        return structs.replace(model, why=why, state=state, last_used=last_used.get(model.model))


def _ends(owners: Owners) -> Sequence[tuple[int, str]]:
    """Return the states of downloads; another one means other files."""
    return [(one.number, one.state) for one in owners.downloading()]


def disk_routes(kernel: Kernel) -> Blueprint:
    blueprint = Blueprint("disk", __name__)
    blueprint.add_url_rule("/api/disk", "disk", DiskRoutes(kernel.owners, kernel.traffic.recorder).show)
    return blueprint
