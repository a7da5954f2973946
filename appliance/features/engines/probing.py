"""Asks a build for its devices, in a throw-away process."""

from __future__ import annotations

import re
import sys

from appliance.core.engine import Engine
from appliance.core.engine_output import printable
from appliance.core.rpc_workers import NO_DEBUGGER
from appliance.engines.manuals import LIMIT
from appliance.features.engines.core.listing import LOST_LIBRARY, DeviceListing, Fault, parse_listing
from appliance.platform.children import Children, describe_status, inherited_env
from appliance.platform.process import MOST, Ran, run_to_end
from appliance.trio_parts import lacking

LIST = "--list-devices"
MORE_WORDS = ("-lv", "5")
"""Before ``--list-devices``, which acts as soon as it is read: what the log then says of Vulkan and CUDA devices."""
SIGNALLED = 128  # a shell between us and the program says so much more than the signal's number


async def list_devices(engine: Engine, children: Children) -> DeviceListing:
    """Ask the build which devices it can use, within `LIMIT`. Never raises for what it does."""
    # A crash is not looked at with a debugger, which ggml starts where there is one.
    env = {**inherited_env(), **NO_DEBUGGER}
    try:
        ran = await run_to_end(children, (*engine.command, *MORE_WORDS, LIST), env, seconds=LIMIT)
        if ran.status and MORE_WORDS[0].encode() in ran.errors:  # a program that does not know how to say more
            ran = await run_to_end(children, (*engine.command, LIST), env, seconds=LIMIT)
    except (OSError, ValueError) as error:
        # A machine that has no process or file left says nothing of the build. It did not answer, as a late one.
        return DeviceListing(fault="hang" if lacking(error) else "damaged", why=f"it cannot be started: {error}")
    log = ran.errors.decode(errors="replace")
    if wrong := _wrong(ran, log):
        return DeviceListing(fault=wrong[0], why=wrong[1])
    return parse_listing(ran.output.decode(errors="replace"), log)


def _wrong(ran: Ran, log: str) -> tuple[Fault, str] | None:
    """The fault, in a word and in a line; None: it ended well."""
    if ran.flooded:
        return "list", f"it printed more than {MOST >> 20} MiB when asked for its devices"
    if ran.status is None:
        return "hang", f"it did not list its devices within {LIMIT:g} s"
    status = ran.status
    if status == 0:
        return None
    last = next((printable(line) for line in reversed(log.splitlines()) if line.strip()), "")
    lines = (*log.splitlines(), describe_status(status))
    if lost := next((line for line in lines if re.search(LOST_LIBRARY, line)), ""):
        return "missing", printable(lost)
    if status in (126, 127) and sys.platform != "win32":
        return "damaged", f"it cannot be executed: {last}"
    if sys.platform != "win32" and SIGNALLED < status <= SIGNALLED + 64:
        status = SIGNALLED - status
    how = describe_status(status)
    crashed = status < 0 or status & 0xFFFFFFFF >= 0x80000000
    return ("crash" if crashed else "list"), f"{how} when asked for its devices" + (f": {last}" if last else "")
