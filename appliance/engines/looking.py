"""One look at the machine, by a process that its drivers may crash (`engines.machine_process`)."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping

import msgspec
from msgspec import structs

from appliance.core.engines.builds import platform_of
from appliance.core.engines.listing import printable
from appliance.core.engines.machine import Look
from appliance.engines.machine_words import STAGES, Order, Seen, Stage, Told, command
from appliance.platform.children import Children, describe_status
from appliance.platform.env import inherited_env
from appliance.platform.throwaway import Ran, run_to_end

LIMIT = 30.0 if sys.platform == "win32" else 10.0
"""Seconds for one process; a driver that is asked for the first time may take three to wake a card."""
WHOSE = {
    "nvml": "NVIDIA's driver library (NVML)",
    "nvidia": "NVIDIA's driver",
    "amd": "AMD's driver",
    "intel": "Intel's driver",
    "apple": "Metal",
    "loaders": "the list of GPU libraries",
    "problems": "the list of cards",
}

_TOLD: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)


async def look(
    children: Children, *, seconds: float = LIMIT, root: str = "/", env: Mapping[str, str] | None = None
) -> Look:
    """What the machine is. ``seconds`` are those of one process; each driver that kills or stops one costs another.

    Never an error: a driver that does not answer is one of the look's problems, by name. ``root`` is where the
    system's files are looked for.
    """
    without: list[str] = []
    problems: list[str] = []
    while True:
        try:
            order = msgspec.json.encode(Order(tuple(without), root))
            ran = await run_to_end(children, command(), env or inherited_env(), seconds=seconds, stdin=order)
        except OSError as error:
            return _blind(f"the process that looks at the machine cannot be started: {error}")
        stage, seen = _told(ran.output)
        if seen is not None:
            return structs.replace(seen, problems=(*problems, *seen.problems))
        how = _how(ran, seconds)
        if stage not in WHOSE or stage in without:
            return _blind(f"the machine could not be looked at: {how}", *problems)
        without.append(stage)
        problems.append(f"{WHOSE[stage]} {how} when asked for its cards, and is left out")


def _told(output: bytes) -> tuple[str, Look | None]:
    """The last stage that began, and the look if there is one."""
    stage = STAGES[0]
    for line in output.split(b"\n"):
        try:
            told = _TOLD.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue  # a driver that prints something
        match told:
            case Stage(name):
                stage = name
            case Seen(seen):
                return stage, seen
    return stage, None


def _how(ran: Ran, seconds: float) -> str:
    if ran.flooded:
        return "printed without end"
    if ran.status is None:
        return f"did not answer within {seconds:g} s"
    last = ran.errors.decode(errors="replace").strip().rpartition("\n")[2]
    return f"ended its process ({describe_status(ran.status)}{': ' + printable(last) if last else ''})"


def _blind(*problems: str) -> Look:
    """What can be told without looking."""
    return Look(
        platform=platform_of(sys.platform, platform.machine()),
        system=f"{platform.system()} {platform.release()}",
        environment="unknown",
        cpu=platform.machine(),
        cores=os.cpu_count() or 1,
        problems=problems,
    )
