"""``agent run``: an agent task on the running server, followed in the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import click
import msgspec
import trio
from msgspec import Struct
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from appliance.cli.plan import AsyncCommand
from appliance.cli.remote import Server, ask, ask_raw, parse_server, refuse_errors, server_options
from appliance.cli.status import EXIT_INTERRUPTED, EXIT_OURS, say
from appliance.core.sse import Decoder, Event
from appliance.errors import UpstreamFailed, UsageError
from appliance.upstream.client import exchange

FROM_STDIN = "-"
MAX_TASK = 16 << 20
RUNS = "/api/runs"
TASK_FILES = (".json", ".yaml", ".yml")
SHOWN = 200
"""Characters of a tool's arguments or result that are shown."""
ATTEMPTS = 5
"""Times in a row that the events are asked for again, from where they broke off."""
PAUSE = 0.5

Task = dict[str, object]


class _Begun(Struct):
    id: str


class _Text(Struct):
    text: str = ""


class _ToolCall(Struct):
    name: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class _ToolResult(Struct):
    result: str | None = None
    error: str | None = None
    seconds: float = 0.0


class _End(Struct):
    state: str
    fail_reason: str | None = None
    detail: str | None = None
    finish_reason: str | None = None


@click.group()
def agent() -> None:
    """Agent tasks on the running server: a model works on its own, with tools, until it is done.

    \b
    Examples:
      llama-appliance agent run task.yaml
      echo "What is in this folder?" | llama-appliance agent run - --model starter --tool file_glob_search
    """


@agent.command(name="run")
@click.argument("file")
@click.option("--model", metavar="MODEL", help="The model; needed where FILE names none.")
@click.option("--system", metavar="TEXT", help="What the model is told before the prompt.")
@click.option("--tool", "tools", metavar="NAME", multiple=True, help="A tool of the server, or mcp:SERVER; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON at the end.")
@server_options
def run_agent(
    file: str,
    model: str | None,
    system: str | None,
    tools: tuple[str, ...],
    as_json: bool,
    url: str | None,
    api_key: str | None,
) -> AsyncCommand:
    """Run the task in FILE, or on standard input where FILE is -, and follow it to its end.

    A .json or .yaml file, or text that begins with {, is a task as POST /api/runs takes it; any other text is the
    prompt. Standard output holds what the model says, standard error what tools do. Ctrl-C cancels the run. The exit
    status is 0 when it has completed, 1 when it has failed, 130 when it was canceled.

    \b
    Examples:
      llama-appliance agent run task.yaml
      echo "What is in this folder?" | llama-appliance agent run - --model starter --tool file_glob_search
    """
    task = _read_task(file)
    if model is not None:
        task["model"] = model
    if system is not None:
        task["system_prompt"] = system
    if tools:
        given = task.get("tools")
        task["tools"] = [*(given if isinstance(given, list) else []), *tools]  # pyright: ignore[reportUnknownArgumentType]
    if not task.get("model"):
        raise UsageError(f"{file} names no model; add --model MODEL ('llama-appliance ls' lists them)")
    _refuse_functions(task)
    return partial(_run, parse_server(url, api_key), task, as_json=as_json)


def _read_task(file: str) -> Task:
    """Raises UsageError."""
    if file == FROM_STDIN:
        text = sys.stdin.read(MAX_TASK)
    else:
        try:
            text = Path(file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = (error.strerror or error) if isinstance(error, OSError) else "it is no UTF-8 text"
            raise UsageError(f"{file}: {why}") from None
    if not text.strip():
        raise UsageError(f"{file} is empty; it holds a task or a prompt")
    if not (file.endswith(TASK_FILES) or text.lstrip().startswith("{")):
        return {"user_prompt": text}
    try:
        task: object = YAML(typ="safe", pure=True).load(text)  # JSON is YAML  # pyright: ignore[reportUnknownMemberType]
    except YAMLError as error:
        raise UsageError(f"{file} cannot be read as a task: {' '.join(str(error).split())}") from None
    if not isinstance(task, dict):
        raise UsageError(f"{file} is no task: it must be an object with 'model' and 'user_prompt' or 'messages'")
    return {str(key): value for key, value in task.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]


def _refuse_functions(task: Task) -> None:
    tools = task.get("tools")
    for tool in tools if isinstance(tools, list) else []:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(tool, str):
            raise UsageError(
                "'tools' defines a function, and the terminal executes none; name a tool of the server, "
                "or move it to 'exit_tools'"
            )


async def _run(server: Server, task: Task, *, as_json: bool) -> int:
    run = (await ask(server, "POST", RUNS, _Begun, task)).id
    say(f"run {run}")
    screen = _Screen(quiet=as_json)
    failure: Exception | None = None
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_signal, signals, server, run)
            try:
                await _follow(server, run, screen)
            except (click.ClickException, UpstreamFailed, OSError) as error:
                failure = error
            nursery.cancel_scope.cancel()
    screen.close()
    if failure is not None:
        raise failure
    if as_json:
        click.echo((await ask_raw(server, "GET", f"{RUNS}/{run}/result")).decode())
    return _outcome(screen.end)


def _outcome(end: _End | None) -> int:
    match end:
        case _End(state="completed", finish_reason="max_tokens"):
            say("(the answer was cut off at the token limit)")
            return 0
        case _End(state="completed"):
            return 0
        case _End(state="canceled"):
            say("canceled")
            return EXIT_INTERRUPTED
        case _End(fail_reason=reason, detail=detail):
            say(f"failed: {reason}: {detail}")
            return EXIT_OURS
        case None:
            raise UpstreamFailed("the run", "its events ended before it did")


async def _cancel_on_signal(signals: AsyncIterator[int], server: Server, run: str) -> None:
    """The run's own end follows, in its events."""
    async for _ in signals:
        await ask_raw(server, "DELETE", f"{RUNS}/{run}")


async def _follow(server: Server, run: str, screen: _Screen) -> None:
    """Until the end of the events; a connection that breaks is made again, from the byte where it broke."""
    decoder, offset, failed = Decoder(), 0, 0
    while screen.end is None:
        target = f"{server.prefix}{RUNS}/{run}/events?from={offset}"
        try:
            async with exchange(server.address, "GET", target) as response:
                await refuse_errors(server, response)
                while data := await response.receive():
                    offset, failed = offset + len(data), 0
                    for event in decoder.feed(data):
                        screen.show(event)
                return
        except UpstreamFailed:
            failed += 1
            if failed > ATTEMPTS:
                raise
            await trio.sleep(PAUSE)


class _Screen:
    """What the model says on standard output, all else on standard error."""

    def __init__(self, *, quiet: bool) -> None:
        self.end: _End | None = None
        self._quiet = quiet
        self._last = "\n"

    def show(self, event: Event) -> None:
        data = event.data
        match event.name:
            case "output":
                self._write(msgspec.json.decode(data, type=_Text).text)
            case "tool_call":
                call = msgspec.json.decode(data, type=_ToolCall)
                self._note(f"tool {call.name} {_short(bytes(call.arguments).decode())}")
            case "tool_result":
                result = msgspec.json.decode(data, type=_ToolResult)
                told = f"failed: {result.error}" if result.error is not None else result.result or ""
                self._note(f"  {result.seconds:.2f} s: {_short(told)}")
            case "signal":
                call = msgspec.json.decode(data, type=_ToolCall)
                self._note(f"signal {call.name} {_short(bytes(call.arguments).decode())}")
            case "end":
                self.end = msgspec.json.decode(data, type=_End)
            case _:
                pass

    def close(self) -> None:
        """End the line."""
        if not self._last.endswith("\n"):
            self._write("\n")

    def _write(self, text: str) -> None:
        if text and not self._quiet:
            self._last = text
            sys.stdout.write(text)
            sys.stdout.flush()

    def _note(self, text: str) -> None:
        if not self._last.endswith("\n") and sys.stdout.isatty():
            self._write("\n")
        say(text)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}..."
