"""``ls``, ``rm`` and ``load --dry-run``: models on the disk, and how they fit into memory; no server is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import click
import trio
from msgspec import structs

from appliance.catalog.catalog import scan_models
from appliance.catalog.sources import ModelFolders, default_models_dir
from appliance.cli.app import ground_of
from appliance.cli.options import ModelOptions, catalog_options
from appliance.cli.remote import (
    ModelList,
    NotRunning,
    RequestRefused,
    RunningServer,
    ServerFailed,
    ask,
    files_options,
)
from appliance.cli.show import human_count, human_size, json_option, print_json, print_table
from appliance.core.engine import Manual
from appliance.core.memory import RAM, FitPlan, room_of
from appliance.core.models.model import Model
from appliance.core.near_names import did_you_mean
from appliance.engines.manuals import manual_of
from appliance.errors import EngineNotFound, UsageError
from appliance.fleet.chooser import EngineSource
from appliance.fleet.estimate import Estimate
from appliance.fleet.model_rows import ModelRow, ModelTable, model_rows
from appliance.platform.console import say
from appliance.platform.machine import free_memory

COLUMNS = ("ID", "ARCHITECTURE", "PARAMETERS", "QUANT", "SIZE", "CONTEXT", "FIT", "SOURCE", "STATE", "LAST USED")
NUMBERS = ("PARAMETERS", "SIZE", "CONTEXT")


async def machine_room(engines: EngineSource) -> tuple[Mapping[str, int], Manual | None]:
    """Return the bytes that are free now, in main memory within the container's limit, and on the GPUs to be used; and
    the engine's own facts.
    """
    room, manual = {RAM: free_memory()}, None
    with suppress(EngineNotFound):
        async with engines.found(None).open() as choice:
            engine = choice.choose()
        if engine is not None:
            manual = await manual_of(engine)
        if engine is not None and engine.gpus:
            free = room_of(await engines.look())
            room |= {device: free[device] for device in engine.gpus.values() if device in free}
    return room, manual


def planned(
    models: Sequence[Model], name: str, room: Mapping[str, int], manual: Manual | None, estimate: Estimate
) -> tuple[Model, FitPlan]:
    """Return the plan for the model with this id or alias. Raises UsageError if there is none."""
    model = next((m for m in models if name in (m.id, *m.aliases)), None)
    if model is None:
        meant = did_you_mean(name, [model.id for model in models]) or "; 'llama-appliance ls' lists them"
        raise UsageError(f"there is no model '{name}'{meant}")
    if model.error:
        raise UsageError(f"{model.id} cannot be used: {model.error} ({model.path})")
    plan = estimate.plan(model, room, manual)
    if plan is None:
        why = "its own command starts it" if model.config else estimate.why_unknown
        raise UsageError(f"what {model.id} takes cannot be predicted: {why}")
    return model, plan


def print_plan(model: Model, plan: FitPlan) -> None:
    """Print the plan for people."""
    click.echo(f"{model.id}: {plan.word}: {plan.why}")
    rows = [
        (device, *(human_size(size) for size in (use.model, use.cache, use.compute + use.output, use.total)), free)
        for device, use in plan.memory.items()
        for free in (human_size(plan.room[device]) if device in plan.room else "-",)
    ]
    columns = ("DEVICE", "WEIGHTS", "CONTEXT", "COMPUTE", "TOTAL", "FREE")
    print_table(columns, rows, right=columns[1:])
    slots = "1 slot" if plan.parallel == 1 else f"{plan.parallel} slots of up to {plan.slot_context}"
    click.echo(f"context {plan.context} tokens, {slots}; {human_size(plan.reserve)} stay free on each device")
    click.echo(f"flags: {' '.join(plan.flags) or 'none are needed'}")


@click.command()
@catalog_options
@files_options
@json_option
@click.pass_context
async def ls(ctx: click.Context, choice: ModelOptions, server: RunningServer, as_json: bool) -> int:
    """List the models of the server that runs, with their states; without one, those of this user.

    \b
    Examples:
      llama-appliance ls
      llama-appliance ls --models-dir ~/models --json
    """
    table = await server_table(server) if choice == ModelOptions() else None
    if table is None:
        table = await _own_table(choice.sources(), server, ground_of(ctx).engines(), ground_of(ctx).estimate())
    if as_json:
        print_json(table)
        return 0
    if table.models:
        print_table(COLUMNS, [_cells(row) for row in table.models], right=NUMBERS)
    else:
        say("there are no models")
    for row in table.models:
        if row.error:
            say(f"{row.id} cannot be used: {row.error} ({row.path})")
    for note in table.notes:
        say(f"note: {note}")
    say(f"\nModels folder: {table.models_dir or default_models_dir()}\nTo add a model, put its .gguf file there.")
    for store in table.stores:
        say(f"Used in place: models of {store}")
    if server.kind == "service":
        say("(as the service of this machine sees it)")
    return 0


async def server_table(server: RunningServer) -> ModelTable | None:
    """Return the models of the server that shares this home, or that is named; None where there is none of ours."""
    if server.kind in ("usual", "closed"):
        return None
    try:
        found = await ask(server, "GET", "/api/ls", ModelTable)
    except (NotRunning, RequestRefused, ServerFailed) as cause:
        if server.kind == "service" or (server.named and isinstance(cause, NotRunning)):
            raise
        return None
    return structs.replace(found, server=server.url)


async def _own_table(
    sources: ModelFolders, server: RunningServer, engines: EngineSource, estimate: Estimate
) -> ModelTable:
    snapshot = await trio.to_thread.run_sync(scan_models, sources)
    states = await states_of(server)
    room, manual = await machine_room(engines)
    return ModelTable(
        models=model_rows(snapshot.models, states, room, manual, {}, estimate),
        models_dir=str(sources.models_dir) if sources.models_dir else None,
        server=None if states is None else server.url,
        notes=snapshot.notes,
        stores=sources.others,
    )


async def states_of(server: RunningServer) -> dict[str, str] | None:
    """Return every model's state by its id, None when no server tells. A server that the user named must be there."""
    try:
        answer = await ask(server, "GET", "/models", ModelList)
    except (NotRunning, RequestRefused, ServerFailed) as cause:
        if server.named:
            raise
        if isinstance(cause, RequestRefused):
            say(f"the server does not say which models are loaded: {cause}")
        return None
    return {entry.id: entry.status.value for entry in answer.data}


def _cells(row: ModelRow) -> tuple[str, ...]:
    return (
        row.id,
        row.architecture or "-",
        human_count(row.parameters) if row.parameters else "-",
        row.quantisation or "-",
        human_size(row.size) if row.size else "-",
        str(row.context_length) if row.context_length else "-",
        row.fit.word if row.fit else "-",
        row.source,
        "error" if row.error else row.state or "-",
        f"{row.last_used.astimezone():%Y-%m-%d %H:%M}" if row.last_used else "-",
    )
