"""``rm``: removes a model, or an unfinished download: by the server that runs, else from this user's folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from urllib.parse import quote

import click
import trio
from msgspec import Struct

from appliance.catalog.catalog import Snapshot, scan_models
from appliance.catalog.sources import ModelFolders
from appliance.catalog.supply import RemovedModel
from appliance.cli.app import ground_of
from appliance.cli.models import server_table, states_of
from appliance.cli.options import ModelOptions, models_dir_option
from appliance.cli.remote import NOT_RUNNING, RunningServer, ask, files_options
from appliance.cli.show import human_size, json_option, print_json
from appliance.cli.verb import Verb
from appliance.core.models.model import Model
from appliance.core.near_names import near
from appliance.errors import Conflict, Forbidden, ModelNotFound, UsageError
from appliance.features.downloads.removal import Removal, plan_leftover, plan_removal
from appliance.fleet.model_rows import ModelTable
from appliance.platform.console import can_ask, say


@click.command()
@click.argument("model")
@models_dir_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be freed, and remove nothing.")
@files_options
@json_option
@click.pass_context
async def rm(
    ctx: click.Context,
    server: RunningServer,
    model: str,
    models_dir: str | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Remove a model from the Hugging Face cache or the models folder, with all its parts; or an unfinished download.

    \b
    Examples:
      llama-appliance rm ggml-org/gemma-3-4b-it-GGUF:Q4_K_M
      llama-appliance rm ggml-org/gemma-3-4b-it-GGUF:Q4_K_M --dry-run
      llama-appliance rm my-model --yes
    """
    table = await server_table(server) if models_dir is None else None
    if table is not None:
        name, frees = await _removable_there(server, table, model)
        remove = partial(ask, server, "DELETE", f"/models?model={quote(name, safe='')}", RemovedModel)
    else:
        removal = await _own_removal(server, ModelOptions(models_dir=models_dir).sources(), model)
        name, frees = removal.model, await trio.to_thread.run_sync(removal.frees)
        remove = partial(_carry_out, removal, ground_of(ctx).verbs)
    if dry_run:
        if as_json:
            print_json({"model": name, "frees": frees})
        else:
            say(f"removing {name} would free {human_size(frees)}")
        return 0
    if not (yes or as_json) and can_ask():
        confirm = partial(click.confirm, f"Remove {name}, which frees {human_size(frees)}?", abort=True)
        await trio.to_thread.run_sync(confirm, abandon_on_cancel=True)
    removed = await remove()
    if as_json:
        print_json(removed)
    else:
        say(f"removed {removed.model}, {human_size(removed.size)}")
    return 0


async def _carry_out(removal: Removal, verbs: Iterable[Verb]) -> RemovedModel:
    for verb in verbs:
        if verb.removed is not None:
            await verb.removed(removal.model)
    return await trio.to_thread.run_sync(removal.carry_out)


async def _own_removal(server: RunningServer, sources: ModelFolders, name: str) -> Removal:
    """Raises ModelNotFound, Conflict for a model that runs, Forbidden for one that may not go."""
    snapshot = await trio.to_thread.run_sync(scan_models, sources)
    if (
        snapshot.find(name) is None
        and sources.cache is not None
        and (left := await trio.to_thread.run_sync(plan_leftover, name, sources.cache)) is not None
    ):
        return left
    found = _exactly(snapshot, name)
    states = await states_of(server)
    _refuse_running(server, found.id, (states or {}).get(found.id))
    return await trio.to_thread.run_sync(plan_removal, found, sources.cache, sources.models_dir)


class _Removable(Struct):
    """One line of ``GET /api/disk``: the removal of one model, or of what a download has left."""

    model: str
    frees: int = 0
    why: str = ""
    done: int = 0


class _Removables(Struct):
    models: list[_Removable]
    unfinished: list[_Removable]
    downloads: list[_Removable] = []


async def _removable_there(server: RunningServer, table: ModelTable, name: str) -> tuple[str, int]:
    """Return the name of what the server would remove, and what that frees. Raises the same, UsageError for several."""
    row = next((row for row in table.models if name in (row.id, *row.aliases)), None)
    of_repo = [row for row in table.models if row.id.rpartition(":")[0].casefold() == name.casefold()]
    if row is None and len(of_repo) > 1:
        raise _several(name, [row.id for row in of_repo])
    row = row or next(iter(of_repo), None)
    if row is not None:
        _refuse_running(server, row.id, row.state)
    found = await ask(server, "GET", "/api/disk", _Removables)
    wanted = row.id if row is not None else name
    for model in found.models:
        if model.model == wanted:
            if model.why:
                raise Forbidden(model.why)
            return wanted, model.frees
    begun = {one.model: one.frees for one in found.unfinished} | {one.model: one.done for one in found.downloads}
    if wanted not in begun:
        meant = near(name, [*(row.id for row in table.models), *begun])
        raise ModelNotFound(name, (meant,) if meant else ())
    return wanted, begun[wanted]


def _exactly(snapshot: Snapshot, name: str) -> Model:
    """Return one model; never guess between several."""
    of_repo = [model.id for model in snapshot.models if (model.hf_repo or "").casefold() == name.casefold()]
    if len(of_repo) > 1:
        raise _several(name, of_repo)
    model = snapshot.find(name)
    if model is None:
        raise ModelNotFound(name, snapshot.near(name))
    return model


def _several(name: str, found: Sequence[str]) -> UsageError:
    return UsageError(f"'{name}' has several models here; say which: {', '.join(found)}")


def _refuse_running(server: RunningServer, name: str, state: str | None) -> None:
    """Refuse to remove a model that a server has loaded. If no server answers, none has it."""
    if state not in (None, *NOT_RUNNING):
        raise Conflict(f"'{name}' is running on the server at {server.url}; 'llama-appliance unload {name}' unloads it")
