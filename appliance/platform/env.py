"""The environment a child process starts with."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

SCRUBBED = ("LLAMA_API_KEY", "LLAMA_APP_CMD", "LLAMA_SERVER_ROUTER_PORT", "LLAMA_SERVER_CHILD_MODE")
OWN_PREFIX = "LLAMA_APPLIANCE_"
SCRUBBED_PREFIXES = ("LLAMA_ARG_", OWN_PREFIX, "AIP_", "_PYI_")
"""Settings meant for this program.

A child that read them would move its port or ask for a key nobody has (``AIP_HTTP_PORT`` overrides ``--port``). Names,
not every ``LLAMA_*``: ``LLAMA_MEDIA_MARKER`` must reach the child.
"""

LOADER_PATHS = ("LD_LIBRARY_PATH", "LIBPATH", "DYLD_LIBRARY_PATH")


def is_frozen() -> bool:
    """True if PyInstaller's bootloader has started this program."""
    return bool(getattr(sys, "frozen", False))


def inherited_env() -> dict[str, str]:
    """Return a child's environment made from this program's own: see `child_env`."""
    return child_env(os.environ, frozen=is_frozen())


def child_env(environ: Mapping[str, str], *, frozen: bool) -> dict[str, str]:
    """Return ``environ`` as it was before this program: without our settings and the bootloader's library path.

    When frozen, the bootloader has put its own folder in front of ``LD_LIBRARY_PATH`` and kept the old value in
    ``LD_LIBRARY_PATH_ORIG`` (PyInstaller manual, "LD_LIBRARY_PATH considerations"); with no old value it is removed.
    """
    env = {
        name: value
        for name, value in environ.items()
        if name not in SCRUBBED and not name.upper().startswith(SCRUBBED_PREFIXES)
    }
    return _restored(env) if frozen else env


def own_env(environ: Mapping[str, str], *, frozen: bool) -> dict[str, str]:
    """Return ``environ`` for a command of the user's own, without this program's settings, among them its key.

    The additions of PyInstaller's bootloader are taken back.
    """
    env = {name: value for name, value in environ.items() if not name.upper().startswith(OWN_PREFIX)}
    return _restored(env) if frozen else env


def _restored(env: dict[str, str]) -> dict[str, str]:
    for name in LOADER_PATHS:
        original = env.pop(f"{name}_ORIG", None)
        env.pop(name, None)
        if original is not None:
            env[name] = original
    return {name: value for name, value in env.items() if not name.startswith("_PYI_")}
