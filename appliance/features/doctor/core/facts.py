"""The facts that the doctor examines.

Sizes in bytes, times are Unix times; None means unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from appliance.core.builds import BuildNeeds
from appliance.core.config.nodes import Problem
from appliance.core.engines.choice import Ranked
from appliance.core.engines.offers import EngineOffer
from appliance.core.engines.state import EngineState
from appliance.core.machine_look import NOTHING, Gpu, MachineLook
from appliance.core.records.activity import EndedRequests
from appliance.features.doctor.core.findings import Finding
from appliance.wire import Trouble

Answer = Literal["answers", "absent", "refused", "other", "failed"]
"""The server's address is answered by this program; by nothing; by this program, which wants another key; by another
program; by something that accepts a connection and gives no useful answer.
"""


class Installed(Struct, frozen=True, kw_only=True):
    """One engine that was found, usable or not."""

    id: str
    backend: str
    source: str  # its place, in words
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
    vendor: str  # NVIDIA, AMD or Intel
    driver: str = ""  # the kernel driver in charge of it; empty: none


class DeviceFile(Struct, frozen=True, kw_only=True):
    """A device file through which programs use a card."""

    path: str
    usable: bool  # true if this user may read and write it
    group: str = ""


class Checkup(Struct, frozen=True, kw_only=True):
    """Facts about the system beyond `MachineLook`."""

    disks: tuple[Disk, ...] = ()
    swap_used: int = 0
    swap_total: int = 0
    open_files: int | None = None  # largest number of open files for this user; None: no limit, or unknown
    cores: int = 0  # cores of the machine, whatever a container allows; 0: unknown
    memory: int = 0
    ends_together: bool = False  # the system ends all processes of the program's group when one of them finds no memory
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
    context_length: int = 0  # number of tokens that it was trained for; 0: unknown


class ServedModel(Struct, frozen=True, kw_only=True):
    """One model of the running server."""

    id: str
    state: str
    error: str = ""  # the error of its last process, if that failed
    command: tuple[str, ...] = ()  # its process's command line; for a stopped model, the command that would start it
    seat: str = ""  # the id of the seat it runs on, if the server reports it
    layers: tuple[int, int] | None = None  # layers on the GPU, and in all
    unheeded: tuple[str, ...] = ()  # lines of its log that name settings without effect


class ServerFact(Struct, frozen=True, kw_only=True):
    """The state of the server's address. ``why`` gives the problem if it is not ``answers``."""

    url: str
    answer: Answer
    why: str = ""
    version: str = ""
    engine: str = ""  # the id of its seat for an unknown model; empty: somebody named its engine
    running: tuple[ServedModel, ...] = ()
    traces: str = ""  # the words for a collector that does not take the server's traces
    pool: tuple[Trouble, ...] = ()  # problems of this box's place in its pool


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
    ranked: tuple[Ranked, ...] = ()  # seats for an unknown model, best first; for ``model`` if one was named
    state: EngineState = EngineState()
    engines: tuple[Installed, ...] = ()
    offers: tuple[EngineOffer, ...] = ()  # builds for cards that none of the engines can use
    checkup: Checkup = Checkup()
    models: tuple[ModelFact, ...] = ()
    models_dir: str = ""
    notes: tuple[str, ...] = ()  # files and settings of models that were skipped, with the reasons
    versions_back: Mapping[str, str] = NOTHING  # versions of this program that were returned from, with the reasons
    config: ConfigFact | None = None  # None: no configuration was named
    server: ServerFact | None = None
    lately: Lately = Lately()
    port: PortOwner | None = None  # None: the port is free
    named_engine: str = ""  # the engine that the environment (or an option) names instead of a choice
    named_fault: str = ""  # the reason why no server starts with that
    trouble: Mapping[str, str] = NOTHING  # parts of the examination that failed, with the reason

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.look.gpus if self.look is not None else ()

    @property
    def running(self) -> tuple[ServedModel, ...]:
        """The models of the server; of none where none answers."""
        return self.server.running if self.server is not None else ()


class Examined(Struct, frozen=True, kw_only=True):
    """The output of ``doctor --json``, and of ``GET /api/doctor``. ``ok`` means that there are only notes."""

    ok: bool
    findings: tuple[Finding, ...]
    facts: DoctorFacts
