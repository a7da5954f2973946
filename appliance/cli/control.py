"""``ps``, ``load``, ``unload``, ``logs``: show and steer the running server over HTTP."""

from __future__ import annotations

import codecs
import math
from urllib.parse import quote

import click
import msgspec
import trio
from msgspec import Struct, structs

from appliance.catalog.sources import ModelFolders
from appliance.cli.app import ground_of
from appliance.cli.options import ModelOptions, catalog_options
from appliance.cli.remote import (
    NOT_RUNNING,
    ModelList,
    RunningServer,
    ServerModel,
    ask,
    ask_raw,
    following,
    server_options,
)
from appliance.cli.show import json_option, print_json, print_table
from appliance.fleet.chooser import EngineSource
from appliance.fleet.estimate import Estimate
from appliance.platform.console import EXIT_OURS, say
from appliance.upstream.client import HttpAnswer


class RunningProcess(Struct, frozen=True, kw_only=True):
    """One model process."""

    model: str
    state: str


class ListedPeers(Struct, frozen=True):
    servers: list[RunningProcess]


class Health(Struct, frozen=True):
    """``GET /health``; other programs have no pool."""

    pool: ListedPeers | None = None


@click.command()
@server_options
@json_option
async def ps(server: RunningServer, as_json: bool) -> int:
    """List the models that are running on the server at --url.

    \b
    Examples:
      llama-appliance ps
      llama-appliance ps --json
    """
    models = (await ask(server, "GET", "/models", ModelList)).data
    aliases = {alias for entry in models for alias in entry.aliases}
    running = await _running(server, models)
    failed = [entry for entry in models if entry.status.failed and entry.id not in aliases]
    if as_json:
        print_json({"running": running, "failed": failed})
        return 0
    if running:
        rows = [(entry.id, entry.status.value, (entry.status.engine or "-").rstrip(":")) for entry in running]
        print_table(("MODEL", "STATE", "ENGINE"), rows)
    else:
        say("no model is running; a model is loaded on its first request, or by 'llama-appliance load MODEL'")
    for entry in failed:
        say(f"{entry.id} failed: {(entry.status.error or 'it gave no reason').splitlines()[0]}")
    return 0


async def _running(server: RunningServer, models: list[ServerModel]) -> list[ServerModel]:
    """Return the models with a process, also unlisted ones, but without entries that only stand for another model."""
    pool = (await ask(server, "GET", "/health", Health)).pool
    if pool is None:
        return [entry for entry in models if entry.status.value not in NOT_RUNNING]
    known = {entry.id: entry for entry in models}
    return [
        structs.replace(entry, status=structs.replace(entry.status, value=one.state))
        for one in pool.servers
        for entry in (known.get(one.model, ServerModel(id=one.model)),)
    ]


@click.command()
@click.argument("model")
@server_options
@click.option(
    "--dry-run", is_flag=True, help="Do not load anything: say how MODEL would fit into this machine's memory."
)
@json_option
@catalog_options
@click.pass_context
async def load(
    ctx: click.Context, server: RunningServer, model: str, dry_run: bool, as_json: bool, choice: ModelOptions
) -> int:
    """Load MODEL into the running server, and wait until it is ready.

    With --dry-run no server is needed; --model, --models-dir, --stores and --no-starter then say where to look for
    MODEL.

    \b
    Examples:
      llama-appliance load starter
      llama-appliance load starter --dry-run
    """
    if dry_run:
        return await _print_plan(choice.sources(), ground_of(ctx).engines(), model, as_json, ground_of(ctx).estimate())
    began = trio.current_time()
    # the server knows how long a model may take
    await ask_raw(server, "POST", "/models/load", {"model": model, "wait": True}, patience=math.inf)
    seconds = round(trio.current_time() - began, 3)
    if as_json:
        print_json({"model": model, "state": "loaded", "seconds": seconds})
    else:
        click.echo(f"{model}: loaded after {seconds:.1f} s")
    return 0


async def _print_plan(
    sources: ModelFolders, engines: EngineSource, name: str, as_json: bool, estimate: Estimate
) -> int:
    from appliance.catalog.catalog import scan_models  # only this verb of these reads model files
    from appliance.cli.models import machine_room, planned, print_plan

    snapshot = await trio.to_thread.run_sync(scan_models, sources)
    model, plan = planned(snapshot.models, name, *await machine_room(engines), estimate)
    if as_json:
        print_json(plan)
    else:
        print_plan(model, plan)
    return 0 if plan.verdict != "no" else EXIT_OURS


@click.command()
@click.argument("model")
@server_options
@json_option
async def unload(server: RunningServer, model: str, as_json: bool) -> int:
    """Unload MODEL from the running server. Requests that use it are ended.

    \b
    Example:
      llama-appliance unload starter
    """
    await ask_raw(server, "POST", "/models/unload", {"model": model, "wait": True}, patience=math.inf)
    if as_json:
        print_json({"model": model, "state": "unloaded"})
    else:
        click.echo(f"{model}: unloaded")
    return 0


@click.command()
@click.argument("model", required=False)
@server_options
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines as they come; Ctrl-C ends.")
@click.option("--search", default="", metavar="TEXT", help="Only lines with TEXT, in any case.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: one string for each line.")
async def logs(server: RunningServer, model: str | None, follow: bool, search: str, as_json: bool) -> int:
    """Show the output of MODEL's process, or of all model processes with the model's name in front of each line.

    \b
    Examples:
      llama-appliance logs
      llama-appliance logs -f starter
    """
    path = f"/logs/stream/{'upstream' if model is None else quote(model, safe='')}?search={quote(search, safe='')}"
    if not follow:
        text = (await ask_raw(server, "GET", f"{path}&no-follow")).decode("utf-8", "replace")
        for line in text.split("\n")[:-1]:
            _print_line(line, as_json)
        if not text and not search:
            say(f"{model or 'no model'} has printed {'nothing' if model else 'anything'} yet")
        return 0
    async with following(server, path) as response:
        await _print_stream(response, as_json)
    say("the server ended the log")
    return 0


async def _print_stream(response: HttpAnswer, as_json: bool) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    partial_line = ""
    while chunk := await response.receive():
        *lines, partial_line = (partial_line + decoder.decode(chunk)).split("\n")
        for line in lines:
            _print_line(line, as_json)


def _print_line(line: str, as_json: bool) -> None:
    click.echo(msgspec.json.encode(line) if as_json else line)
