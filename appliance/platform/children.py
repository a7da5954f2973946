"""Child processes that never outlive this program, however it ends: the same names on every system."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from appliance.platform.windows import REAP_TIME, Child, Children, open_children
else:
    from appliance.platform.posix import REAP_TIME, Child, Children, open_children

__all__ = ["REAP_TIME", "Child", "Children", "describe_status", "open_children"]

NTSTATUS = {
    0xC0000005: "access violation",
    0xC000001D: "illegal instruction: this program is not for this processor",
    0xC0000017: "out of memory",
    0xC0000135: "a DLL it needs is missing",
    0xC0000139: "a DLL it needs is of another version",
    0xC0000142: "a DLL it needs failed to initialise",
    0xC00000FD: "stack overflow",
    0xC0000374: "heap corruption",
    0xC0000409: "aborted",
}

SIGNALS = {"SIGKILL": "out of memory?", "SIGILL": "illegal instruction: this program is not for this processor"}


def describe_status(status: int) -> str:
    """Describe an exit status: ``exit status 1``, ``killed by SIGKILL``, ``0xC0000135: a DLL it needs is missing``."""
    if sys.platform == "win32":
        code = status & 0xFFFFFFFF
        if code >= 0x80000000:
            return f"0x{code:08X}" + (f": {NTSTATUS[code]}" if code in NTSTATUS else "")
        return f"exit status {status}"
    if status >= 0:
        return f"exit status {status}"
    import signal

    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"killed by {name}" + (f" ({SIGNALS[name]})" if name in SIGNALS else "")
