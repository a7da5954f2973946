"""This program, examined by itself when somebody asks.

Its own models are read from the fleet, engines and the machine from their owner. No driver is asked, but where nobody
has looked at the machine yet.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import trio
from msgspec import structs
from quart import request

from appliance import __version__
from appliance.core.config.types import Config
from appliance.core.examination import Known, Lately, ServedModel, ServerFact
from appliance.core.findings import Finding
from appliance.core.llama.buffers import OFFLOADED
from appliance.core.models.swap_listing import ListedModel
from appliance.core.records.history import MAX_LIMIT, HistoryQuery
from appliance.features.doctor.core.bundle import REPORTED, known_secrets, log_names
from appliance.features.doctor.core.diagnose import diagnose
from appliance.features.doctor.core.facts import Examined, Facts
from appliance.features.doctor.core.findings import dated, is_wrong, machine_line
from appliance.features.doctor.core.lately import DEATHS, HOUR, deaths, turned_away
from appliance.features.doctor.gathering import added, begun, bundled, config_in_force, examine, zipped
from appliance.http.control.listing import View, list_models
from appliance.http.kernel import Kernel
from appliance.trio_parts import Memo
from appliance.upstream.hub import LoginUnusable, find_token

EVERY = 5.0  # seconds for which an examination is good
READ_LOGS = 16  # number of loaded models whose log is read
WITHOUT_EFFECT = re.compile(r"\b(?:has no effect|will be ignored)\b")
"""The words with which engines name an option that they do not follow."""
LOADED = ("loaded", "sleeping")
_Told = tuple[tuple[int, int] | None, tuple[str, ...]]  # of a model's log: its `ServedModel.layers` and ``unheeded``
NOTHING_TOLD: _Told = (None, ())


class OwnExamination:
    """This program, examined by itself. Requests within `EVERY` seconds share a look."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._owners = kernel, kernel.owners
        self._view = View(kernel.owners.fleet, kernel.owners.catalog, kernel.owners.peers, kernel.traffic.profile)
        self._found: Sequence[Finding] = ()
        self._examined = Memo[tuple[Facts, Sequence[Finding]]](EVERY)

    async def look(self, model: str = "") -> tuple[Facts, Sequence[Finding]]:
        """Return the facts and the findings. ``model`` is the one to rank engines for."""
        return await self._examined.get(partial(self._examine, model), of=model)

    async def report(self, *, logs: bool) -> bytes:
        """Return the bundle of ``doctor --report`` as a ZIP; ``logs`` adds the logs."""
        owners, settings, program = self._owners, self._kernel.settings, self._kernel.traffic.logs
        facts, findings = await self.look()
        history = await owners.history.read(HistoryQuery(limit=REPORTED))
        said, keys = dict[str, list[str]](), [*settings.api_keys]
        if logs:
            with suppress(LoginUnusable):
                keys.append(await find_token() or "")
            said["logs/program.log"] = program.program().take()
            said |= {name: program.upstream(model).take() for model, name in log_names(facts.known)}
        config = owners.configuration.current if owners.configuration is not None else Config()
        commands = [status.argv for status in owners.fleet.status()]

        def pack() -> bytes:
            texts = [(name, "".join(f"{line}\n" for line in lines)) for name, lines in said.items()]
            secrets = known_secrets(config, os.environ, commands, keys) if texts else ()
            return zipped(bundled(facts, findings, history, texts, secrets))

        return await trio.to_thread.run_sync(pack)

    async def told(self, model: str) -> Mapping[str, object]:
        """Return the findings, and the facts behind them."""
        facts, findings = await self.look(model)
        return Examined(ok=not is_wrong(findings), findings=tuple(findings), facts=facts).told()

    async def line(self, model: str) -> object:
        """Return the findings in the one line of ``doctor --line``."""
        return machine_line(platform.node(), __version__, (await self.look(model))[1])

    async def _examine(self, model: str) -> tuple[Facts, Sequence[Finding]]:
        owners, configuration = self._owners, self._owners.configuration
        known = begun(await config_in_force(configuration) if configuration is not None else None)
        entries = list_models(self._view, owners.supply.snapshot()).data
        loaded = [entry.id for entry in entries if entry.status.value in LOADED][:READ_LOGS]
        said = {model: owners.fleet.said(model) for model in loaded}
        logs = await trio.to_thread.run_sync(lambda: {model: _told(lines) for model, lines in said.items()})
        server = ServerFact(
            url=request.host_url.rstrip("/"),
            answer="answers",
            version=__version__,
            running=tuple(
                [_served(entry, owners.fleet.seat_of(entry.id), logs.get(entry.id, NOTHING_TOLD)) for entry in entries]
            ),
        )
        known = await added("the last hour", structs.replace(known, server=server), self._with_last_hour)
        facts = await examine(known, self._kernel.examiners(), owners.catalog, owners.fleet.estimate, model)
        found = dated(diagnose(facts), self._found, facts.known.now)
        if not model:
            self._found = found
        return facts, found

    async def _with_last_hour(self, known: Known) -> Known:
        """Read the records of the hour before. Raises Busy."""
        since = known.now - HOUR
        read = await self._owners.history.read(HistoryQuery(kinds=(*DEATHS, "refused"), limit=MAX_LIMIT))
        seen = [one for one in read if one.timestamp.timestamp() >= since]
        requests = await self._kernel.traffic.recorder.read(lambda table: table.failures(since))
        lately = Lately(requests=requests, deaths=deaths(seen), turned_away=turned_away(seen))
        return structs.replace(known, lately=lately)


def _told(lines: Sequence[str]) -> _Told:
    offloaded = [found for line in lines if (found := OFFLOADED.search(line))]
    layers = (int(offloaded[-1][1]), int(offloaded[-1][2])) if offloaded else None
    return layers, tuple(dict.fromkeys(line.strip() for line in lines if WITHOUT_EFFECT.search(line)))


def _served(entry: ListedModel, seat: str | None, told: _Told) -> ServedModel:
    status = entry.status
    return ServedModel(
        id=entry.id,
        state=status.value,
        error=(status.error or "it gave no reason") if status.failed else "",
        command=tuple(status.args or ()),
        seat=seat or "",
        layers=told[0],
        unheeded=told[1],
    )
