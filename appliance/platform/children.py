"""Child processes that never outlive this program, however it ends, and their environment: the same on every system."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from appliance.platform.console import is_frozen, without_bootloader

if sys.platform == "win32":
    from appliance.platform.windows import REAP_TIME, SHELL, Child, Children, open_children
else:
    from appliance.platform.posix import REAP_TIME, SHELL, Child, Children, open_children

__all__ = [
    "REAP_TIME", "SHELL", "Child", "Children", "child_env", "describe_status", "inherited_env", "open_children",
    "own_env", "own_process",
]  # fmt: skip

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
SCRUBBED = ("LLAMA_API_KEY", "LLAMA_APP_CMD", "LLAMA_SERVER_ROUTER_PORT", "LLAMA_SERVER_CHILD_MODE")
OWN_PREFIX = "LLAMA_APPLIANCE_"
SCRUBBED_PREFIXES = ("LLAMA_ARG_", OWN_PREFIX, "AIP_", "_PYI_")
"""Settings meant for this program.

A child that read them would move its port or ask for a key nobody has (``AIP_HTTP_PORT`` overrides ``--port``). Names,
not every ``LLAMA_*``: ``LLAMA_MEDIA_MARKER`` must reach the child.
"""


def own_process(module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``main`` of one of the program's own modules in another process.

    Isolated, so that nothing in the working directory is taken for a module. ``packaging/entry.py`` is the other side
    of it in the frozen program, which runs the modules whose names end as these do.
    """
    return [sys.executable, *(["--own-process"] if is_frozen() else ["-I", "-m"]), module, *arguments]


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


def inherited_env() -> dict[str, str]:
    """Return a child's environment made from this program's own: see `child_env`."""
    return child_env(os.environ, frozen=is_frozen())


def child_env(environ: Mapping[str, str], *, frozen: bool) -> dict[str, str]:
    """Return ``environ`` as it was before this program: without our settings and the bootloader's library path."""
    env = {
        name: value
        for name, value in environ.items()
        if name not in SCRUBBED and not name.upper().startswith(SCRUBBED_PREFIXES)
    }
    return without_bootloader(env) if frozen else env


def own_env(environ: Mapping[str, str], *, frozen: bool) -> dict[str, str]:
    """Return ``environ`` for a command of the user's own: without this program's settings, its key among them."""
    env = {name: value for name, value in environ.items() if not name.upper().startswith(OWN_PREFIX)}
    return without_bootloader(env) if frozen else env
