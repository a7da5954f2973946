"""``agent run`` and ``agent follow``: a task is sent to the running server, and followed in the terminal.

A task is read from a file or standard input, and checked before it is sent.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from urllib.parse import quote

import click
import msgspec
import trio
from msgspec import Struct

from appliance.cli.remote import NotRunning, RunningServer, ask, ask_raw, refuse_errors, server_options
from appliance.core.bodies.sse import Decoder, SseEvent
from appliance.core.config.decode import plain
from appliance.core.config.yaml import parse
from appliance.core.lenient_json import UNREADABLE
from appliance.errors import ApplianceError, UpstreamFailed, UsageError
from appliance.features.runs.run_verbs import (
    RUNS,
    answer,
    cancel,
    ls,
    path_of,
    question,
    refuse_unsendable,
    reset,
    short,
)
from appliance.platform.console import EXIT_INTERRUPTED, EXIT_OURS, harmless, say
from appliance.trio_parts import beside
from appliance.upstream.client import HttpCall

FROM_STDIN = "-"
STDIN = 0
MAX_TASK = 16 << 20  # in bytes; the largest task that a server accepts
TASK_FILES = (".json", ".yaml", ".yml")

Task = dict[str, object]
ATTEMPTS = 5  # number of attempts in a row to read the events again from where they broke off
PAUSE = 0.5
ENDED = ("completed", "failed", "canceled")


def read_task(file: str) -> Task:
    """Read the task. Raises UsageError."""
    where = named(file)
    try:
        with open(STDIN if file == FROM_STDIN else file, "rb") as source:  # noqa: PTH123  it may be a descriptor
            data = source.read(MAX_TASK + 1)
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or error}; name a file with a task or a prompt, or -") from None
    if len(data) > MAX_TASK:
        raise UsageError(f"{where} holds more than the {MAX_TASK >> 20} MiB that a task may have; send less")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{where} is not UTF-8 text; save it as UTF-8") from None
    if not text.strip():
        raise UsageError(f"{where} is empty; put a task or a prompt into it")
    if not (file.endswith(TASK_FILES) or text.lstrip().startswith("{")):
        return {"user_prompt": text}
    task = _parsed(text, where)
    if not isinstance(task, dict):
        raise UsageError(f"{where} is not a task: it must be an object with 'model' and 'user_prompt' or 'messages'")
    return {str(key): value for key, value in task.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]


def named(file: str) -> str:
    return "standard input" if file == FROM_STDIN else file


def _parsed(text: str, where: str) -> object:
    """Parse JSON, else YAML as a configuration is written in."""
    try:
        return msgspec.json.decode(text)
    except UNREADABLE as error:
        if where.endswith(".json"):
            raise UsageError(f"{where} cannot be read as a task: {error}") from None
    root, problems = parse(text, where)
    if errors := [str(problem) for problem in problems if problem.level == "error"]:
        raise UsageError(f"{where} cannot be read as a task: {errors[0]}")
    return root and plain(root)


class _Told(Struct):
    """An event, as far as it is shown here."""

    id: str = ""
    text: str = ""
    name: str = ""
    runner: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    result: str | None = None
    error: str | None = None
    seconds: float = 0.0


_told = msgspec.json.Decoder(_Told).decode


class _End(Struct):
    state: str
    fail_reason: str | None = None
    detail: str | None = None
    finish_reason: str | None = None


@click.group()
def agent() -> None:
    """Run agent tasks on the running server: a model works on its own, with tools, until it is done.

    \b
    Examples:
      llama-appliance agent run task.yaml
      llama-appliance agent ls
      llama-appliance agent follow RUN
      llama-appliance agent answer RUN "It rains."
    """


@agent.command(name="run")
@click.argument("file")
@click.option("--model", metavar="MODEL", help="The model; required if FILE does not name one.")
@click.option("--system", metavar="TEXT", help="A system prompt for the model.")
@click.option("--tool", "tools", metavar="NAME", multiple=True, help="A tool of the server, or mcp:SERVER; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON at the end.")
@server_options
async def run_agent(
    server: RunningServer, file: str, model: str | None, system: str | None, tools: tuple[str, ...], as_json: bool
) -> int:
    """Run the task in FILE and follow it to its end; - is standard input.

    A .json or .yaml file, or text that begins with {, is a task in the format of POST /api/runs; any other text is the
    prompt. Standard output holds the model's text, and standard error reports the tools' work. Ctrl-C cancels the run.
    A call of a function that the task defines waits for 'agent answer'.
    The exit status is 0 when the run has completed, 1 when it has failed, 130 when it was canceled.

    \b
    Examples:
      llama-appliance agent run task.yaml
      echo "What can you do?" | llama-appliance agent run - --model starter
      echo "What is in this folder?" | llama-appliance agent run - --model MODEL --tool file_glob_search
    """
    task = read_task(file)
    if model is not None:
        task["model"] = model
    if system is not None:
        task["system_prompt"] = system
    if tools:
        given = task.get("tools")
        task["tools"] = [*(given if isinstance(given, list) else []), *tools]  # pyright: ignore[reportUnknownArgumentType]
    if not task.get("model"):
        raise UsageError(f"{named(file)} does not name a model; add --model MODEL ('llama-appliance ls' lists them)")
    refuse_unsendable(task, f"the task in {named(file)}")
    run = (await ask(server, "POST", RUNS, _Told, task)).id
    screen = _Screen(run, quiet=as_json)
    end: _End | None = None
    try:
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            async with beside() as nursery:
                nursery.start_soon(_cancel_on_signal, signals, server, run, nursery.cancel_scope)
                say(f"run {run}")  # from here on Ctrl-C cancels it
                end = await _follow(server, run, screen)
    except OSError:  # nobody reads what the model says
        await _cancel(server, run)
        raise
    finally:
        screen.close()
    if end is None:
        say(f"not waiting for the end of run {run}; it may continue")
        return EXIT_INTERRUPTED
    return await _report(server, run, end, as_json=as_json)


@agent.command()
@click.argument("run")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON at the end.")
async def follow(server: RunningServer, run: str, as_json: bool) -> int:
    """Follow RUN to its end, from its beginning on, and end as 'agent run' does. Ctrl-C leaves the run alone.

    \b
    Examples:
      llama-appliance agent ls
      llama-appliance agent follow RUN
    """
    screen = _Screen(run, quiet=as_json)
    try:
        end = await _follow(server, quote(run, safe=""), screen)
    finally:
        screen.close()
    return await _report(server, run, end, as_json=as_json)


for verb in (ls, answer, cancel, reset):
    agent.add_command(verb)


async def _report(server: RunningServer, run: str, end: _End, *, as_json: bool) -> int:
    """Say how the run has ended; return the exit status."""
    if as_json:
        click.echo((await ask_raw(server, "GET", path_of(run, "/result"))).decode())
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


async def _cancel_on_signal(
    signals: AsyncIterator[int], server: RunningServer, run: str, following: trio.CancelScope
) -> None:
    """Cancel the run at the first signal; its events then report its end. A second signal stops following the run."""
    async with trio.open_nursery() as nursery:
        await anext(signals)
        nursery.start_soon(_cancel, server, run)
        await anext(signals)
        following.cancel()


async def _cancel(server: RunningServer, run: str) -> None:
    try:
        await ask_raw(server, "DELETE", f"{RUNS}/{run}")
    except ApplianceError as error:
        say(f"run {run} could not be canceled: {error}")


async def _follow(server: RunningServer, run: str, screen: _Screen) -> _End:
    """Follow the run until its end; connect again, from the byte where a connection broke.

    A restarted program reports its stored runs anew, in fewer bytes, so the end may be all that is left. Raises
    NotRunning, and OSError when standard output cannot be written to.
    """
    decoder, offset, failed = Decoder(), 0, 0
    while screen.end is None:
        target = f"{server.prefix}{RUNS}/{run}/events?from={offset}"
        try:
            async with HttpCall(server.address, "GET", target) as response:
                await refuse_errors(server, response)
                while data := await response.receive():
                    offset, failed = offset + len(data), 0
                    for event in decoder.feed(data):
                        screen.show(event)
            if screen.end is None:
                status = await ask(server, "GET", f"{RUNS}/{run}", _End)
                screen.end = status if status.state in ENDED else None
            why = "it sends nothing more about the run"
        except (UpstreamFailed, NotRunning) as cause:
            why = cause.why
        if screen.end is None:
            failed += 1
            if failed > ATTEMPTS:
                raise NotRunning(server, why)
            await trio.sleep(PAUSE)
    return screen.end


class _Screen:
    """Print the model's text on standard output, and everything else on standard error."""

    def __init__(self, run: str, *, quiet: bool) -> None:
        self.end: _End | None = None
        self._run = run
        self._quiet = quiet
        self._last = "\n"

    def show(self, event: SseEvent) -> None:
        if event.name == "end":
            self.end = msgspec.json.decode(event.data, type=_End)
            return
        told = _told(event.data)
        arguments = short(bytes(told.arguments).decode())
        match event.name:
            case "output":
                self._write(told.text)
            case "tool_call":
                self._note(f"tool {told.name} {arguments}")
                if told.runner == "caller":
                    self._note(question(self._run, told.id, told.name))
            case "tool_result":
                result = f"failed: {told.error}" if told.error is not None else told.result or ""
                self._note(f"  {told.seconds:.2f} s: {short(result)}")
            case "signal":
                self._note(f"signal {told.name} {arguments}")
            case _:
                pass

    def close(self) -> None:
        """End the line, if anybody still reads it."""
        with contextlib.suppress(OSError):
            if not self._last.endswith("\n"):
                self._write("\n")

    def _write(self, text: str) -> None:
        if text and not self._quiet:
            self._last = text
            try:
                sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
                sys.stdout.flush()
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OSError(error.errno, error.strerror, "standard output") from None

    def _note(self, text: str) -> None:
        if not self._last.endswith("\n") and sys.stdout.isatty():
            self._write("\n")
        say(text)
