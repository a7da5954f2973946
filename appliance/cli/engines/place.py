"""Shared by the verbs of ``engines``: the folder of builds, what is remembered, the running server."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import trio
from msgspec import structs

from appliance.catalog.sources import STARTER
from appliance.cli.remote import NotRunning, Refused, Server, ServerFailed, ask, ask_raw
from appliance.core.engines.choice import Ranked, Seat
from appliance.core.engines.proofs import Proof
from appliance.core.engines.state import line_of
from appliance.engines.found import ENGINE_VARIABLE, Places, installed_folder, list_engines
from appliance.engines.owner import Engines, open_engines
from appliance.engines.shelf import MAKE_ROOM, Shelf
from appliance.engines.table import Table, table
from appliance.errors import UsageError
from appliance.platform.console import say
from appliance.trio_parts import plain_nursery

PROBE_TIME = 300.0
"""Seconds that a running server gets to look at all its builds again."""


def own_shelf() -> Shelf:
    return Shelf(installed_folder())


@asynccontextmanager
async def opened(shelf: Shelf) -> AsyncGenerator[Engines]:
    """Return this machine's engines, after a look at them if there was none since the drivers changed."""
    try:
        await trio.to_thread.run_sync(shelf.recover)
    except OSError as cause:
        say(f"note: the remains of an update or an installation cannot be removed: {cause}")
    find = partial(list_engines, Places.of_this_machine())
    async with plain_nursery(), open_engines(find, shelf.state, starter=STARTER) as engines:
        if engines.look is None:
            await engines.probe()
        yield engines


async def keep(shelf: Shelf, engines: Engines) -> None:
    """Make sure that everything is in the file, or raise OSError."""
    await engines.sync()
    if not engines.is_saved:
        raise OSError(None, f"nothing has changed: {shelf.state.path} cannot be written; {MAKE_ROOM}")


async def own_table(engines: Engines) -> Table:
    """Return the engines' standing without a server."""
    await engines.sync()
    return table(engines.engines, engines.ranked(), engines.state, running={}, now=time.time())


async def server_table(server: Server, method: str = "GET", path: str = "/api/engines") -> Table | None:
    """Return a running server's view, or None if no server runs, or another program. A named server must answer."""
    try:
        answer = await ask(server, method, path, Table)
    except (NotRunning, Refused, ServerFailed):
        if server.named:
            raise
        return None
    return structs.replace(answer, server=server.url)


async def tell_server(server: Server) -> None:
    """Make a running server look at builds and state again. It is not an error if no server runs."""
    try:
        await ask_raw(server, "POST", "/api/engines/probe", patience=PROBE_TIME)
    except NotRunning:
        return
    except (Refused, ServerFailed) as cause:
        say(f"note: the running server could not be notified: {cause.message}; restart it to use the change")


def seats_named(engines: Engines, names: tuple[str, ...]) -> list[Seat]:
    """Return the seats with these ids, of these builds, or of a backend. Raises UsageError."""
    found: dict[str, Seat] = {}
    for name in names:
        named = {seat.id: seat for seat in engines.seats if name in (seat.id, seat.build, seat.backend)}
        if not named:
            known = ", ".join(seat.id for seat in engines.seats) or "none"
            raise UsageError(f"there is no engine '{name}' here; there is {known}")
        found |= named
    return list(found.values())


def in_use(ranked: list[Ranked], line: str) -> Ranked | None:
    """Return the best usable seat of a line."""
    return next((one for one in ranked if one.usable and line_of(one.seat.build) == line), None)


def say_proof(proof: Proof) -> None:
    """Describe a proof in one line."""
    if not proof.ok:
        say(f"  {proof.build} on {proof.device}: FAILED: {proof.why}")
    elif proof.nominal_seconds:
        speeds = f"{proof.shown_speeds} tokens/s (prompt and answer)"
        say(f"  {proof.build} on {proof.device}: works, at {speeds}")
    else:
        say(f"  {proof.build} on {proof.device}: works")


def note_named_engine(environ: dict[str, str]) -> None:
    """Warn that choices made here do not apply to servers with a named engine."""
    if named := environ.get(ENGINE_VARIABLE):
        say(f"note: {ENGINE_VARIABLE}={named} overrides every choice made here")
