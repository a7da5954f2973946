"""``ls``, ``rm`` and ``load --dry-run``: models on the disk, and how they fit into memory; no server is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import click
import trio
from msgspec import Struct

from appliance.catalog.catalog import Catalog, Snapshot
from appliance.catalog.sources import STARTER, ModelFolders, default_models_dir
from appliance.cli.options import ModelOptions, catalog_options, models_dir_option
from appliance.cli.remote import (
    NOT_RUNNING,
    ModelList,
    NotRunning,
    RequestRefused,
    RunningServer,
    ServerFailed,
    ask,
    server_options,
)
from appliance.cli.show import human_count, human_size, json_option, print_json, print_table
from appliance.core.engines.listing import Manual
from appliance.core.fit.budget import room_of
from appliance.core.fit.estimate import RAM
from appliance.core.fit.plan import FitPlan
from appliance.core.models.model import Model
from appliance.core.near_names import did_you_mean
from appliance.core.settings import FleetSettings
from appliance.engines.found import finder, installed_folder
from appliance.engines.owner import manual_of, open_engines
from appliance.errors import Conflict, EngineNotFound, ModelNotFound, UsageError
from appliance.fleet.budgets import plan_of
from appliance.platform.children import open_children
from appliance.platform.console import can_ask, say
from appliance.platform.drivers import look
from appliance.platform.machine import free_memory
from appliance.store.engine_state import StateFile

COLUMNS = ("ID", "ARCHITECTURE", "PARAMETERS", "QUANT", "SIZE", "CONTEXT", "FIT", "SOURCE", "STATE")
NUMBERS = ("PARAMETERS", "SIZE", "CONTEXT")


async def machine_room() -> tuple[Mapping[str, int], Manual | None]:
    """Return the bytes that are free now, in main memory within the container's limit, and on the GPUs to be used; and
    the engine's own facts.
    """
    room, manual = {RAM: free_memory()}, None
    with suppress(EngineNotFound):
        found = finder(None)
        file = StateFile(installed_folder())
        async with open_engines(found.find, file, starter=STARTER, only=found.only) as engines:
            engine = engines.choose()
        if engine is not None:
            manual = await manual_of(engine)
        if engine is not None and engine.gpus:
            async with open_children() as children:
                free = room_of(await look(children))
            room |= {device: free[device] for device in engine.gpus.values() if device in free}
    return room, manual


def planned(
    models: Sequence[Model], name: str, room: Mapping[str, int], manual: Manual | None
) -> tuple[Model, FitPlan]:
    """Return the plan for the model with this id or alias. Raises UsageError if there is none."""
    model = next((m for m in models if name in (m.id, *m.aliases)), None)
    if model is None:
        meant = did_you_mean(name, [model.id for model in models]) or "; 'llama-appliance ls' lists them"
        raise UsageError(f"there is no model '{name}'{meant}")
    if model.error:
        raise UsageError(f"{model.id} cannot be used: {model.error} ({model.path})")
    plan = plan_of(model, FleetSettings(), room, manual=manual)
    if plan is None:
        why = "its own command starts it" if model.config else "its file does not say enough, or is not here yet"
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
@click.argument("model")
@models_dir_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_options
@json_option
async def rm(server: RunningServer, model: str, models_dir: str | None, yes: bool, as_json: bool) -> int:
    """Remove a model from the Hugging Face cache or the models folder, with all its parts.

    \b
    Examples:
      llama-appliance rm ggml-org/gemma-3-4b-it-GGUF:Q4_K_M
      llama-appliance rm my-model --yes
    """
    sources = ModelOptions(models_dir=models_dir).sources()
    found = _exactly(await trio.to_thread.run_sync(Catalog(sources).scan), model)
    await _refuse_running(server, found)
    if not yes and not as_json and can_ask():
        confirm = partial(click.confirm, f"Remove {found.id} ({human_size(found.size)})?", abort=True)
        await trio.to_thread.run_sync(confirm, abandon_on_cancel=True)
    cache = sources.cache
    if cache is None:
        raise UsageError("there is no cache to remove a model from")
    from appliance.catalog.download_file import remove_model  # with all of downloading, which `ls` does without

    removed = await trio.to_thread.run_sync(remove_model, found, cache, sources.models_dir)
    if as_json:
        print_json(removed)
    else:
        say(f"removed {removed.model}, {human_size(removed.size)}")
    return 0


def _exactly(snapshot: Snapshot, name: str) -> Model:
    """Return one model; never guess between several."""
    of_repo = [model.id for model in snapshot.models if (model.hf_repo or "").casefold() == name.casefold()]
    if len(of_repo) > 1:
        raise UsageError(f"'{name}' has several models here; say which: {', '.join(of_repo)}")
    model = snapshot.find(name)
    if model is None:
        raise ModelNotFound(name, snapshot.near(name))
    return model


async def _refuse_running(server: RunningServer, model: Model) -> None:
    """Refuse to remove a model that a server has loaded. If no server answers, none has it."""
    if (await _states(server) or {}).get(model.id, NOT_RUNNING[0]) not in NOT_RUNNING:
        raise Conflict(
            f"'{model.id}' is running on the server at {server.url}; 'llama-appliance unload {model.id}' unloads it"
        )


class ModelRow(Struct, frozen=True, kw_only=True):
    """One model as ``ls --json`` prints it. ``state`` is None when no server runs."""

    id: str
    source: str
    path: str | None
    state: str | None
    aliases: tuple[str, ...] = ()
    architecture: str | None = None
    parameters: int | None = None
    quantisation: str | None = None
    size: int | None = None
    context_length: int | None = None
    error: str | None = None
    fit: FitPlan | None = None
    """None if it cannot be predicted."""


class LsOutput(Struct, frozen=True, kw_only=True):
    """The output of ``ls --json``."""

    models: list[ModelRow]
    models_dir: str | None
    server: str | None
    notes: tuple[str, ...]


@click.command()
@catalog_options
@server_options
@json_option
async def ls(choice: ModelOptions, server: RunningServer, as_json: bool) -> int:
    """List the models, and their states if a server runs. Works without one.

    \b
    Examples:
      llama-appliance ls
      llama-appliance ls --models-dir ~/models --json
    """
    sources = choice.sources()
    snapshot = await trio.to_thread.run_sync(Catalog(sources).scan)
    states = await _states(server)
    room, manual = await machine_room()
    found = ((model.id, plan_of(model, FleetSettings(), room, manual=manual)) for model in snapshot.models)
    plans = {model_id: plan for model_id, plan in found if plan is not None}
    rows = [
        _row(model, None if states is None else states.get(model.id, "unknown"), plans.get(model.id))
        for model in snapshot.models
    ]
    known = {row.id for row in rows}
    rows += [
        ModelRow(id=model_id, source="server", path=None, state=state)
        for model_id, state in (states or {}).items()
        if model_id not in known
    ]
    folder = str(sources.models_dir) if sources.models_dir else None
    if as_json:
        running = None if states is None else server.url
        print_json(LsOutput(models=rows, models_dir=folder, server=running, notes=snapshot.notes))
        return 0
    if rows:
        print_table(COLUMNS, [_cells(row, plans.get(row.id)) for row in rows], right=NUMBERS)
    else:
        say("there are no models")
    for row in rows:
        if row.error:
            say(f"{row.id} cannot be used: {row.error} ({row.path})")
    for note in snapshot.notes:
        say(f"note: {note}")
    say(f"\nModels folder: {folder or default_models_dir()}\nTo add a model, put its .gguf file there.")
    for line in _stores(sources):
        say(line)
    return 0


def _stores(sources: ModelFolders) -> list[str]:
    """Say where other programs keep models that are listed here."""
    kept = (("LM Studio", sources.lm_studio), ("Ollama", sources.ollama))
    return [f"Used in place: models of {name} in {path}" for name, paths in kept for path in paths if path.is_dir()]


async def _states(server: RunningServer) -> dict[str, str] | None:
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


def _row(model: Model, state: str | None, plan: FitPlan | None) -> ModelRow:
    info = model.info
    return ModelRow(
        id=model.id,
        source=model.source,
        path=model.path,
        state=state,
        aliases=model.aliases,
        architecture=info.architecture if info else None,
        parameters=info.parameters if info else None,
        quantisation=info.quantisation if info else None,
        size=model.size,
        context_length=info.context_length if info else None,
        error=model.error,
        fit=plan,
    )


def _cells(row: ModelRow, plan: FitPlan | None) -> tuple[str, ...]:
    return (
        row.id,
        row.architecture or "-",
        human_count(row.parameters) if row.parameters else "-",
        row.quantisation or "-",
        human_size(row.size) if row.size else "-",
        str(row.context_length) if row.context_length else "-",
        plan.word if plan else "-",
        row.source,
        "error" if row.error else row.state or "-",
    )
