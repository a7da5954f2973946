"""``engines install``: installs a build and tries it before it is used."""

from __future__ import annotations

from functools import partial

import click
import trio

from appliance.cli.engine_fetch import fetch_archive
from appliance.cli.engine_place import opened, own_shelf, say_proof, tell_server
from appliance.cli.engine_sources import FROM_HELP, check_needs, sources_of
from appliance.cli.plan import AsyncCommand
from appliance.cli.remote import Server, parse_server, server_options
from appliance.core.engines.builds import Entry
from appliance.engines.found import here
from appliance.engines.installing import CannotInstall
from appliance.engines.installing import install as put
from appliance.engines.integrity import check_build
from appliance.engines.owner import Engines
from appliance.engines.shelf import Shelf, alone
from appliance.errors import UsageError
from appliance.platform.console import EXIT_OURS, say, say_error


@click.command()
@click.argument("word", metavar="[BACKEND|BUILD]", required=False)
@click.option("--from", "source", metavar="DIR|ARCHIVE|URL", help=FROM_HELP)
@click.option("--sha256", metavar="SUM", help="The SHA-256 of the file that --from names.")
@click.option("--platform", "for_platform", metavar="PLATFORM", help="For another machine, such as windows-x64.")
@click.option(
    "--force", is_flag=True, help="Install even if this machine does not meet the build's stated requirements."
)
@server_options
def install(
    word: str | None,
    source: str | None,
    sha256: str | None,
    for_platform: str | None,
    force: bool,
    url: str | None,
    api_key: str | None,
) -> AsyncCommand:
    """Install a build of llama.cpp beside the others, and try it.

    It is used when it is the best, or after 'engines use'. An interrupted download resumes where it stopped. Nothing
    else changes.

    \b
    Examples:
      llama-appliance engines install vulkan
      llama-appliance engines install cuda12 --from /media/usb/builds
      llama-appliance engines install cpu --from llama-b11434-bin-ubuntu-x64.tar.gz
    """
    return partial(_install, parse_server(url, api_key), word, source, sha256, for_platform or here(), force)


async def _install(
    server: Server, word: str | None, source: str | None, sha256: str | None, for_platform: str, force: bool
) -> int:
    shelf = own_shelf()
    try:
        sources = await trio.to_thread.run_sync(sources_of, word, source, for_platform, sha256)
        entry = sources.entry
        if entry.platform != for_platform:
            raise UsageError(f"this build is for {entry.platform}; --platform {entry.platform} installs it anyway")
        async with alone(shelf), opened(shelf) as owner:
            if await _is_here(shelf, entry) and not force:
                say(f"{entry.id} is installed already, and complete")
                if entry.platform != here() or not _untried(owner, entry.id):
                    return 0
            else:
                if entry.platform == here():
                    check_needs(entry, owner, force)
                place = await put(shelf, sources, fetch_archive)
                say(f"{entry.id} is in {place}")
                if entry.platform != here():
                    return 0
            ok = await _prove(owner, entry.id)
    except CannotInstall as cause:
        return say_error(str(cause), EXIT_OURS)
    await tell_server(server)
    click.echo(entry.id)
    if ok:
        return 0
    return say_error(
        f"{entry.id} does not work on this machine and is not used; 'engines remove' removes it", EXIT_OURS
    )


def _untried(owner: Engines, build: str) -> bool:
    """True if nothing is known of the build because its first trial was cut short."""
    standings = {one.standing for one in owner.ranked() if one.seat.build == build}
    return standings <= {"untried"}


async def _prove(owner: Engines, build: str) -> bool:
    """True if the build works on any device."""
    await owner.probe()
    say("trying it:")
    proofs = await owner.prove([seat for seat in owner.seats if seat.build == build], say_proof)
    return any(proof.ok for proof in proofs)


async def _is_here(shelf: Shelf, entry: Entry) -> bool:
    folder = shelf.place_of(entry.id)
    if not folder.is_dir():
        return False
    damage = await trio.to_thread.run_sync(check_build, folder)
    if damage:
        say(f"{entry.id} is installed, but {damage}; it is installed again")
    return not damage
