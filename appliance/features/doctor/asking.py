"""The facts of ``doctor``: a running server's own, or those that the command gathers where none answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlencode

import msgspec
import trio
from msgspec import Struct, structs

from appliance import __version__
from appliance.catalog.catalog import Catalog
from appliance.catalog.configuration import Files
from appliance.catalog.headers import Headers, headers_file
from appliance.cli.options import ModelOptions
from appliance.cli.remote import NotRunning, RequestRefused, RunningServer, ServerFailed, ask, ask_raw
from appliance.core.config.types import Config
from appliance.core.examination import Examiner, ServerFact
from appliance.core.lenient_json import UNREADABLE
from appliance.core.records.history import Happening
from appliance.core.settings import is_loopback
from appliance.errors import ApplianceError
from appliance.features.doctor.core.bundle import REPORTED
from appliance.features.doctor.core.diagnose import diagnose
from appliance.features.doctor.core.facts import Examined, Facts, read_examined
from appliance.features.doctor.core.findings import dated, is_wrong
from appliance.features.doctor.gathering import LACKS, added, begun, examine, read_config, with_models
from appliance.features.doctor.system import port_owner
from appliance.fleet.estimate import Estimate, PlainEstimate

PATIENCE = 10.0  # seconds for each answer; short, because a person waits for the page
LOOKS = 60.0  # seconds for the server's examination: after its start it may have to look at drivers first


class DoctorOptions(Struct, frozen=True, kw_only=True):
    """The options of the command line."""

    server: RunningServer
    config: Path | None = None
    models_dir: str | None = None
    model: str = ""  # the model to rank engines for; empty: a model about which nothing is known
    estimate: Estimate = PlainEstimate()
    config_type: Callable[[], type[Config]] = lambda: Config

    @property
    def files(self) -> Files | None:
        """The configuration, if one is named."""
        return Files(config=self.config, config_type=self.config_type) if self.config is not None else None


class Timeline(Struct, frozen=True):
    """``GET /api/history``, as far as a report needs it."""

    data: list[Happening]


class VersionAnswer(Struct, frozen=True):
    """``GET /api/version``, where ``version`` is Ollama's; answers of other programs lack this member."""

    llama_appliance: str


async def look(wish: DoctorOptions, examiners: Sequence[Examiner]) -> Examined:
    """Return the running server's findings, and what the options add to them; without a server, the command's own."""
    config = await trio.to_thread.run_sync(read_config, wish.files) if wish.files is not None else None
    known, told = begun(config[0] if config is not None else None), None
    try:
        told = await _ask_server(wish, examiners)
    except LACKS as cause:
        known = known.without("the server", cause)
    sources = ModelOptions(models_dir=wish.models_dir).beside(config[1] if config is not None else None)
    catalog = Catalog(sources, config[1] if config is not None else None, Headers(headers_file()))
    if isinstance(told, Examined):
        known = structs.replace(told.facts.known, version=__version__)
        if config is not None:
            known = structs.replace(known, config=config[0])
        if config is not None or wish.models_dir is not None:
            models = partial(with_models, catalog=catalog, estimate=wish.estimate)
            known = await added("the models", known, models)
        facts = Facts(known, told.facts.own)
    else:
        port = None
        if told is not None and told.answer != "answers" and is_loopback(wish.server.address.host):
            port = await trio.to_thread.run_sync(port_owner, wish.server.address.port)
        known = structs.replace(known, server=told, port=port)
        facts = await examine(known, examiners, catalog, wish.estimate, wish.model)
    findings = dated(diagnose(facts), told.findings if isinstance(told, Examined) else ())
    return Examined(ok=not is_wrong(findings), findings=findings, facts=facts)


async def log_of(server: RunningServer, source: str) -> str:
    """Return the stored lines of a log: a model's by its id, the program's own as ``proxy``; empty if unavailable."""
    path = f"/logs/stream/{quote(source, safe='')}?no-follow"
    try:
        return (await ask_raw(server, "GET", path, patience=PATIENCE)).decode("utf-8", "replace")
    except ApplianceError:
        return ""


async def timeline_of(server: RunningServer) -> list[Happening]:
    """Return the newest entries of the server's timeline; none if it cannot tell."""
    try:
        return (await ask(server, "GET", f"/api/history?limit={REPORTED}", Timeline)).data
    except ApplianceError:
        return []


async def _ask_server(wish: DoctorOptions, examiners: Iterable[Examiner]) -> Examined | ServerFact:
    """Return the server's own examination; of another version's server, or of none, what is at the address."""
    server = wish.server
    try:
        raw = await ask_raw(server, "GET", "/api/version", patience=PATIENCE)
        version = msgspec.json.decode(raw, type=VersionAnswer).llama_appliance
        try:
            query = urlencode({"model": wish.model})
            told = read_examined(await ask_raw(server, "GET", f"/api/doctor?{query}", patience=LOOKS), examiners)
        except RequestRefused as cause:
            if cause.status != 404:
                raise
            told = None
    except NotRunning as cause:
        return ServerFact(url=server.url, answer="failed" if cause.slow else "absent", why=cause.why)
    except RequestRefused as cause:
        return ServerFact(url=server.url, answer="refused" if cause.status == 401 else "other", why=str(cause))
    except ServerFailed as cause:
        return ServerFact(url=server.url, answer="failed", why=str(cause))
    except UNREADABLE:
        return ServerFact(url=server.url, answer="other", why="another program listens there")
    if told is None or told.facts.known.server is None:
        return ServerFact(url=server.url, answer="answers", version=version)
    own = structs.replace(told.facts.known.server, url=server.url)
    return structs.replace(told, facts=Facts(structs.replace(told.facts.known, server=own), told.facts.own))
