"""``agent ls``, ``answer``, ``cancel`` and ``reset``: what a user does about the runs of the running server."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote, urlencode

import click
import msgspec
from msgspec import Struct

from appliance.cli.remote import RunningServer, ask, ask_raw, server_options
from appliance.cli.show import json_option, print_json, print_table
from appliance.errors import UsageError
from appliance.features.runs.rules import STATES
from appliance.platform.console import PROGRAM, harmless, say

RUNS = "/api/runs"
WORKERS = "/api/workers"
COLUMNS = ("RUN", "STATE", "SINCE", "MODEL", "TURNS", "TOKENS", "TASK")
SHOWN = 200  # number of characters shown of a tool's arguments or result
TASK_SHOWN = 60


class _Pending(Struct):
    id: str
    name: str


class _Usage(Struct):
    prompt_tokens: int
    completion_tokens: int


class _Run(Struct):
    """One of ``GET /api/runs``, as far as it is shown here."""

    id: str
    model: str
    prompt: str
    state: str
    created_at: float
    tool_iterations_used: int
    tool_iterations_left: int
    usage: _Usage
    pending_tool_calls: list[_Pending]


class _Worker(Struct):
    model: str
    state: str
    detail: str | None = None


@click.command()
@click.option("--model", "models", multiple=True, metavar="MODEL", help="Only runs of MODEL.")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many, the newest first.")
@server_options
@json_option
async def ls(
    server: RunningServer, *, models: tuple[str, ...], states: tuple[str, ...], limit: int, as_json: bool
) -> int:
    """List the runs that the running server knows. --model and --state may be given several times.

    \b
    Examples:
      llama-appliance agent ls
      llama-appliance agent ls --state running --state tool_running --json
    """
    query = [*(("model", model) for model in models), *(("state", state) for state in states), ("limit", limit)]
    path = f"{RUNS}?{urlencode(query)}"
    if as_json:
        print_json(msgspec.Raw(await ask_raw(server, "GET", path)))
        return 0
    runs = (await ask(server, "GET", path, dict[str, list[_Run]]))["data"]
    if runs:
        print_table(COLUMNS, [_cells(run) for run in runs], right=("TURNS", "TOKENS"))
    else:
        say("there are no such runs" if models or states else "there are no runs")
    for run in runs:
        for call in run.pending_tool_calls:
            say(question(run.id, call.id, call.name))
    for worker in (await ask(server, "GET", WORKERS, dict[str, list[_Worker]]))["data"]:
        if worker.state == "failed":
            say(f"{worker.model} takes no runs: {worker.detail}; '{PROGRAM} agent reset {worker.model}' accepts them")
    return 0


@click.command()
@click.argument("run")
@click.argument("text")
@click.option("--call", "call_id", metavar="ID", help="The call that TEXT answers; needed if several wait.")
@click.option("--failed", is_flag=True, help="TEXT says why the function could not be executed. The run fails.")
@server_options
async def answer(server: RunningServer, *, run: str, text: str, call_id: str | None, failed: bool) -> int:
    """Answer a call of a function that the task of RUN defines: TEXT is its result, for the model.

    \b
    Examples:
      llama-appliance agent answer RUN "It rains."
      llama-appliance agent answer RUN --call ID --failed "no network"
    """
    if call_id is None:
        pending = (await ask(server, "GET", path_of(run), _Run)).pending_tool_calls
        if len(pending) > 1:
            calls = ", ".join(f"{call.id} ({call.name})" for call in pending)
            raise UsageError(f"run {run} waits for several results; say which with --call: {calls}")
        call_id = pending[0].id if pending else ""  # the server says then that it waits for nothing
    result = {"tool_call_id": call_id, "error" if failed else "content": text}
    refuse_unsendable(result, "the answer")
    await ask(server, "POST", path_of(run, "/tool_results"), _Run, {"results": [result]})
    return 0


@click.command()
@click.argument("run")
@server_options
async def cancel(server: RunningServer, run: str) -> int:
    """Cancel RUN. Its text so far is kept.

    \b
    Examples:
      llama-appliance agent cancel RUN
    """
    say((await ask(server, "DELETE", path_of(run), _Run)).state)
    return 0


@click.command()
@click.argument("model")
@server_options
async def reset(server: RunningServer, model: str) -> int:
    """Accept runs on MODEL again, which its engine's failures have locked out.

    \b
    Examples:
      llama-appliance agent reset MODEL
    """
    await ask(server, "POST", f"{WORKERS}/{quote(model, safe='')}/reset", _Worker)
    return 0


def path_of(run: str, below: str = "") -> str:
    return f"{RUNS}/{quote(run, safe='')}{below}"


def refuse_unsendable(value: object, what: str) -> None:
    """Refuse what JSON cannot express: with an argument of the command line that is not UTF-8."""
    try:
        msgspec.json.encode(value)
    except ValueError as error:
        raise UsageError(f"{what} cannot be written as JSON: {error}") from None


def question(run: str, call_id: str, name: str) -> str:
    """Say which result a run waits for, and how to give it."""
    return f"run {run} waits for the result of {name}: '{PROGRAM} agent answer {run} --call {call_id} TEXT'"


def short(text: str, most: int = SHOWN) -> str:
    """Return one line, which a terminal can show."""
    line = harmless(" ".join(text.split()))
    return line if len(line) <= most else f"{line[:most]}..."


def _cells(run: _Run) -> tuple[str, ...]:
    since = f"{datetime.fromtimestamp(run.created_at):%m-%d %H:%M:%S}"
    turns = f"{run.tool_iterations_used}/{run.tool_iterations_used + run.tool_iterations_left}"
    tokens = str(run.usage.prompt_tokens + run.usage.completion_tokens)
    return run.id, run.state, since, run.model, turns, tokens, short(run.prompt, TASK_SHOWN)
