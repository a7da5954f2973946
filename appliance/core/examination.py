"""The facts that are known when the program is examined (feature ``doctor``), and the part of a feature in that.

Each feature gathers its facts, from a running server's owners or, for a command without a server, from what is on this
machine. Facts travel: a command reads those of a server, and makes findings of them with what its own options add. So
findings are made of facts alone, and never fail. Sizes in bytes, times are Unix times; None means unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

from appliance.core.config.nodes import Problem
from appliance.core.findings import Told, Trouble
from appliance.core.machine_look import NOTHING, Gpu, MachineLook
from appliance.core.records.activity import EndedRequests

Answer = Literal["answers", "absent", "refused", "other", "failed"]
"""The server's address is answered by this program; by nothing; by this program, which wants another key; by another
program; by something that accepts a connection and gives no useful answer.
"""


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
    why: str = ""  # the reason of ``fit``
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


class Known(Struct, frozen=True, kw_only=True):
    """The facts that all share. Unknown ones keep their defaults, so that one failure hides nothing else."""

    version: str
    now: float
    look: MachineLook | None = None
    checkup: Checkup = Checkup()
    models: tuple[ModelFact, ...] = ()
    models_dir: str = ""
    notes: tuple[str, ...] = ()  # files and settings of models that were skipped, with the reasons
    config: ConfigFact | None = None  # None: no configuration was named
    server: ServerFact | None = None
    lately: Lately = Lately()
    port: PortOwner | None = None  # None: the port is free
    trouble: Mapping[str, str] = NOTHING  # parts of the examination that failed, with the reason

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.look.gpus if self.look is not None else ()

    @property
    def running(self) -> tuple[ServedModel, ...]:
        """The models of the server; of none where none answers."""
        return self.server.running if self.server is not None else ()

    def without(self, part: str, cause: Exception) -> Known:
        """Return the same, and that this part could not be examined."""
        why = " ".join(str(cause).split()) or type(cause).__name__
        return structs.replace(self, trouble={**self.trouble, part: why})


class OwnFacts(Struct, frozen=True, kw_only=True):
    """The facts of one feature: in JSON they stand beside those of `Known`, so that no two have the same name.

    The methods are pure, and add nothing unless they are overridden.
    """

    def findings(self, known: Known) -> Sequence[Told]:
        return ()

    def headlines(self, known: Known) -> Sequence[tuple[str, str]]:
        """Return names and states at the head of the page, one line each."""
        return ()

    def reported(self) -> Mapping[str, object]:
        """Return members of a support bundle's report: no text that a user, a model or an engine wrote."""
        return {}


class Examiner(Struct, frozen=True, kw_only=True):
    """One feature's part of an examination.

    ``look`` gathers facts: it returns its own, and what is known with what it adds to that. Its string is the model
    that is asked about; empty: any. Where it raises ApplianceError, OSError, psutil.Error or ValueError, a finding
    names ``part`` with the reason, and the rest is examined. ``folders`` are those that the feature writes to, by their
    content.
    """

    part: str  # in words: the doctor could not look at ...
    facts: type[OwnFacts] = OwnFacts
    look: Callable[[Known, str], Awaitable[tuple[Known, OwnFacts]]] | None = None
    folders: Callable[[], Mapping[str, Path]] = dict
