"""Shared by the verbs of ``engines``: this machine's engines, the running server, and sentences about them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext

import trio
from msgspec import structs

from appliance.cli.remote import NotRunning, RequestRefused, RunningServer, ServerFailed, ask, ask_raw
from appliance.cli.show import human_size
from appliance.errors import UsageError
from appliance.features.engines.core.builds import AvailableBuild, EngineOffer, unmet
from appliance.features.engines.core.standing import Proof
from appliance.features.engines.found import list_engines
from appliance.features.engines.installing import system_versions
from appliance.features.engines.owner import Engines
from appliance.features.engines.shelf import Shelf
from appliance.features.engines.source import FoundHere
from appliance.features.engines.table import Table
from appliance.platform.console import say
from appliance.platform.home import engines_folder
from appliance.store.shelf import alone
from appliance.trio_parts import plain_nursery

PROBE_TIME = 300.0  # seconds that a running server gets to look at all its builds again


@asynccontextmanager
async def opened(shelf: Shelf) -> AsyncGenerator[Engines]:
    """Return this machine's engines, after a look at them if drivers have changed or a build is new since the last."""
    try:
        await trio.to_thread.run_sync(shelf.recover)
    except OSError as cause:
        say(f"note: the remains of an update or an installation cannot be removed: {cause}")
    async with plain_nursery(), FoundHere(list_engines, shelf.root).open() as engines:
        if engines.look is None or engines.unlisted:
            await engines.probe()
        yield engines


@asynccontextmanager
async def followed(server: RunningServer, *, changes: bool = True) -> AsyncGenerator[Engines]:
    """The same for a block that learns something of engines: a running server looks at them again afterwards.

    A block that ``changes`` builds, or the choice among them, is the only one at a time.
    """
    shelf = Shelf(engines_folder())
    async with alone(shelf) if changes else nullcontext(), opened(shelf) as owner:
        yield owner
    await refresh_server(server)


async def server_table(server: RunningServer) -> Table | None:
    """Return a running server's view, or None if no server runs, or another program. A named server must answer."""
    try:
        answer = await ask(server, "GET", "/api/engines", Table)
    except (NotRunning, RequestRefused, ServerFailed):
        if server.named:
            raise
        return None
    return structs.replace(answer, server=server.url)


async def refresh_server(server: RunningServer) -> None:
    """Make a running server look at builds and state again. It is not an error if no server runs."""
    try:
        await ask_raw(server, "POST", "/api/engines/probe", patience=PROBE_TIME)
    except NotRunning:
        return
    except (RequestRefused, ServerFailed) as cause:
        say(f"note: the running server could not be notified: {cause}; restart it to use the change")


def print_proof(proof: Proof) -> None:
    """Describe a proof in one line."""
    speeds = f", at {proof.shown_speeds} tokens/s (prompt and answer)" if proof.nominal_seconds else ""
    say(f"  {proof.build} on {proof.device}: {f'works{speeds}' if proof.ok else f'FAILED: {proof.why}'}")


def offer_in_words(offer: EngineOffer) -> str:
    """Describe what a card could have, in a sentence."""
    why = f" ({'; '.join(offer.problems)})" if offer.problems else ""
    if not offer.word:
        return f"{offer.card} computes nothing here, and no listed build can use it{why}"
    size = f", {human_size(offer.size)}" if offer.size else ""
    return f"{offer.card} computes nothing here: {offer.build} can use it{size}{why}; 'engines install {offer.word}'"


def check_needs(entry: AvailableBuild, owner: Engines, force: bool) -> None:
    """Raises UsageError for a build that cannot run here."""
    if owner.look is None or force:
        return
    if problems := unmet(entry.needs, entry.backend, entry.platform, owner.look, **system_versions()):
        raise UsageError(f"{entry.id} cannot run here: {'; '.join(problems)} (--force installs it anyway)")
