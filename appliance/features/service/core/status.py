"""The state of a service, of whichever service manager."""

from __future__ import annotations

from msgspec import Struct


class ServiceStatus(Struct, frozen=True, kw_only=True):
    """The program's service as the operating system sees it. ``state``: active, activating, inactive, failed ..."""

    installed: bool = False
    enabled: bool = False
    state: str
    detail: str = ""
    pid: int | None = None
    restarts: int = 0
    said: str = ""
    """The program's last report."""
    unit: str
    """Its entry: the unit's file, or the command line."""
