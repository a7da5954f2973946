"""Everything that the doctor knows before it thinks. Sizes in bytes, times are Unix times; None: could not be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from appliance.core.config.nodes import Problem
from appliance.core.engines.book import Book
from appliance.core.engines.builds import Needs
from appliance.core.engines.choice import Ranked
from appliance.core.engines.machine import NOTHING, Look

Answer = Literal["answers", "absent", "refused", "other", "failed"]
"""What is behind the server's address: this program; nothing; this program, which wants another key; another program;
something that takes a connection and says nothing of use."""


class Installed(Struct, frozen=True, kw_only=True):
    """One engine that was found, whether it can be used or not."""

    id: str
    backend: str
    source: str
    """Where it was found, in words."""
    digest: str = ""
    damage: str = ""
    needs: Needs = Needs()


class Disk(Struct, frozen=True, kw_only=True):
    """A folder that the program writes to, and what is free where it lies."""

    what: str
    path: str
    free: int
    total: int


class Card(Struct, frozen=True, kw_only=True):
    """A graphics card as the bus shows it, with or without a driver."""

    pci: str
    vendor: str
    """NVIDIA, AMD or Intel."""
    driver: str = ""
    """The kernel's driver that holds it; empty: none does."""


class DeviceFile(Struct, frozen=True, kw_only=True):
    """A file by which programs reach a card."""

    path: str
    usable: bool
    """This user may read and write it."""
    group: str = ""


class Checkup(Struct, frozen=True, kw_only=True):
    """What the system tells beyond `Look`."""

    disks: tuple[Disk, ...] = ()
    swap_used: int = 0
    swap_total: int = 0
    open_files: int | None = None
    """The most that this user may have open; None: no limit, or none that is told."""
    cores: int = 0
    """Of the machine, whatever a container allows; 0: not told."""
    memory: int = 0
    cards: tuple[Card, ...] = ()
    device_files: tuple[DeviceFile, ...] = ()


class ModelFact(Struct, frozen=True, kw_only=True):
    """One model of the catalog. ``fit`` says whether it has room here, in the fit's own words; empty: not told."""

    id: str
    source: str
    path: str = ""
    size: int = 0
    error: str = ""
    fit: str = ""
    why: str = ""


class Running(Struct, frozen=True, kw_only=True):
    """One model of the running server."""

    id: str
    state: str
    error: str = ""
    """Why its last process failed, where the last one did."""
    command: tuple[str, ...] = ()
    """Its process's command line; of one that does not run, what would be started."""
    seat: str = ""
    """The id of the seat it runs on, where the server tells it."""
    layers: tuple[int, int] | None = None
    """On the GPU, and in all."""


class ServerFact(Struct, frozen=True, kw_only=True):
    """What is found at the server's address. ``why`` says what is wrong where it is not ``answers``."""

    url: str
    answer: Answer
    why: str = ""
    version: str = ""
    engine: str = ""
    """The id of the seat that it gives a model of which nothing is known; empty: it was told which engine to use."""
    running: tuple[Running, ...] = ()


class PortOwner(Struct, frozen=True, kw_only=True):
    """Which process listens where the server would. ``name`` is empty where the system does not tell."""

    port: int
    pid: int | None = None
    name: str = ""


class ConfigFact(Struct, frozen=True, kw_only=True):
    """The configuration that was named. ``unreadable`` says why it could not be read at all."""

    files: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    unreadable: str = ""


class DoctorFacts(Struct, frozen=True, kw_only=True):
    """The whole. What could not be found out has its default, so that one sick part hides no other."""

    version: str
    now: float
    look: Look | None = None
    ranked: tuple[Ranked, ...] = ()
    """Seats for a model of which nothing is known, best first; for ``model`` where one was named."""
    book: Book = Book()
    engines: tuple[Installed, ...] = ()
    checkup: Checkup = Checkup()
    models: tuple[ModelFact, ...] = ()
    models_dir: str = ""
    config: ConfigFact | None = None
    """None: no configuration was named."""
    server: ServerFact | None = None
    port: PortOwner | None = None
    """None: the port is free."""
    named_engine: str = ""
    """What the environment (or an option) names in place of a choice."""
    named_fault: str = ""
    """Why no server starts with that."""
    trouble: Mapping[str, str] = NOTHING
    """Parts of the examination that failed, with the reason."""
