"""``rm``: removes a model from the disk, in the hub cache or the models folder."""

from __future__ import annotations

import sys
from functools import partial

import click
import trio

from appliance.catalog.catalog import Catalog, Snapshot
from appliance.catalog.download_delete import remove_model
from appliance.catalog.sources import Sources
from appliance.cli.control import NOT_RUNNING, ModelList
from appliance.cli.model_options import sources_of
from appliance.cli.plan import AsyncCommand
from appliance.cli.remote import NotRunning, Refused, Server, ServerFailed, ask, parse_server, server_options
from appliance.cli.show import human_size, print_json
from appliance.core.models.model import Model
from appliance.errors import Conflict, ModelNotFound, UsageError
from appliance.platform.console import say


@click.command()
@click.argument("model")
@click.option("--models-dir", metavar="DIR", help="Folder with models, instead of the usual one.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rm(
    model: str, models_dir: str | None, yes: bool, url: str | None, api_key: str | None, as_json: bool
) -> AsyncCommand:
    """Remove a model from the Hugging Face cache or the models folder, with all its parts.

    \b
    Examples:
      llama-appliance rm ggml-org/gemma-3-4b-it-GGUF:Q4_K_M
      llama-appliance rm my-model --yes
    """
    return partial(
        _rm, sources_of((), models_dir, no_starter=False, stores=True), parse_server(url, api_key), model, yes, as_json
    )


async def _rm(sources: Sources, server: Server, name: str, yes: bool, as_json: bool) -> int:
    snapshot = await trio.to_thread.run_sync(Catalog(sources).scan)
    model = _exactly(snapshot, name)
    await _refuse_running(server, model)
    if not yes and not as_json and sys.stdin.isatty():
        ask = partial(click.confirm, f"Remove {model.id} ({human_size(model.size)})?", abort=True)
        await trio.to_thread.run_sync(ask, abandon_on_cancel=True)
    cache = sources.cache
    if cache is None:
        raise UsageError("there is no cache to remove a model from")
    removed = await trio.to_thread.run_sync(remove_model, model, cache, sources.models_dir)
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


async def _refuse_running(server: Server, model: Model) -> None:
    """Refuse to remove a model that a server has loaded. If no server answers, none has it."""
    try:
        entries = (await ask(server, "GET", "/models", ModelList)).data
    except (NotRunning, Refused, ServerFailed):
        if server.named:
            raise
        return
    if any(entry.id == model.id and entry.status.value not in NOT_RUNNING for entry in entries):
        raise Conflict(
            f"'{model.id}' is running on the server at {server.url}; unload it first: llama-appliance unload {model.id}"
        )
