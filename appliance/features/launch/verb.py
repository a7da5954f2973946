"""``launch``: a coding client, set to a model of the running server and started in the place of this program."""

from __future__ import annotations

import click
from msgspec import Struct

from appliance.cli.options import UNIX, gathered
from appliance.cli.remote import CHAT_PATH, RunningServer, ask, ask_raw, server_options
from appliance.core.lenient_json import decoded
from appliance.core.openai import ChatCompletion
from appliance.errors import UsageError
from appliance.features.launch.core.checks import (
    QUESTION,
    ClientsAddress,
    OfferedModel,
    OfferedModels,
    calls_tool,
    chosen,
    refuse_short,
)
from appliance.features.launch.core.clients import CLIENTS, NO_KEY, Client, facts, filled
from appliance.features.launch.starting import KEPT, become, edit_of, program_of, shell_line
from appliance.platform.console import can_ask, say

LOAD_TIME = 900.0
"""Seconds for the first answer of a model that may have to be loaded."""


class LaunchOptions(Struct, frozen=True, kw_only=True):
    """The options of a start."""

    model: str | None
    prints: bool
    only_config: bool
    unchecked: bool


@click.command()
@click.argument("client", type=click.Choice([client.name for client in CLIENTS]), metavar="CLIENT")
@click.argument("args", nargs=-1, metavar="[-- ARGS]")
@gathered(
    "options",
    LaunchOptions,
    click.option("--model", metavar="NAME", help="The model; without it the only one, or you are asked."),
    click.option("--print", "prints", is_flag=True, help="Print what would be written and run, and do neither."),
    click.option(
        "--config-only", "only_config", is_flag=True, help="Write the client's settings, and do not start it."
    ),
    click.option("--no-check", "unchecked", is_flag=True, help="Do not test tool calls and the context's length."),
)
@server_options
async def launch(server: RunningServer, client: str, args: tuple[str, ...], options: LaunchOptions) -> int:
    """Start a coding client that uses a model of the running server.

    CLIENT is claude, codex, opencode, qwen, aider, goose, crush, continue, pi or zed. The model has to call a tool
    first, and its context has to be long enough for the client. A change of the client's settings is shown as a
    difference, and the file is kept as it was before. ARGS go to the client, and its exit status is that of this
    command.

    \b
    Examples:
      llama-appliance launch claude
      llama-appliance launch codex --model qwen3-coder -- exec "Explain this folder"
      llama-appliance launch opencode --print
    """
    wanted = next(each for each in CLIENTS if each.name == client)
    starts = not options.prints and not options.only_config
    program = program_of(wanted) if starts else (*wanted.programs, client)[0]
    if options.only_config and not wanted.places:
        raise UsageError(
            f"{wanted.title} gets all settings when it starts: see 'llama-appliance launch {client} --print'"
        )
    model = await _model(server, options.model)
    if not options.unchecked:
        model = await _checked(server, wanted, model)
    key = server.address.key or NO_KEY
    known = facts(wanted, await _url(server), model.id, model.context_length, key)
    edit = edit_of(wanted, known)
    known["<path>"] = str(edit.path) if edit is not None else ""
    argv = [program, *(filled(word, known) for word in wanted.words), *(args or wanted.alone)]
    environment = {name: text and filled(text, known) for name, text in wanted.environment.items()}
    difference = edit.difference() if edit is not None else ""
    if options.prints:
        click.echo("\n\n".join(filter(None, (difference, shell_line(argv, environment, key)))))
        return 0
    if edit is not None and difference:
        say(difference)
        edit.write()
        say(f"written: {edit.path}" + (f"; as it was: {edit.path.name}{KEPT}" if edit.was is not None else ""))
    return await become(argv, environment) if starts else 0


async def _model(server: RunningServer, wanted: str | None) -> OfferedModel:
    offered = (await ask(server, "GET", "/models", OfferedModels)).data
    if (model := chosen(offered, wanted)) is not None:
        return model
    if not can_ask():
        raise UsageError(f"choose a model with --model; there are {', '.join(model.id for model in offered)}")
    for number, model in enumerate(offered, 1):
        say(f"{number:3}  {model.id}")
    return offered[click.prompt("Model", type=click.IntRange(1, len(offered)), err=True) - 1]


async def _checked(server: RunningServer, client: Client, model: OfferedModel) -> OfferedModel:
    """Return what is known of the model once it has answered. Raises UsageError, and what `ask_raw` raises."""
    refuse_short(client, model)  # before it is loaded, if that is known
    say(f"asking {model.id} to call a tool ...")
    asked = {**QUESTION, "model": model.id}
    answer = await ask_raw(server, "POST", CHAT_PATH, asked, patience=LOAD_TIME)
    if not calls_tool(decoded(ChatCompletion, answer)):
        raise UsageError(
            f"{model.id} did not call the tool that it was asked to call, so {client.title} could do nothing with it; "
            "choose a model that is made for tools with --model, or start it anyway with --no-check"
        )
    offered = (await ask(server, "GET", "/models", OfferedModels)).data
    model = next((each for each in offered if each.id == model.id), model)
    refuse_short(client, model)
    if not model.context_length:
        say(f"warning: the context of {model.id} is unknown; {client.title} needs {client.least} tokens")
    return model


async def _url(server: RunningServer) -> str:
    """Return the server's URL for clients, which need its key there. Raises UsageError."""
    if not server.url.startswith(UNIX):
        return server.url
    url = (await ask(server, "GET", "/api/launch", ClientsAddress)).url
    if not url:
        raise UsageError("the server listens on files alone; clients need an address: 'llama-appliance serve --listen'")
    return url
