"""Asks a build for its options, in a throw-away process."""

from __future__ import annotations

import sys

from appliance.core.engine import Engine, Manual
from appliance.core.engine_output import parse_manual
from appliance.platform.children import Children, inherited_env, open_children
from appliance.platform.process import run_to_end
from appliance.trio_parts import lacking

LIMIT = 90.0 if sys.platform == "win32" else 30.0
"""Seconds. Virus scanners read a build of half a gigabyte before its first start on Windows."""
HELP = "--help"


async def manual_of(engine: Engine) -> Manual:
    """Return the remembered manual at once; else ask the engine, which takes less than a second."""
    if engine.manual is not None:
        return engine.manual
    async with open_children() as children:
        return await read_manual(engine, children) or Manual()


async def read_manual(engine: Engine, children: Children) -> Manual | None:
    """Ask the build for its options. Never raises for what it does; a build that does not say has none.

    None: the build did not answer in time, or the machine had no process left to ask it.
    """
    try:
        ran = await run_to_end(children, (*engine.command, HELP), inherited_env(), seconds=LIMIT)
    except (OSError, ValueError) as error:
        return None if lacking(error) else Manual()
    if ran.status is None and not ran.flooded:
        return None
    return parse_manual(ran.output.decode(errors="replace")) if ran.status == 0 else Manual()
