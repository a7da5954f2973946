"""``GET /api/doctor``: the findings of this program about itself, examined when somebody asks.

Its own models are read from the fleet, engines and the machine from their owner. No driver is asked, but where nobody
has looked at the machine yet.
"""

from __future__ import annotations

import platform
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import trio
from msgspec import Struct, structs
from quart import Response, request
from quart_trio import QuartTrio

from appliance import __version__
from appliance.core.doctor.diagnose import diagnose
from appliance.core.doctor.facts import (
    DoctorFacts,
    Examined,
    Finding,
    ServedModel,
    ServerFact,
    dated,
    is_wrong,
    machine_line,
)
from appliance.core.engines.choice import best
from appliance.core.fit.estimate import OFFLOADED
from appliance.doctor import begun, config_in_force, examine
from appliance.engines.owner import Engines
from appliance.http.control.answers import json_answer
from appliance.http.control.listing import View, list_models
from appliance.http.owners import Owners
from appliance.traffic.tracing import Tracer
from appliance.wire import ListedModel

EVERY = 5.0
"""Seconds for which an examination is good."""
READ_LOGS = 16
"""Number of loaded models whose log is read."""
WITHOUT_EFFECT = re.compile(r"\b(?:has no effect|will be ignored)\b")
"""The words with which engines name an option that they do not follow."""
LOADED = ("loaded", "sleeping")


class DoctorRoutes:
    """One route. Requests within `EVERY` seconds share an examination."""

    def __init__(self, owners: Owners, view: View, tracer: Tracer) -> None:
        self._owners = owners
        self._view = view
        self._tracer = tracer
        self._facts: DoctorFacts | None = None
        self._found: Sequence[Finding] = ()
        self._good_until = 0.0
        self._examining = trio.Lock()

    async def show(self) -> Response:
        async with self._examining:
            if (facts := self._facts) is None or trio.current_time() > self._good_until:
                facts = self._facts = await self._examine()
                self._found = dated(diagnose(facts), self._found, facts.now)
                self._good_until = trio.current_time() + EVERY
        findings = self._found
        if model := request.args.get("model", ""):
            facts = structs.replace(facts, ranked=tuple(self._owners.engines.ranked(model)))
            findings = dated(diagnose(facts), self._found, facts.now)
        if request.args.get("line", ""):
            return json_answer(machine_line(platform.node(), __version__, findings))
        return json_answer(Examined(ok=not is_wrong(findings), findings=tuple(findings), facts=facts))

    async def _examine(self) -> DoctorFacts:
        owners, configuration = self._owners, self._owners.configuration
        known = await begun(await config_in_force(configuration) if configuration is not None else None)
        entries = list_models(self._view, owners.downloading()).data
        loaded = [entry.id for entry in entries if entry.status.value in LOADED][:READ_LOGS]
        said = {model: owners.fleet.said(model) for model in loaded}
        logs = await trio.to_thread.run_sync(lambda: {model: _told(lines) for model, lines in said.items()})
        server = ServerFact(
            url=request.host_url.rstrip("/"),
            answer="answers",
            version=__version__,
            running=tuple([_served(entry, owners.fleet.seat_of(entry.id), logs.get(entry.id)) for entry in entries]),
            traces=self._tracer.failing,
        )
        facts = await examine(known, self._engines(), owners.catalog)
        used = best(facts.ranked)
        return structs.replace(facts, server=structs.replace(server, engine=used.seat.id if used is not None else ""))

    @asynccontextmanager
    async def _engines(self) -> AsyncGenerator[Engines]:
        engines = self._owners.engines
        if engines.look is None:
            await engines.probe()
        else:
            await engines.refresh()  # another program may have installed a build, or chosen one
        yield engines


def add_doctor_routes(app: QuartTrio, routes: DoctorRoutes) -> None:
    app.add_url_rule("/api/doctor", "doctor", routes.show)


class _Told(Struct, frozen=True):
    """The part of a loaded model's log that matters here."""

    layers: tuple[int, int] | None = None
    unheeded: tuple[str, ...] = ()


def _told(lines: Sequence[str]) -> _Told:
    offloaded = [found for line in lines if (found := OFFLOADED.search(line))]
    return _Told(
        layers=(int(offloaded[-1][1]), int(offloaded[-1][2])) if offloaded else None,
        unheeded=tuple(dict.fromkeys(line.strip() for line in lines if WITHOUT_EFFECT.search(line))),
    )


def _served(entry: ListedModel, seat: str | None, told: _Told | None) -> ServedModel:
    status = entry.status
    return ServedModel(
        id=entry.id,
        state=status.value,
        error=(status.error or "it gave no reason") if status.failed else "",
        command=tuple(status.args or ()),
        seat=seat or "",
        layers=told.layers if told is not None else None,
        unheeded=told.unheeded if told is not None else (),
    )
