"""exec_shell_command and get_info."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import trio

from appliance.core.tools.specs import MAX_SECONDS, SHELL, ExecShellCommand
from appliance.core.tools.texts import MAX_OUTPUT, CappedOutput, Utf8Pieces
from appliance.core.tools.tool import ToolOutcome, ToolProblem
from appliance.platform.children import Children
from appliance.platform.process import Sink, into
from appliance.tools.outcomes import answer, failed, said
from appliance.tools.place import FileProblem, Place
from appliance.tools.processes import Ended, run

TRUNCATED = "\n[output truncated]"


async def exec_shell_command(children: Children, place: Place, asked: ExecShellCommand) -> ToolOutcome:
    output = CappedOutput(_limit(asked))
    # It is read on beyond the limit: a command that could not write would wait for ever.
    ended = await _run(children, place, asked, into(output))
    return said(output.text() + (TRUNCATED if output.truncated else "") + tail(ended))


@asynccontextmanager
async def stream_shell_command(
    children: Children, place: Place, asked: ExecShellCommand
) -> AsyncGenerator[AsyncIterator[bytes | ToolOutcome]]:
    """Yield the output as it comes, each piece whole UTF-8, then the outcome. Leaving the block kills the command.

    A reader that stops reading stops the command's writing, but not its clock.
    """
    sending, receiving = trio.open_memory_channel[bytes | ToolOutcome](0)
    async with receiving, trio.open_nursery() as nursery:
        nursery.start_soon(_tell, children, place, asked, sending)
        yield receiving
        nursery.cancel_scope.cancel()


async def _tell(
    children: Children, place: Place, asked: ExecShellCommand, sending: trio.MemorySendChannel[bytes | ToolOutcome]
) -> None:
    output, pieces = CappedOutput(_limit(asked)), Utf8Pieces()
    async with sending:

        async def take(data: bytes) -> bool:
            if piece := pieces.feed(output.feed(data)):
                await sending.send(piece.encode())
            return True

        try:
            ended = await _run(children, place, asked, take)
        except (FileProblem, ToolProblem) as problem:
            await sending.send(failed(str(problem)))
            return
        rest = pieces.end() if not output.truncated else ""
        last = rest + (TRUNCATED if output.truncated else "") + tail(ended)
        await sending.send(last.encode())
        await sending.send(said(output.text() + last[len(rest) :]))


async def get_info(place: Place) -> ToolOutcome:
    system, cwd = await place.info()
    return answer({"os": system, "cwd": cwd}, f"os: {system}\ncwd: {cwd}")


async def _run(children: Children, place: Place, asked: ExecShellCommand, take: Sink) -> Ended:
    """Raises FileProblem when it cannot run in this place, ToolProblem when no command can."""
    seconds = min(max(asked.timeout, 0), MAX_SECONDS)
    command = place.shell(asked.command)
    try:
        return await run(children, command, take, seconds=seconds)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise FileProblem(f"the working directory cannot be used: {command.cwd} ({error.strerror})") from None
    except ValueError:
        raise FileProblem("the command contains a zero byte") from None
    except OSError as error:
        raise ToolProblem(SHELL, f"no command can be started: {error}") from None


def tail(ended: Ended) -> str:
    return f"\n[exit code: {ended.status}]{' [exit due to timed out]' if ended.timed_out else ''}"


def _limit(asked: ExecShellCommand) -> int:
    return min(max(asked.max_output_size, 0), MAX_OUTPUT)
