"""What `engines.looking` and the process that it starts (`engines.machine_process`) say to each other."""

from __future__ import annotations

import sys

from msgspec import Struct

from appliance.core.engines.machine import Look

WORD = "--machine-process"
"""What makes the frozen program this one."""
NVML_STAGE = "nvml"
STAGES = ("system", NVML_STAGE, "nvidia", "amd", "intel", "apple", "loaders", "problems")


class Order(Struct, frozen=True):
    """What is asked for. ``without`` names stages that are left out, as they ended the process before."""

    without: tuple[str, ...] = ()
    root: str = "/"


class Stage(Struct, frozen=True, tag=True):
    """It begins now."""

    name: str


class Seen(Struct, frozen=True, tag=True):
    """The end."""

    look: Look


Told = Stage | Seen


def command() -> list[str]:
    """How the program starts it: isolated, so that nothing in the working directory is taken for a module."""
    if getattr(sys, "frozen", False):
        return [sys.executable, WORD]
    return [sys.executable, "-I", "-m", "appliance.engines.machine_process"]
