"""``upgrade``: a newer version of the program beside the one in use: tried, switched to, returned from."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import click
import trio
from msgspec import Struct

from appliance import __version__
from appliance.cli.options import gathered
from appliance.cli.show import json_option, print_json, print_table
from appliance.core.payload import LIST, SIGNATURE
from appliance.core.programs import LINE, chosen, name_of
from appliance.core.signing import public_keys_of, signer_of
from appliance.core.versions import RolledBack, Step
from appliance.errors import UsageError
from appliance.features.programs.address import look_address, switch_looks
from appliance.features.programs.look import look
from appliance.features.programs.rules import matching, refusal
from appliance.features.programs.shelf import PayloadSource, Programs, damage_of, find
from appliance.features.programs.trial import ImitatedServer, running, try_version
from appliance.platform.children import open_children
from appliance.platform.console import EXIT_OURS, PROGRAM, say, say_error
from appliance.platform.machine import this_platform
from appliance.start import own_folder, programs_folder, refuse_packaged
from appliance.store.shelf import CannotInstall, alone
from appliance.store.trusted_keys import TRUSTED, trust, trusted_keys
from appliance.store.updating import Steps, run_update

SAID: dict[Step, str] = {
    "stage": "1. copying it",
    "prove": "2. comparing every file with its signed list",
    "canary": "3. starting it beside the version in use, with the same settings",
    "place": "4. putting it in its place",
    "tidy": "5. it is in use; removing versions that are not kept",
}


@click.group()
def upgrade() -> None:
    """Upgrade the program, and return to the version before.

    Versions lie side by side in the user's data folder. A new one is compared with its signed list, started once on a
    free port with the settings of the running server, and asked a chat; then every start leads to it. The two versions
    before stay. If the new one crashes within its first hour, the next start uses the one before.

    \b
    Examples:
      llama-appliance upgrade install llama-appliance-0.3.0-linux-x64.tar.gz --key publisher.pub
      llama-appliance upgrade rollback
      llama-appliance upgrade list
    """


class _Wishes(Struct, frozen=True, kw_only=True):
    """The options of the verbs that try a version."""

    key: Path | None
    unsigned: bool
    force: bool
    words: tuple[str, ...]


_key_option = click.option(
    "--key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The publisher's public key; it is remembered for the next upgrades.",
)
_trying = gathered(
    "wishes",
    _Wishes,
    _key_option,
    click.option("--unsigned", is_flag=True, help="Take it without a signature: you know where it comes from."),
    click.option("--force", is_flag=True, help="Also take a version that was given up, or an older one."),
    click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- SERVE OPTIONS]"),
)


@upgrade.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@_trying
async def install(source: Path, wishes: _Wishes) -> int:
    """Switch to the version in SOURCE, a payload folder or its archive, if it works here.

    It is tried with the settings of the running server, or with the options of 'serve' after --.

    \b
    Examples:
      llama-appliance upgrade install /media/usb/llama-appliance --key publisher.pub
      llama-appliance upgrade install FILE.tar.gz -- --config ~/llama-swap.yaml
    """
    own = refuse_packaged(own_folder())
    found = await trio.to_thread.run_sync(find, source)
    return await _switch(Programs(programs_folder()), own, found, wishes)


@upgrade.command()
@click.argument("version")
@_trying
async def switch(version: str, wishes: _Wishes) -> int:
    """Switch to a VERSION that 'upgrade list' shows, such as one that 'bundle import' brought, if it works here.

    \b
    Example:
      llama-appliance upgrade switch 0.3.0
    """
    own = refuse_packaged(own_folder())
    shelf = Programs(programs_folder())
    there = await trio.to_thread.run_sync(shelf.placed)
    means = matching(version, there)
    if len(means) != 1:
        names = ", ".join(name_of(each) for each in means or there) or "none"
        what = "several versions here begin with that" if means else "there is no such version here"
        raise UsageError(f"'{version}': {what}: {names}; 'upgrade install' brings one")
    found = await trio.to_thread.run_sync(find, shelf.place_of(means[0]))
    return await _switch(shelf, own, found, wishes)


async def _switch(shelf: Programs, own: Path, found: PayloadSource, wishes: _Wishes) -> int:
    async with alone(shelf):
        old = await trio.to_thread.run_sync(shelf.enter, own)
        state = await trio.to_thread.run_sync(shelf.state.read)
        line = state.line(LINE)
        if found.program == (line.current if line is not None else old):
            say(f"{name_of(found.program)} is in use already")
            return 0
        why = refusal(
            found.payload,
            platform=this_platform(),
            own=__version__,
            program=found.program,
            state=state,
            force=wishes.force,
        )
        if why:
            raise UsageError(f"{found.path} is not taken: {why}")
        steps = Steps(
            stage=partial(trio.to_thread.run_sync, partial(shelf.copy, found, trio.from_thread.check_cancelled)),
            prove=lambda folder: trio.to_thread.run_sync(_difference, shelf, found.program, wishes, folder),
            canary=partial(_try, shelf, (own, shelf.root), wishes),
            apply=lambda step: say(SAID[step]) if step in SAID else None,
        )
        try:
            why = await run_update(shelf, found.program, old, steps, await trio.to_thread.run_sync(shelf.held))
        except CannotInstall as cause:
            why = str(cause)
        if why:
            return say_error(f"{name_of(found.program)} is not taken: {why}; {name_of(old)} stays in use", EXIT_OURS)
        if wishes.key is not None:
            await trio.to_thread.run_sync(trust, shelf.root, _keys_in(wishes.key))
    say(f"{name_of(found.program)} is used from the next start on; 'upgrade rollback' returns to {name_of(old)}")
    if await trio.to_thread.run_sync(running, (own, shelf.root)) is not None:
        say(f"the server that runs now is the old version: restart it ('{PROGRAM} service restart' for a service)")
    return 0


def _difference(shelf: Programs, program: str, wishes: _Wishes, folder: Path) -> str:
    """Return what is wrong with the folder, its list or that one's signature; empty: nothing.

    Raises UsageError, OSError.
    """
    damage = damage_of(folder, program, trio.from_thread.check_cancelled)
    if damage or wishes.unsigned:
        return damage
    trusted = _keys_in(wishes.key) if wishes.key is not None else trusted_keys(shelf.root)
    if not trusted:
        return "no publisher's key is known yet: give it with --key FILE, or take it without a signature by --unsigned"
    if not (folder / SIGNATURE).is_file():
        return f"it has no {SIGNATURE}; --unsigned takes it anyway"
    signature, content = (folder / SIGNATURE).read_bytes(), (folder / LIST).read_bytes()
    if signer_of(trusted, content, signature) is None:
        where = wishes.key or shelf.root / TRUSTED
        return f"it was not signed with the key in {where}; get it, or the key, from the publisher again"
    return ""


async def _try(shelf: Programs, folders: tuple[Path, Path], wishes: _Wishes, folder: Path) -> str:
    serving = ImitatedServer(words=wishes.words)
    if not wishes.words:
        serving = await trio.to_thread.run_sync(running, folders) or serving
        say(f"   serve {' '.join(serving.words)}".rstrip())
    work = await trio.to_thread.run_sync(shelf.work_folder, "trial")
    async with open_children() as children:
        return await try_version(folder, serving, work, children, lambda told: say(f"   {told}"))


@upgrade.command()
async def rollback() -> None:
    """Return to the version before the one in use. The next start uses it.

    \b
    Example:
      llama-appliance upgrade rollback
    """
    refuse_packaged(own_folder())
    shelf = Programs(programs_folder())
    async with alone(shelf):
        there = tuple(await trio.to_thread.run_sync(shelf.placed))
        line = (await trio.to_thread.run_sync(shelf.state.read)).line(LINE)
        if line is None or not any(one in there for one in line.previous):
            raise UsageError("there is no version to return to; 'upgrade list' shows what is here")
        event = RolledBack(kind=None, here=there, why="the user returned to the version before")
        state = await trio.to_thread.run_sync(shelf.state.apply, [event])
    say(f"{name_of(chosen(state, there) or '')} is used from the next start on; restart the server if it runs")


@upgrade.command()
@click.option(
    "--at", "address", metavar="URL", help="Look here from now on: the address of the folder with a payload's list."
)
@click.option("--off", is_flag=True, help="Stop looking.")
@_key_option
@json_option
async def check(address: str | None, off: bool, key: Path | None, as_json: bool) -> None:
    """Look for a newer version at the address that --at has named. A running server then looks once a day.

    Nothing is asked before an address was named, nothing is downloaded, and only a signed list is believed.

    \b
    Examples:
      llama-appliance upgrade check --at https://example.org/llama-appliance --key publisher.pub
      llama-appliance upgrade check
    """
    if off and address is not None:
        raise UsageError("--at switches looking on, and --off switches it off; give one of them")
    shelf = Programs(programs_folder())
    if key is not None:
        await trio.to_thread.run_sync(trust, shelf.root, _keys_in(key))
    if off or address is not None:
        await trio.to_thread.run_sync(switch_looks, shelf.root, address)
    at = await trio.to_thread.run_sync(look_address, shelf.root)
    if at is None and not off:
        raise UsageError(
            f"looking for newer versions is switched off; '{PROGRAM} upgrade check --at URL --key FILE' switches it on"
        )
    if at is not None:
        found = await look(shelf.root, at)
        if as_json:
            print_json(found)
        else:
            say(found.in_words)


def _keys_in(file: Path) -> tuple[bytes, ...]:
    return public_keys_of(file.read_bytes(), str(file))


class ListedVersion(Struct, frozen=True, kw_only=True):
    """A version as ``upgrade list --json`` prints it."""

    name: str
    folder: str
    role: str  # ``current``, ``previous``, ``withdrawn``, or empty: nobody has switched to it
    why: str | None  # why it was given up
    on_trial: bool


@upgrade.command("list")
@json_option
def list_versions(as_json: bool) -> int:
    """List the versions of the program that are here.

    \b
    Example:
      llama-appliance upgrade list --json
    """
    shelf = Programs(programs_folder())
    shelf.recover()
    state, now = shelf.state.read(), time.time()
    rows = [
        ListedVersion(
            name=name_of(program),
            folder=str(shelf.place_of(program).resolve()),
            role=state.role(program),
            why=state.withdrawn.get(program),
            on_trial=state.trial_end(program, now) is not None,
        )
        for program in shelf.placed()
    ]
    if as_json:
        print_json(rows)
    elif rows:
        used = [f"{row.role}{', on trial' * row.on_trial}" or "-" for row in rows]
        cells = [(row.name, use, row.why or "", row.folder) for row, use in zip(rows, used, strict=True)]
        print_table(("VERSION", "USE", "WHY", "FOLDER"), cells)
    else:
        say(f"nothing was upgraded here; {__version__} is used, from {own_folder() or sys.prefix}")
    return 0
