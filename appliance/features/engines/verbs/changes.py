"""``engines install``, ``use``, ``pin``, ``remove``, ``rollback``: the user decides which builds there are and serve"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import click
import trio

from appliance.cli.remote import RunningServer, home_options
from appliance.engines.builds import check_build
from appliance.errors import UsageError
from appliance.features.engines.choosing import keep, prefer, roll_back
from appliance.features.engines.core.builds import AvailableBuild
from appliance.features.engines.core.choice import AUTO, EngineWish, Ranked
from appliance.features.engines.core.events import BuildRemoved
from appliance.features.engines.core.state import check_removable
from appliance.features.engines.installing import check_sums, offers_here
from appliance.features.engines.installing import install as put
from appliance.features.engines.owner import Engines
from appliance.features.engines.shelf import Shelf
from appliance.features.engines.verbs.sources import (
    FROM_HELP,
    check_needs,
    fetch_archive,
    offer_in_words,
    opened,
    own_shelf,
    print_proof,
    refresh_server,
    server_table,
    sources_of,
)
from appliance.platform.console import EXIT_OURS, can_ask, say, say_error
from appliance.platform.machine import this_platform
from appliance.store.shelf import CannotInstall, alone

T = TypeVar("T")


@click.command()
@click.argument("word", metavar="[BACKEND|BUILD]", required=False)
@click.option("--from", "source", metavar="DIR|ARCHIVE|URL", help=FROM_HELP)
@click.option("--sha256", metavar="SUM", help="The SHA-256 of the file that --from names.")
@click.option(
    "--platform",
    "for_platform",
    metavar="PLATFORM",
    default=this_platform,
    help="For another machine, such as windows-x64.",
)
@click.option(
    "--force", is_flag=True, help="Install even if this machine does not meet the build's stated requirements."
)
@home_options
async def install(
    server: RunningServer,
    word: str | None,
    source: str | None,
    sha256: str | None,
    for_platform: str,
    force: bool,
) -> int:
    """Install a build of llama.cpp beside the others, and try it. Without a word: the best one for a card without.

    It is used when it is the best, or after 'engines use'. An interrupted download resumes where it stopped. Nothing
    else changes.

    \b
    Examples:
      llama-appliance engines install vulkan
      llama-appliance engines install cuda12 --from /media/usb/builds
      llama-appliance engines install cpu --from llama-b11434-bin-ubuntu-x64.tar.gz
    """
    shelf = own_shelf()
    if word is None and source is None and for_platform == this_platform():
        word = await _offered(shelf)
    try:
        sources = await trio.to_thread.run_sync(sources_of, word, source, for_platform, sha256)
        entry = sources.entry
        if entry.platform != for_platform:
            raise UsageError(f"this build is for {entry.platform}; --platform {entry.platform} installs it anyway")
        async with alone(shelf), opened(shelf) as owner:
            if await _is_here(shelf, entry) and not force:
                await trio.to_thread.run_sync(check_sums, sources, sources.files, trio.from_thread.check_cancelled)
                given = source is not None and "://" in source
                say(f"{entry.id} is installed already, and complete{f'; {source} was not fetched' if given else ''}")
                if entry.platform != this_platform():
                    return 0
                standings = {one.standing for one in owner.ranked() if one.seat.build == entry.id}
                if "proven" in standings:
                    return 0
                if standings and "untried" not in standings:
                    return _does_not_work(entry)
            else:
                if entry.platform == this_platform():
                    check_needs(entry, owner, force)
                place = await put(shelf, sources, fetch_archive)
                say(f"{entry.id} is in {place}")
                if entry.platform != this_platform():
                    return 0
            ok = await _prove(owner, entry.id)
    except CannotInstall as cause:
        return say_error(str(cause), EXIT_OURS)
    await refresh_server(server)
    click.echo(entry.id)
    return 0 if ok else _does_not_work(entry)


async def _offered(shelf: Shelf) -> str | None:
    """Return the build that a card here needs, if somebody at a terminal wants it; None where no card needs one."""
    async with opened(shelf) as owner:
        found = offers_here(owner.look, {engine.backend for engine in owner.engines if not engine.damage})
    for offer in found:
        say(offer_in_words(offer))
    offer = next((one for one in found if one.word), None)
    if offer is None or not can_ask():
        return None
    confirm = partial(click.confirm, f"Install {offer.build}?", default=True, abort=True)
    await trio.to_thread.run_sync(confirm, abandon_on_cancel=True)
    return offer.word


def _does_not_work(entry: AvailableBuild) -> int:
    what = f"{entry.id} does not work on this machine and is not used; 'engines remove' removes it"
    return say_error(what, EXIT_OURS)


async def _prove(owner: Engines, build: str) -> bool:
    """True if the build works on any device."""
    await owner.probe()
    say("trying it:")
    proofs = await owner.prove([seat for seat in owner.seats if seat.build == build], print_proof)
    return any(proof.ok for proof in proofs)


async def _is_here(shelf: Shelf, entry: AvailableBuild) -> bool:
    folder = shelf.place_of(entry.id)
    if not folder.is_dir():
        return False
    damage = await trio.to_thread.run_sync(check_build, folder)
    if damage:
        say(f"{entry.id} is installed, but {damage}; it is installed again")
    return not damage


def _model_option(command: Callable[..., T]) -> Callable[..., T]:
    return click.option("--model", metavar="MODEL", help="For this model only.")(command)


@click.command()
@click.argument("word", metavar="SEAT|BUILD|BACKEND|auto")
@_model_option
@home_options
async def use(server: RunningServer, word: str, model: str | None) -> int:
    """Prefer an engine; the others stay in reserve in case it fails. 'auto' leaves the choice to the program again.

    \b
    Examples:
      llama-appliance engines use vulkan
      llama-appliance engines use linux-x64-cpu/b11434 --model starter
      llama-appliance engines use auto
    """
    return await _choose(server, word, model, pinned=False)


@click.command()
@click.argument("word", metavar="SEAT|BUILD|BACKEND")
@_model_option
@home_options
async def pin(server: RunningServer, word: str, model: str | None) -> int:
    """Use one engine and nothing else: no fallback, and no update, until 'engines use auto'.

    With --model, the model prefers it; a single model cannot be limited to one engine.

    \b
    Example:
      llama-appliance engines pin cuda12
    """
    return await _choose(server, word, model, pinned=True)


async def _choose(server: RunningServer, word: str, model: str | None, *, pinned: bool) -> int:
    shelf = own_shelf()
    async with alone(shelf), opened(shelf) as owner:
        if note := await prefer(shelf, owner, EngineWish(engine=word, model=model, pinned=pinned)):
            say(f"note: {note}; until that changes, other engines are used")
    await refresh_server(server)
    whom = f"for {model}: " if model else ""
    end = "the program chooses" if word == AUTO else f"{word}{', and nothing else' if pinned else ' is preferred'}"
    click.echo(f"{whom}{end}; the models of a running server move when they are idle")
    return 0


@click.command()
@click.argument("build")
@click.option("--force", is_flag=True, help="Even if a running model uses it.")
@home_options
async def remove(server: RunningServer, build: str, force: bool) -> int:
    """Remove an installed build from the disk; never the only engine that works.

    \b
    Example:
      llama-appliance engines remove linux-x64-vulkan/b11400
    """
    shelf = own_shelf()
    seen = await server_table(server)
    running = [seat.rpartition(":")[0] for seat in seen.running.values()] if seen is not None else []
    async with alone(shelf), opened(shelf) as owner:
        check_removable(
            build,
            working=working(owner.ranked(word=AUTO)),
            installed=await trio.to_thread.run_sync(shelf.placed),
            wanted=owner.state.asked_for,
            running=running,
            force=force,
        )
        digests = tuple(engine.digest for engine in owner.engines if engine.id == build)
        await trio.to_thread.run_sync(shelf.remove, (build,))
        owner.apply(BuildRemoved(build, digests))
        await keep(shelf, owner)
    await refresh_server(server)
    click.echo(f"{build}: removed")
    return 0


def working(ranked: Sequence[Ranked]) -> list[str]:
    """Return the builds that can start a model: the proven ones, or the untried ones if none is proven."""
    usable = [one for one in ranked if one.usable]
    proven = [one.seat.build for one in usable if one.standing == "proven"]
    return list(dict.fromkeys(proven or [one.seat.build for one in usable]))


@click.command()
@click.argument("backend", metavar="[BACKEND]", required=False)
@home_options
async def rollback(server: RunningServer, backend: str | None) -> int:
    """Return to the build that was used before the last update.

    \b
    Examples:
      llama-appliance engines rollback
      llama-appliance engines rollback vulkan
    """
    shelf = own_shelf()
    async with alone(shelf), opened(shelf) as owner:
        current, lines = await roll_back(shelf, owner, backend)
    await refresh_server(server)
    click.echo(f"{lines[-1]}: {current} is used again")
    if len(lines) > 1:
        others = ", ".join(lines[:-1])
        say(f"(updated before: {others}; name the backend to go back there)")
    return 0
