"""Which devices a build can use: the build itself is asked, in a throw-away process."""

from __future__ import annotations

import sys

from msgspec import structs

from appliance.core.engines.listing import Listing, parse_listing, printable
from appliance.core.engines.proofs import Fault
from appliance.core.engines.stands_for import NO_DEBUGGER
from appliance.engines.found import Engine
from appliance.platform.children import Children, describe_status
from appliance.platform.env import inherited_env
from appliance.platform.throwaway import MOST, Ran, run_to_end

LIMIT = 90.0 if sys.platform == "win32" else 30.0
"""Seconds. Virus scanners read a build of half a gigabyte before its first start on Windows."""
LIST = "--list-devices"
MORE_WORDS = ("-lv", "5")
"""Before ``--list-devices``, which acts as soon as it is read: what the log then says of Vulkan and CUDA devices."""
SIGNALLED = 128
"""A shell between us and the program says so much more than the signal's number."""
LOST_DLLS = (0xC0000135, 0xC0000139, 0xC0000142)
LOST_LIBRARY = ("error while loading shared libraries", "Library not loaded", "symbol lookup error")


async def list_devices(engine: Engine, children: Children, *, seconds: float | None = None) -> Listing:
    """Ask the build which devices it can use, within ``seconds`` or else `LIMIT`. Never raises for what it does."""
    limit = LIMIT if seconds is None else seconds
    listing, ran = await _ask(engine, children, MORE_WORDS, limit)
    if ran is not None and ran.status and MORE_WORDS[0] in ran.errors.decode(errors="replace"):
        again, _ = await _ask(engine, children, (), limit)  # a program that does not know how to say more
        return structs.replace(again, seconds=again.seconds + listing.seconds)
    return listing


async def _ask(engine: Engine, children: Children, words: tuple[str, ...], limit: float) -> tuple[Listing, Ran | None]:
    # A crash is not looked at with a debugger, which ggml starts where there is one.
    env = {**inherited_env(), **NO_DEBUGGER}
    try:
        ran = await run_to_end(children, (*engine.command, *words, LIST), env, seconds=limit)
    except (OSError, ValueError) as error:
        return Listing(fault="damaged", why=f"it cannot be started: {error}"), None
    log = ran.errors.decode(errors="replace")
    wrong = _wrong(ran, log, limit)
    if wrong is None:
        listing = parse_listing(ran.output.decode(errors="replace"), log)
    else:
        listing = Listing(fault=wrong[0], why=wrong[1])
    return structs.replace(listing, seconds=ran.seconds), ran


def _wrong(ran: Ran, log: str, limit: float) -> tuple[Fault, str] | None:
    """What went wrong, in a word and in a line; None: it ended well."""
    if ran.flooded:
        return "list", f"it printed more than {MOST >> 20} MiB when asked for its devices"
    if ran.status is None:
        return "hang", f"it did not list its devices within {limit:g} s"
    status = ran.status
    if status == 0:
        return None
    last = next((printable(line) for line in reversed(log.splitlines()) if line.strip()), "")
    if lost := next((line for line in log.splitlines() if any(words in line for words in LOST_LIBRARY)), ""):
        return "missing", printable(lost)
    if status & 0xFFFFFFFF in LOST_DLLS:
        return "missing", describe_status(status)
    if status in (126, 127) and sys.platform != "win32":
        return "damaged", f"it cannot be executed: {last}"
    if sys.platform != "win32" and SIGNALLED < status <= SIGNALLED + 64:
        status = SIGNALLED - status
    how = describe_status(status)
    crashed = status < 0 or status & 0xFFFFFFFF >= 0x80000000
    return ("crash" if crashed else "list"), f"{how} when asked for its devices" + (f": {last}" if last else "")
