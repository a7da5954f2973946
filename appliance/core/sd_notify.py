"""The words that a service and systemd say to each other (sd_notify(3))."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from appliance.core.whole_numbers import whole_number


class SystemdWatch(Struct, frozen=True):
    """The wishes of systemd towards a service."""

    address: str = ""
    """The socket, ``@`` in front for an abstract one; empty: nobody listens."""
    every: float | None = None
    """Seconds between two signs of life: half of what systemd waits. None: it wants none."""


def watch_of(environ: Mapping[str, str], pid: int) -> SystemdWatch:
    """Read ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``; values for another process do not count."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")) or len(address) < 2:
        return SystemdWatch()
    meant = environ.get("WATCHDOG_PID", "")
    micros = whole_number(environ.get("WATCHDOG_USEC", ""))
    return SystemdWatch(address, micros / 2_000_000 if micros and meant in ("", str(pid)) else None)


def message(**words: str | int) -> bytes:
    """Return the datagram of sd_notify(3) with these assignments; line breaks in them become spaces."""
    return "\n".join(f"{name}={' '.join(str(value).splitlines())}" for name, value in words.items()).encode()
