"""The facts that the doctor examines, and the findings that it makes of them.

Sizes in bytes, times are Unix times; None means unknown. A finding is one thing that is wrong or worth knowing, its
evidence, and the remedy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, structs

from appliance.core.config.nodes import Problem
from appliance.core.engines.builds import BuildNeeds
from appliance.core.engines.choice import Ranked
from appliance.core.engines.offers import EngineOffer
from appliance.core.engines.state import EngineState
from appliance.core.machine_look import NOTHING, MachineLook
from appliance.core.records.activity import EndedRequests
from appliance.wire import Trouble

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
WRONG: tuple[Severity, ...] = ("error", "warning")
"""The severities that make the exit status 1. A note is informational and needs no action."""
LONGEST = 300
"""Longest line, in characters."""
SHOWN = 5
"""Largest number of lines shown."""


class Finding(Struct, frozen=True, kw_only=True):
    """``commands`` can be typed as they stand; ``advice`` is a sentence. At least one of them is set."""

    id: str
    severity: Severity
    title: str
    evidence: tuple[str, ...]
    """One line each; never empty."""
    model: str = ""
    """The model that it is about; empty: none, or many."""
    advice: str = ""
    commands: tuple[str, ...] = ()
    since: float | None = None
    """When a running server first found it; None without one."""


def dated(findings: Iterable[Finding], known: Iterable[Finding], now: float | None = None) -> tuple[Finding, ...]:
    """Return the findings, each with the time of the same one among those ``known``, else with ``now``."""
    times = {_about(finding): finding.since for finding in known}
    return tuple(structs.replace(one, since=times.get(_about(one), now)) for one in findings)


def changes(before: Sequence[Finding], after: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return the findings that came and those that went."""
    old, new = set(map(_about, before)), set(map(_about, after))
    came = [finding for finding in after if _about(finding) not in old]
    return came, [finding for finding in before if _about(finding) not in new]


def _about(finding: Finding) -> tuple[str, str]:
    """Return the subject of the finding: the evidence may change while the finding stays the same."""
    return finding.id, finding.title


def is_wrong(findings: Iterable[Finding]) -> bool:
    """True if something has to be done."""
    return any(finding.severity in WRONG for finding in findings)


def one_line(text: str) -> str:
    """Return the first line of another program's message, so that a page stays one page."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 3]}..."


def some(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the first of many lines, and the number of the others."""
    every = tuple(one_line(line) for line in lines)
    more = len(every) - SHOWN
    return every if more <= 1 else (*every[:SHOWN], f"and {more} more")


def tidied(finding: Finding) -> Finding:
    """Make every line one line, and none empty, whatever names and messages the facts contain."""
    evidence = tuple(line for line in map(one_line, finding.evidence) if line)
    return structs.replace(
        finding,
        title=one_line(finding.title),
        evidence=evidence or ("nothing more is known",),
        commands=tuple(one_line(" ".join(command.splitlines())) for command in finding.commands),
    )


Answer = Literal["answers", "absent", "refused", "other", "failed"]
"""The server's address is answered by this program; by nothing; by this program, which wants another key; by another
program; by something that accepts a connection and gives no useful answer.
"""


class Installed(Struct, frozen=True, kw_only=True):
    """One engine that was found, usable or not."""

    id: str
    backend: str
    source: str
    """Its place, in words."""
    digest: str = ""
    damage: str = ""
    needs: BuildNeeds = BuildNeeds()


class Disk(Struct, frozen=True, kw_only=True):
    """A folder that the program writes to, and the free space there."""

    what: str
    path: str
    free: int
    total: int


class BusCard(Struct, frozen=True, kw_only=True):
    """A graphics card on the bus, with or without a driver."""

    pci: str
    vendor: str
    """NVIDIA, AMD or Intel."""
    driver: str = ""
    """The kernel driver in charge of it; empty: none."""


class DeviceFile(Struct, frozen=True, kw_only=True):
    """A device file through which programs use a card."""

    path: str
    usable: bool
    """True if this user may read and write it."""
    group: str = ""


class Checkup(Struct, frozen=True, kw_only=True):
    """Facts about the system beyond `MachineLook`."""

    disks: tuple[Disk, ...] = ()
    swap_used: int = 0
    swap_total: int = 0
    open_files: int | None = None
    """Largest number of open files for this user; None: no limit, or unknown."""
    cores: int = 0
    """Cores of the machine, whatever a container allows; 0: unknown."""
    memory: int = 0
    ends_together: bool = False
    """The system ends all processes of the program's group when one of them finds no memory."""
    cards: tuple[BusCard, ...] = ()
    device_files: tuple[DeviceFile, ...] = ()


class ModelFact(Struct, frozen=True, kw_only=True):
    """One model of the catalog. ``fit`` is the fit's own verdict; empty: unknown."""

    id: str
    source: str
    path: str = ""
    size: int = 0
    error: str = ""
    fit: str = ""
    why: str = ""
    architecture: str = ""
    quantisation: str = ""
    parameters: int = 0
    context_length: int = 0
    """Number of tokens that it was trained for; 0: unknown."""


class ServedModel(Struct, frozen=True, kw_only=True):
    """One model of the running server."""

    id: str
    state: str
    error: str = ""
    """The error of its last process, if that failed."""
    command: tuple[str, ...] = ()
    """Its process's command line; for a stopped model, the command that would start it."""
    seat: str = ""
    """The id of the seat it runs on, if the server reports it."""
    layers: tuple[int, int] | None = None
    """Layers on the GPU, and in all."""
    unheeded: tuple[str, ...] = ()
    """Lines of its log that name settings without effect."""


class ServerFact(Struct, frozen=True, kw_only=True):
    """The state of the server's address. ``why`` gives the problem if it is not ``answers``."""

    url: str
    answer: Answer
    why: str = ""
    version: str = ""
    engine: str = ""
    """The id of its seat for an unknown model; empty: somebody named its engine."""
    running: tuple[ServedModel, ...] = ()
    traces: str = ""
    """The words for a collector that does not take the server's traces."""
    pool: tuple[Trouble, ...] = ()
    """Problems of this box's place in its pool."""


class Deaths(Struct, frozen=True, kw_only=True):
    """The processes of a model that died, hung or did not start lately, and the newest reason."""

    model: str
    count: int
    last: str


class TurnedAway(Struct, frozen=True, kw_only=True):
    """The requests for a model that found no room in the queue, or waited too long."""

    model: str
    count: int


class FailedDownload(Struct, frozen=True, kw_only=True):
    """A download that ended with an error and was not begun again."""

    model: str
    error: str


class Lately(Struct, frozen=True, kw_only=True):
    """The last hour of the running server: a fault that comes and goes is there at few moments."""

    requests: tuple[EndedRequests, ...] = ()
    deaths: tuple[Deaths, ...] = ()
    turned_away: tuple[TurnedAway, ...] = ()
    downloads: tuple[FailedDownload, ...] = ()


class PortOwner(Struct, frozen=True, kw_only=True):
    """The process that listens at the server's address. ``name`` is empty if the system does not report it."""

    port: int
    pid: int | None = None
    name: str = ""


class ConfigFact(Struct, frozen=True, kw_only=True):
    """The named configuration. ``unreadable`` says why it could not be read at all."""

    files: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    unreadable: str = ""


class DoctorFacts(Struct, frozen=True, kw_only=True):
    """All facts together. Unknown ones keep their defaults, so that one failure hides nothing else."""

    version: str
    now: float
    look: MachineLook | None = None
    ranked: tuple[Ranked, ...] = ()
    """Seats for an unknown model, best first; for ``model`` if one was named."""
    state: EngineState = EngineState()
    engines: tuple[Installed, ...] = ()
    offers: tuple[EngineOffer, ...] = ()
    """Builds for cards that none of the engines can use."""
    checkup: Checkup = Checkup()
    models: tuple[ModelFact, ...] = ()
    models_dir: str = ""
    notes: tuple[str, ...] = ()
    """Files and settings of models that were skipped, with the reasons."""
    versions_back: Mapping[str, str] = NOTHING
    """Versions of this program that were returned from, with the reasons."""
    config: ConfigFact | None = None
    """None: no configuration was named."""
    server: ServerFact | None = None
    lately: Lately = Lately()
    port: PortOwner | None = None
    """None: the port is free."""
    named_engine: str = ""
    """The engine that the environment (or an option) names instead of a choice."""
    named_fault: str = ""
    """The reason why no server starts with that."""
    trouble: Mapping[str, str] = NOTHING
    """Parts of the examination that failed, with the reason."""


class Examined(Struct, frozen=True, kw_only=True):
    """The output of ``doctor --json``, and of ``GET /api/doctor``. ``ok`` means that there are only notes."""

    ok: bool
    findings: tuple[Finding, ...]
    facts: DoctorFacts


class MachineLine(Struct, frozen=True, kw_only=True):
    """The output of ``doctor --line``, and of ``GET /api/doctor?line=1``. ``findings`` are ids, the worst first."""

    host: str
    version: str
    ok: bool
    errors: int
    warnings: int
    notes: int
    findings: tuple[str, ...]


def machine_line(host: str, version: str, findings: Sequence[Finding]) -> MachineLine:
    """The line of one machine in a list of many."""
    found = Counter(finding.severity for finding in findings)
    return MachineLine(
        host=host,
        version=version,
        ok=not is_wrong(findings),
        errors=found["error"],
        warnings=found["warning"],
        notes=found["note"],
        findings=tuple(finding.id for finding in findings),
    )
