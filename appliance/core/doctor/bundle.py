"""The report in a support bundle: structured facts from an allow-list.

A free text can hold anything: a prompt in an error message, a name in a path, a key in a command. No rule finds all of
that, so the report holds no text that a user, a model or an engine wrote. The classes below are the allow-list: sizes,
counts, switches, words from fixed lists, and the names of parts (cards, drivers, builds, models' architectures). A fact
that is not named here is not in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from appliance.core.doctor.facts import Card, DoctorFacts, Finding, Installed, ModelFact, Running, Severity
from appliance.core.doctor.texts import SET, STATE, build_id, environment, options, part, seat_id, variable
from appliance.core.engines.choice import Ranked, Standing
from appliance.core.engines.machine import Look


class Versions(Struct, frozen=True, kw_only=True):
    program: str
    server: str
    python: str
    platform: str
    frozen: bool


class BundledGpu(Struct, frozen=True, kw_only=True):
    """`Gpu` without its serial number."""

    vendor: str
    name: str
    driver: str
    driver_version: str
    total: int | None
    free: int | None
    compute: str
    gfx: str
    integrated: bool | None


class BundledMachine(Struct, frozen=True, kw_only=True):
    """`Look`. Of loaders the names, of problems the number."""

    platform: str
    system: str
    environment: str
    cpu: str
    cpu_level: str
    cpu_features: tuple[str, ...]
    cores: int
    memory_total: int
    memory_available: int
    gpus: tuple[BundledGpu, ...]
    loaders: tuple[str, ...]
    hidden: Mapping[str, str]
    problems: int


class BundledDisk(Struct, frozen=True, kw_only=True):
    what: str
    free: int
    total: int


class BundledSystem(Struct, frozen=True, kw_only=True):
    """`Checkup`. Device files as kinds: how many of them this user may use, and how many not."""

    disks: tuple[BundledDisk, ...]
    swap_used: int
    swap_total: int
    open_files: int | None
    cores: int
    memory: int
    cards: tuple[Card, ...]
    usable_device_files: int
    closed_device_files: int


class BundledEngine(Struct, frozen=True, kw_only=True):
    """`Installed`, with the driver, the cards and the processor that it needs."""

    id: str
    backend: str
    digest: str
    damaged: bool
    driver: str
    compute: tuple[str, ...]
    cpu: tuple[str, ...]


class BundledSeat(Struct, frozen=True, kw_only=True):
    """One seat in the order of choice. ``seconds``: the nominal request's time."""

    id: str
    standing: Standing
    wanted: bool
    spare: bool
    software: bool
    seconds: float | None


class BundledModel(Struct, frozen=True, kw_only=True):
    """A model by its number in the list; its name stays here. The second part is what the server says of it."""

    number: int
    source: str
    size: int
    architecture: str
    quantisation: str
    parameters: int
    context_length: int
    usable: bool
    fit: str
    state: str = ""
    failed: bool = False
    seat: str = ""
    layers: tuple[int, int] | None = None
    options: Mapping[str, str] = {}
    """Options of llama-server on its command line; other words are left out."""


class BundledServer(Struct, frozen=True, kw_only=True):
    answer: str
    engine: str
    port_taken: bool


class BundledConfig(Struct, frozen=True, kw_only=True):
    """The named configuration: how many files, mistakes and warnings."""

    files: int
    errors: int
    warnings: int
    readable: bool


class BundledFinding(Struct, frozen=True, kw_only=True):
    id: str
    severity: Severity


class Report(Struct, frozen=True, kw_only=True):
    """``report.json``. Sizes in bytes; None means unknown."""

    versions: Versions
    findings: tuple[BundledFinding, ...]
    machine: BundledMachine | None
    system: BundledSystem
    engines: tuple[BundledEngine, ...]
    seats: tuple[BundledSeat, ...]
    models: tuple[BundledModel, ...]
    server: BundledServer | None
    config: BundledConfig | None
    not_examined: tuple[str, ...]
    environment: Mapping[str, str]


def report_of(
    facts: DoctorFacts, findings: Iterable[Finding], versions: Versions, environ: Mapping[str, str]
) -> Report:
    """Take the allowed facts out of all facts."""
    system, server, config = facts.checkup, facts.server, facts.config
    levels = [problem.level for problem in config.problems] if config is not None else []
    return Report(
        versions=structs.replace(versions, server=part(versions.server)),
        findings=tuple(BundledFinding(id=one.id, severity=one.severity) for one in findings),
        machine=_machine(facts.look) if facts.look is not None else None,
        system=BundledSystem(
            disks=tuple(BundledDisk(what=one.what, free=one.free, total=one.total) for one in system.disks),
            swap_used=system.swap_used,
            swap_total=system.swap_total,
            open_files=system.open_files,
            cores=system.cores,
            memory=system.memory,
            cards=system.cards,
            usable_device_files=sum(one.usable for one in system.device_files),
            closed_device_files=sum(not one.usable for one in system.device_files),
        ),
        engines=tuple(map(_engine, facts.engines)),
        seats=tuple(map(_seat, facts.ranked)),
        models=tuple(_models(facts)),
        server=server
        and BundledServer(answer=server.answer, engine=seat_id(server.engine), port_taken=facts.port is not None),
        config=config
        and BundledConfig(
            files=len(config.files),
            errors=levels.count("error"),
            warnings=levels.count("warning"),
            readable=not config.unreadable,
        ),
        not_examined=tuple(facts.trouble),
        environment=environment(environ),
    )


def _machine(seen: Look) -> BundledMachine:
    return BundledMachine(
        platform=part(seen.platform),
        system=part(seen.system),
        environment=part(seen.environment),
        cpu=part(seen.cpu),
        cpu_level=part(seen.cpu_level),
        cpu_features=tuple(map(part, seen.cpu_features)),
        cores=seen.cores,
        memory_total=seen.memory_total,
        memory_available=seen.memory_available,
        gpus=tuple(
            BundledGpu(
                vendor=part(gpu.vendor),
                name=part(gpu.name),
                driver=part(gpu.driver),
                driver_version=part(gpu.driver_version),
                total=gpu.total,
                free=gpu.free,
                compute=part(gpu.compute or ""),
                gfx=part(gpu.gfx or ""),
                integrated=gpu.integrated,
            )
            for gpu in seen.gpus
        ),
        loaders=tuple(part(name) for name, path in seen.loaders.items() if path),
        hidden={name: variable(name, value) for name, value in seen.hidden.items()},
        problems=len(seen.problems),
    )


def _engine(engine: Installed) -> BundledEngine:
    return BundledEngine(
        id=build_id(engine.id),
        backend=part(engine.backend),
        digest=part(engine.digest),
        damaged=bool(engine.damage),
        driver=part(engine.needs.driver),
        compute=tuple(map(part, engine.needs.compute)),
        cpu=tuple(map(part, engine.needs.cpu)),
    )


def _seat(ranked: Ranked) -> BundledSeat:
    seat = ranked.seat
    return BundledSeat(
        id=seat_id(seat.id),
        standing=ranked.standing,
        wanted=ranked.wanted,
        spare=seat.spare,
        software=seat.software,
        seconds=ranked.seconds,
    )


def _models(facts: DoctorFacts) -> Iterable[BundledModel]:
    """Return the catalog's models with their state at the server, and then those that only the server knows."""
    served = {one.id: one for one in facts.server.running} if facts.server is not None else {}
    for number, model in enumerate(numbered(facts), 1):
        fact = next((one for one in facts.models if one.id == model), ModelFact(id=model, source=""))
        running = served.get(model, Running(id=model, state=""))
        yield BundledModel(
            number=number,
            source=fact.source,
            size=fact.size,
            architecture=part(fact.architecture),
            quantisation=part(fact.quantisation),
            parameters=fact.parameters,
            context_length=fact.context_length,
            usable=not fact.error,
            fit=fact.fit,
            state=running.state if STATE.fullmatch(running.state) else SET,
            failed=bool(running.error),
            seat=seat_id(running.seat),
            layers=running.layers,
            options=options(running.command),
        )


def numbered(facts: DoctorFacts) -> list[str]:
    """Return the ids of all models in the order of their numbers, which begin at 1."""
    served = facts.server.running if facts.server is not None else ()
    return list(dict.fromkeys((*(one.id for one in facts.models), *(one.id for one in served))))
