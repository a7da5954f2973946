"""``engines``: lists the llama.cpp builds with their standing, tries them, and chooses among them.

``install`` and ``update`` are in the modules beside this one.
"""

from __future__ import annotations

import os

import click
import trio

from appliance.cli.remote import RunningServer, home_options, server_options
from appliance.cli.show import human_size, json_option, print_json, print_table
from appliance.core.machine_look import MachineLook
from appliance.engines.named import ENGINE_VARIABLE
from appliance.errors import UsageError
from appliance.features.engines.choosing import keep, named_seats, prefer, roll_back
from appliance.features.engines.core.choice import AUTO, EngineWish, check_removable
from appliance.features.engines.core.standing import shown_speed
from appliance.features.engines.core.state import BuildRemoved, Forgotten
from appliance.features.engines.shelf import Shelf
from appliance.features.engines.table import BuildRow, SeatRow, Table, table
from appliance.features.engines.verbs.here import followed, offer_in_words, opened, print_proof, server_table
from appliance.features.engines.verbs.install import install
from appliance.features.engines.verbs.update import update
from appliance.platform.console import EXIT_OURS, say
from appliance.platform.home import engines_folder

COLUMNS = ("", "SEAT", "DEVICE", "STANDING", "PROMPT", "ANSWER", "FROM", "WHY")
NUMBERS = ("PROMPT", "ANSWER")
model_option = click.option("--model", metavar="MODEL", help="For this model only.")


@click.group()
def engines() -> None:
    """Manage the llama.cpp builds of this machine: which work here, how fast, and which one is used.

    \b
    Examples:
      llama-appliance engines ls
      llama-appliance engines install vulkan
      llama-appliance engines use vulkan
    """


@engines.command()
@json_option
@server_options
async def ls(server: RunningServer, as_json: bool) -> int:
    """List every build on every device: whether it works, how fast it is, which one is used and why.

    \b
    Examples:
      llama-appliance engines ls
      llama-appliance engines ls --json
    """
    found = await server_table(server)
    if found is None:
        async with opened(Shelf(engines_folder())) as owner:
            found = await table(owner)
    if as_json:
        print_json(found)
    else:
        show_table(found)
    return 0


@engines.command()
@json_option
@home_options
async def probe(server: RunningServer, as_json: bool) -> int:
    """Look at the machine again, and ask every build for its devices; a running server does the same.

    \b
    Example:
      llama-appliance engines probe
    """
    async with followed(server, changes=False) as owner:
        seen = await owner.probe()
        found = await table(owner)
    if as_json:
        print_json({"machine": seen, "engines": found})
        return 0
    _show_machine(seen)
    show_table(found)
    return 0


@engines.command()
@click.argument("names", metavar="[SEAT|BUILD|BACKEND]...", nargs=-1)
@json_option
@home_options
async def prove(server: RunningServer, names: tuple[str, ...], as_json: bool) -> int:
    """Try builds on their devices now: all untried ones, or the named ones. The exit status is 1 if one fails.

    \b
    Examples:
      llama-appliance engines prove
      llama-appliance engines prove vulkan
    """
    async with followed(server, changes=False) as owner:
        seats = named_seats(owner, names, backends=True) if names else None
        if not as_json:
            say("each engine runs the starter model on its device; this takes some seconds each")
        proofs = await (owner.prove(seats) if as_json else owner.prove(seats, print_proof))
    ok = all(proof.ok for proof in proofs)
    if as_json:
        print_json({"ok": ok, "proofs": proofs})
    elif not proofs:
        say("everything has been tried already; name a seat to try it again ('engines ls' lists them)")
    return 0 if ok else EXIT_OURS


@engines.command()
@click.argument("builds", metavar="[BUILD]...", nargs=-1)
@home_options
async def forget(server: RunningServer, builds: tuple[str, ...]) -> int:
    """Forget what was found out about all builds, or about the named ones: proofs, failures, devices.

    Without a build, the last update that was refused is forgotten as well. Choices made with 'use' and 'pin' stay. The
    devices are listed again at once; the next start or 'engines prove' tries them again.

    \b
    Examples:
      llama-appliance engines forget
      llama-appliance engines forget linux-x64-vulkan/b11434
    """
    async with followed(server) as owner:
        known = {engine.id for engine in owner.engines}
        for build in builds:
            if build not in known:
                raise UsageError(f"there is no build '{build}' here; there is {', '.join(sorted(known)) or 'none'}")
        digests = tuple(engine.digest for engine in owner.engines if engine.id in builds)
        owner.apply(Forgotten(digests if builds else None))
        await keep(owner)
        await owner.probe()
    say(f"forgotten: the results for {', '.join(builds) or 'all engines'}")
    return 0


@engines.command()
@click.argument("word", metavar="SEAT|BUILD|BACKEND|auto")
@model_option
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


@engines.command()
@click.argument("word", metavar="SEAT|BUILD|BACKEND")
@model_option
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
    async with followed(server) as owner:
        if note := await prefer(owner, EngineWish(engine=word, model=model, pinned=pinned)):
            say(f"note: {note}; until that changes, other engines are used")
    whom = f"for {model}: " if model else ""
    end = "the program chooses" if word == AUTO else f"{word}{', and nothing else' if pinned else ' is preferred'}"
    click.echo(f"{whom}{end}; the models of a running server move when they are idle")
    return 0


@engines.command()
@click.argument("build")
@click.option("--force", is_flag=True, help="Even if a running model uses it.")
@home_options
async def remove(server: RunningServer, build: str, force: bool) -> int:
    """Remove an installed build from the disk; never the only engine that works.

    \b
    Example:
      llama-appliance engines remove linux-x64-vulkan/b11400
    """
    seen = await server_table(server)
    running = [seat.rpartition(":")[0] for seat in seen.running.values()] if seen is not None else []
    async with followed(server) as owner:
        shelf = Shelf(owner.folder)
        check_removable(
            build,
            owner.ranked(word=AUTO),
            installed=await trio.to_thread.run_sync(shelf.placed),
            wanted=owner.state.asked_for,
            running=running,
            force=force,
        )
        digests = tuple(engine.digest for engine in owner.engines if engine.id == build)
        await trio.to_thread.run_sync(shelf.remove, (build,))
        owner.apply(BuildRemoved(build, digests))
        await keep(owner)
    click.echo(f"{build}: removed")
    return 0


@engines.command()
@click.argument("backend", metavar="[BACKEND]", required=False)
@home_options
async def rollback(server: RunningServer, backend: str | None) -> int:
    """Return to the build that was used before the last update.

    \b
    Examples:
      llama-appliance engines rollback
      llama-appliance engines rollback vulkan
    """
    async with followed(server) as owner:
        current, lines = await roll_back(owner, backend)
    click.echo(f"{lines[-1]}: {current} is used again")
    if len(lines) > 1:
        others = ", ".join(lines[:-1])
        say(f"(updated before: {others}; name the backend to go back there)")
    return 0


for verb in (install, update):
    engines.add_command(verb)


def show_table(found: Table) -> None:
    """Print the seats for people, in the order in which they would be used."""
    if named := os.environ.get(ENGINE_VARIABLE):
        say(f"note: {ENGINE_VARIABLE}={named} overrides every choice made here")
    rows = [(build, seat) for build in found.builds for seat in build.seats]
    place = {seat: index for index, seat in enumerate(found.order)}
    rows.sort(key=lambda row: place.get(row[1].id, len(place)))
    if rows:
        print_table(COLUMNS, [_cells(build, seat) for build, seat in rows], right=NUMBERS)
    for build in found.builds:
        if not build.seats:
            say(f"{build.id} finds no device to use here")
        if build.withdrawn:
            say(f"{build.id} is not used any more: {build.withdrawn}")
    say(f"\nIn use: {found.used or 'nothing'} - {found.reason}")
    if found.channel != "latest":
        say(f"Updates: {found.channel} builds alone, as chosen by 'engines update --channel'")
    for model, word in sorted(found.models.items()):
        say(f"For {model}: {word}, as chosen by 'engines use' or 'pin' with --model")
    for model, seat in sorted(found.running.items()):
        say(f"Running: {model} on {seat}")
    if found.update:
        say(f"An update to {found.update} is under way.")
    if found.trying:
        say(f"Under trial: {found.trying}")
    for offer in found.offers:
        say(offer_in_words(offer))
    for problem in found.problems:
        say(f"problem: {problem}")
    if found.server:
        say(f"(as the server at {found.server} sees it)")


def _cells(build: BuildRow, seat: SeatRow) -> tuple[str, ...]:
    return (
        "*" if seat.used else "",
        seat.id,
        ", ".join(seat.devices) or "-",
        seat.standing,
        *("-" if speed is None else shown_speed(speed) for speed in (seat.prompt_speed, seat.generation_speed)),
        ", ".join(word for word in (build.source, build.role, build.release) if word),
        seat.why,
    )


def _show_machine(seen: MachineLook) -> None:
    memory = f"{human_size(seen.memory_available)} of {human_size(seen.memory_total)} free"
    click.echo(f"{seen.platform}, {seen.system} ({seen.environment})")
    click.echo(f"  processor  {seen.cpu} {seen.cpu_level}".rstrip() + f", {seen.cores} cores, {memory}")
    for gpu in seen.gpus:
        size = f", {human_size(gpu.total)}" if gpu.total else ""
        click.echo(f"  graphics   {gpu.name} ({gpu.driver} {gpu.driver_version}".rstrip() + f"{size})")
    for name, value in seen.hidden.items():
        click.echo(f"  hidden     {name}={value} is set, and may hide devices")
    for problem in seen.problems:
        click.echo(f"  problem    {problem}")
