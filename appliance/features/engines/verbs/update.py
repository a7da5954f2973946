"""``engines update``: a newer build replaces the one in use, if it works as well.

It is tried with the models that matter: the most used one, else a loaded one, else the starter model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, get_args

import click
import msgspec
import trio
from msgspec import Struct, structs

from appliance.catalog.catalog import STARTER_ID, scan_models
from appliance.catalog.configuration import Files
from appliance.cli.options import ModelOptions, source_options
from appliance.cli.remote import ModelList, NotRunning, RequestRefused, RunningServer, ServerFailed, ask, home_options
from appliance.cli.show import human_size, json_option, print_json
from appliance.core.config.types import Config
from appliance.core.models.model import Model
from appliance.core.records.activity import MAX_LIMIT, ActivityPage, Query, Row
from appliance.core.versions import line_of
from appliance.errors import UsageError
from appliance.features.engines.choosing import keep
from appliance.features.engines.core.builds import AvailableBuild, Catalogue, UpdateChannel, parse_asked
from appliance.features.engines.core.choice import Ranked, best
from appliance.features.engines.core.state import Followed
from appliance.features.engines.installing import BuildSources, forget_downloads, read_manifest, stage
from appliance.features.engines.shelf import Shelf
from appliance.features.engines.updating import UpdateTrials, devices_of
from appliance.features.engines.verbs.here import check_needs, opened, print_proof, refresh_server
from appliance.features.engines.verbs.install import FROM_HELP, fetch_archive, sources_of
from appliance.platform.console import EXIT_OURS, can_ask, say, say_error
from appliance.platform.home import engines_folder
from appliance.platform.machine import this_platform
from appliance.store.activity import open_activity
from appliance.store.shelf import CannotInstall, alone
from appliance.store.updating import Steps, run_update

MOST = 3  # number of models to try if the first ones cannot be run at all
T = TypeVar("T")
SAID = {
    "stage": "1. fetching and unpacking it",
    "prove": "2. proving it on this machine's devices",
    "canary": "3. trying it with your own model, against the build in use",
    "place": "4. putting it in its place",
    "tidy": "5. it is in use; removing builds that are not kept",
}


async def models_to_try(server: RunningServer, config: Config | None, named: str | None) -> list[Model]:
    """Return models with a file on this machine, best first. ``named`` goes before all; raises ModelNotFound for it."""
    snapshot = await trio.to_thread.run_sync(scan_models, ModelOptions().sources())
    if named is not None:
        model = snapshot.require(named)
        return [model] if model.path else []
    used = most_used(await _rows(server, config))
    models = await _told(server, "/models", ModelList) or ModelList([])
    loaded = [entry.id for entry in models.data if entry.status.value in ("loaded", "sleeping")]
    names = dict.fromkeys([*used, *loaded, STARTER_ID])
    found = [model for name in names if (model := snapshot.find(name)) is not None and not model.error]
    return [model for model in found if _has_file(model)][:MOST]


def _has_file(model: Model) -> bool:
    return bool(model.path) and Path(model.path).is_file()


def most_used(rows: Sequence[Row]) -> list[str]:
    """Return models by the number of their answers, most first; on a tie, the most recently used one first."""
    answered = [row.model for row in rows if row.resp_status_code < 400]  # newest first
    return [name for name, _ in Counter(answered).most_common()]


async def _rows(server: RunningServer, config: Config | None) -> Sequence[Row]:
    """Return the newest rows of the running server's log, else of the configuration's file; none without either."""
    if (told := await _told(server, f"/api/metrics/activity?limit={MAX_LIMIT}", ActivityPage)) is not None:
        return told.data
    if config is None or config.store is None:
        return ()
    path = Path(config.store.path)
    if not await trio.to_thread.run_sync(path.is_file):
        return ()
    async with open_activity(path, MAX_LIMIT) as activity:
        return (await activity.page(Query(limit=MAX_LIMIT))).data


async def _told(server: RunningServer, path: str, answer: type[T]) -> T | None:
    """Return a running server's answer; None if it gives none."""
    try:
        return await ask(server, "GET", path, answer)
    except (NotRunning, RequestRefused, ServerFailed):
        return None


@click.command()
@click.argument("backend", metavar="[BACKEND]", required=False)
@click.option("--from", "source", metavar="DIR|ARCHIVE|URL", help=FROM_HELP)
@click.option("--sha256", metavar="SUM", help="The SHA-256 of the file that --from names.")
@click.option(
    "--channel",
    type=click.Choice(get_args(UpdateChannel)),
    help="Take the newest build, or the newest that is a version of llama.cpp; remembered for later updates.",
)
@click.option("--model", metavar="MODEL", help="Try it with this model instead of the most used one.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also take a build that was rolled back, or an older one.")
@source_options
@json_option
@home_options
async def update(server: RunningServer, files: Files, **options: object) -> int:
    """Switch to a newer build: fetch it, prove it, try it with your own model, and only then use it.

    If anything goes wrong, the build in use stays. The two previous builds are kept. If the new one fails at work
    within its first hour, the previous one returns by itself; after that, use 'engines rollback'.

    \b
    Examples:
      llama-appliance engines update
      llama-appliance engines update vulkan --yes
      llama-appliance engines update --channel stable
      llama-appliance engines update --from llama-b11500-bin-ubuntu-x64.tar.gz
    """
    wish = msgspec.convert(options, _Wish)
    if wish.channel is not None and wish.source is not None:
        raise UsageError("--channel chooses from the list, and --from names a build that is taken instead; give one")
    config = files.read().config if files.named else None
    try:
        done, status = await _updated(server, wish, config)
    except CannotInstall as cause:
        return say_error(f"{cause}; the build in use stays", EXIT_OURS)
    if wish.as_json:
        print_json(done)
    elif status:
        say_error(done.why, status)
    elif done.changed:
        click.echo(f"{done.build} is in use; 'engines rollback' goes back to {done.before}")
    else:
        say(done.why)
    return status


class _Wish(Struct, frozen=True, kw_only=True):
    """The options of an update, as they were given."""

    backend: str | None
    source: str | None
    sha256: str | None
    channel: UpdateChannel | None
    model: str | None
    yes: bool
    force: bool
    as_json: bool


class Updated(Struct, frozen=True, kw_only=True):
    """The output of ``engines update --json``. Builds by their ids."""

    changed: bool
    build: str  # the build that was offered
    release: str  # the version of llama.cpp that it is; empty for a build between two
    before: str  # the build that was in use
    channel: UpdateChannel
    why: str  # why nothing has changed; empty if something has


async def _updated(server: RunningServer, wish: _Wish, config: Config | None) -> tuple[Updated, int]:
    """Return what has come of it, and the exit status."""
    shelf, catalogue = Shelf(engines_folder()), read_manifest()
    async with alone(shelf), opened(shelf) as owner:
        if owner.state.pinned:
            raise UsageError(f"the engine is pinned to '{owner.state.use}'; 'engines use auto' allows updates")
        ranked = owner.ranked(word="auto")
        old = _old(ranked, wish.backend)
        if owner.state.use in (old.seat.id, old.seat.build):
            raise UsageError(
                f"'engines use' asks for {owner.state.use}, and no other; "
                f"'engines use {old.seat.backend}' or 'engines use auto' allows updates"
            )
        channel = wish.channel or owner.state.channel
        sources = await trio.to_thread.run_sync(_newer, old.seat.build, wish, catalogue, channel)
        entry = sources.entry
        done = Updated(
            changed=False,
            build=entry.id,
            release=catalogue.version_of(entry.build),
            before=old.seat.build,
            channel=channel,
            why=_idle(entry, old.seat.build, owner.state.withdrawn.get(entry.id), catalogue, force=wish.force),
        )
        if not done.why:
            check_needs(entry, owner, wish.force)
            if not wish.yes and not await _agreed(entry, done, asks=not wish.as_json):
                return structs.replace(done, why="nothing has changed"), EXIT_OURS
        if channel != owner.state.channel:
            owner.apply(Followed(channel))
            await keep(owner)
        if done.why:
            return done, 0
        needed = devices_of(ranked, old.seat.build)
        models = partial(models_to_try, server, config, wish.model)
        in_use = owner.engine_on(old.seat)
        trials = UpdateTrials(file=shelf.state, old=in_use, needed=needed, models=models, show=print_proof)
        steps = Steps(
            stage=partial(stage, shelf, sources, fetch_archive),
            prove=trials.prove,
            canary=trials.try_models,
            apply=lambda step: say(SAID[step]),
        )
        why = await run_update(shelf, entry.id, old.seat.build, steps, held=owner.state.asked_for)
        await trio.to_thread.run_sync(forget_downloads, shelf, entry)
    if why:
        return structs.replace(done, why=f"{entry.id} is not taken: {why}; {old.seat.build} stays in use"), EXIT_OURS
    await refresh_server(server)
    return structs.replace(done, changed=True), 0


def _old(ranked: list[Ranked], backend: str | None) -> Ranked:
    """Return the seat to update: the best one, or the best of a backend. Raises UsageError if it is not a build."""
    if backend is None:
        found = best(ranked)
    else:
        asked = parse_asked(backend, this_platform())
        if asked.build is not None:
            raise UsageError("name a backend to update, such as 'vulkan'; 'engines install' takes a certain build")
        line = f"{asked.platform}-{asked.backend}"
        found = best([one for one in ranked if line_of(one.seat.build) == line])
    if found is None or line_of(found.seat.build) == found.seat.build:
        what = f"no {backend} build works here" if backend else "the engine in use is not a build that could be updated"
        name = "" if found is None else f" ({found.seat.build})"
        raise UsageError(f"{what}{name}; 'llama-appliance engines install {backend or 'BACKEND'}' installs one")
    return found


def _newer(old: str, wish: _Wish, catalogue: Catalogue, channel: UpdateChannel) -> BuildSources:
    """Return the build to switch to. Raises UsageError."""
    line = line_of(old)
    asked = parse_asked(line, this_platform())
    if wish.source is not None:
        return sources_of(asked.backend, wish.source, asked.platform, wish.sha256)
    entries = [one for one in catalogue.entries if (one.platform, one.backend) == (asked.platform, asked.backend)]
    if newest := catalogue.newest(entries, channel):
        return BuildSources(entry=newest)
    if entries:
        raise UsageError(f"no stable build for {line} is listed; '--channel latest' takes the newest of all")
    raise UsageError(f"no build for {line} is listed; install your own with --from")


def _idle(entry: AvailableBuild, old: str, withdrawn: str | None, catalogue: Catalogue, *, force: bool) -> str:
    """Return why there is nothing to do; empty: there is."""
    build = old.partition("/")[2]
    if entry.id == old or catalogue.is_same(entry.build, build):
        return f"{old} is in use already"
    if force:
        return ""
    if withdrawn is not None:
        return f"{entry.id} was rolled back ({withdrawn}); --force tries it again"
    if catalogue.is_newer(build, entry.build):
        return f"{entry.id} is older than {old}, which is in use; --force takes it anyway"
    if catalogue.is_newer(entry.build, build) is None:
        return f"the list of builds does not say whether {entry.id} is newer than {old}; --force takes it"
    return ""


async def _agreed(entry: AvailableBuild, done: Updated, *, asks: bool) -> bool:
    """Return the user's answer. Raises UsageError if there is nobody to ask, or if the output is for a program."""
    named = f"{entry.id} (llama.cpp {done.release})" if done.release else entry.id
    if not asks or not can_ask():
        raise UsageError(f"{named} would replace {done.before}; add --yes to do it")
    size = f", {human_size(entry.size)} to download" if entry.size else ""
    question = f"{named}{size} will replace {done.before} if it works as well. Continue?"
    return await trio.to_thread.run_sync(partial(click.confirm, question), abandon_on_cancel=True)
