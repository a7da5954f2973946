"""``GET /api/disk``: the room that models, downloads and the program's folders take, measured when somebody asks.

A thread measures, and its answer is good for some seconds, however many ask. Downloads, states and times of the last
use are those of the moment.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from functools import partial

import trio
from msgspec import structs
from quart import Response

from appliance.errors import Busy
from appliance.features.disk.measuring import measure
from appliance.features.disk.rules import DiskTable
from appliance.fleet.status import state_of
from appliance.http.control.answers import is_trusted, json_answer
from appliance.http.control.routes import Routes
from appliance.http.kernel import Kernel
from appliance.http.route_facts import RouteFacts
from appliance.traffic.targets import refresh
from appliance.trio_parts import Memo

STRANGE = "it is in the models folder; 'llama-appliance rm {}' on the server's machine removes it"
"""The refusal over HTTP of what somebody has put into the models folder: only the server's own home removes it."""
EVERY = 10.0  # seconds for which a measurement is good, unless models or downloads come or go


def disk_routes(kernel: Kernel) -> Routes:
    owners, catalog, recorder = kernel.owners, kernel.owners.catalog, kernel.traffic.recorder
    routes, measured = Routes("disk"), Memo[DiskTable](EVERY)

    @routes.get("/api/disk", facts=RouteFacts(gives=DiskTable))
    async def show_disk() -> Response:
        await refresh(catalog)
        models = catalog.snapshot.models
        look = partial(measure, owners.folders, models, owners.supply)
        measured_of = models, [(one.number, one.state) for one in owners.supply.snapshot()]
        table = await measured.get(partial(trio.to_thread.run_sync, look), of=measured_of)
        going = tuple(one for one in owners.supply.snapshot() if one.state != "finished")
        last_used: dict[str, datetime] = {}
        with suppress(Busy):  # another program has locked the log: the answer comes without
            last_used = await recorder.read(lambda table: table.last_used())
        told = structs.replace(
            table,
            models=tuple(
                structs.replace(
                    model,
                    why=model.why or ("" if model.source == "cache" or is_trusted() else STRANGE.format(model.model)),
                    state=state_of(owners.fleet.known(model.model)),
                    last_used=last_used.get(model.model),
                )
                for model in table.models
            ),
            unfinished=tuple(one for one in table.unfinished if one.model not in {each.model for each in going}),
            downloads=going,
        )
        return json_answer(told)

    return routes
