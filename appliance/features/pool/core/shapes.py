"""The shapes of ``/api/pool``, as the command, the page and the doctor read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from appliance.core.findings import Trouble


class PoolBus(Struct, frozen=True, kw_only=True):
    """The bus of a pool, as this box sees it. ``server`` is where it is connected to."""

    kind: Literal["none", "standalone", "voters", "external"] = "none"
    state: Literal["none", "connected", "no-quorum", "lost"] = "none"
    server: str = ""


LOADED_STATES = frozenset(("loaded", "ready", "sleeping"))  # those of llama.cpp, llama-swap and us that answer at once


class ModelState(Struct, frozen=True, kw_only=True):
    """One model of a server. ``busy`` are requests under way, queued ones included."""

    id: str
    state: str = "unloaded"
    busy: int = 0

    @property
    def loaded(self) -> bool:
        return self.state in LOADED_STATES


class PoolBox(Struct, frozen=True, kw_only=True):
    """One box of the pool, as this box sees it."""

    name: str
    addresses: Sequence[str]
    port: int
    me: bool
    up: bool | None  # None: nobody has looked yet
    voter: bool = False
    drained: bool = False
    dials_out: bool = False
    linked: bool = False
    version: str = ""
    listen: str = ""  # URL of its API, with the address that it listens on; empty: not known
    keyless: bool | None = None  # Its API asks nobody for a key. None: not known.
    beat_age: float | None = None  # seconds since its last sign of life on the bus
    queue: int = 0
    error: str | None = None
    models: Sequence[ModelState] = ()


class PoolState(Struct, frozen=True, kw_only=True):
    """``GET /api/pool``. ``pool`` is its id; None: this program is in no pool, and the rest is empty."""

    pool: str | None = None
    listen: str = ""  # URL of this server's API, with the address that it listens on, in a pool or not
    me: str = ""
    generation: int = 0
    bus: PoolBus = PoolBus()
    cut_off: bool = False
    boxes: Sequence[PoolBox] = ()
    problems: Sequence[Trouble] = ()
    may_change: bool = False  # clients of this server may change the pool over HTTP


class PoolInvitation(Struct, frozen=True, kw_only=True):
    """A code that lets one box in. ``until`` is in Unix seconds."""

    code: str
    until: float


class PoolRotation(Struct, frozen=True, kw_only=True):
    """The boxes that have the new secret, and those that could not be given it."""

    reached: Sequence[str]
    missed: Sequence[str]


class CreatePool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST /api/pool/create``. Without a name it is the host's; without addresses, those of the machine."""

    name: str | None = None
    addresses: Sequence[str] = ()
    port: int | None = None
    bus: str = ""  # URL of a NATS that is there already


class JoinPool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST /api/pool/join``; see `CreatePool`."""

    code: str
    name: str | None = None
    addresses: Sequence[str] = ()
    port: int | None = None
    dials_out: bool = False


class LeavePool(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /api/pool/leave``. Without a box this one leaves."""

    box: str | None = None


class DrainBox(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST /api/pool/drain``."""

    box: str
    drained: bool = True


class RotatePool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST /api/pool/rotate``: boxes that are not given the new secret, and leave the pool."""

    without: Sequence[str] = ()
