"""Asks the process that searches (`tools.search_process`), and takes its results however it ends."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from appliance.core.tools.search import End, Entry, Found, Job, Text
from appliance.core.tools.tool import ToolProblem
from appliance.platform.children import Children, inherited_env
from appliance.platform.process import Command
from appliance.tools import search_process
from appliance.tools.place import FileProblem
from appliance.tools.processes import run

KILL_AFTER = 1.0
"""Seconds beyond its budget that the process gets to report its end."""
MAX_MESSAGES = 64 << 20

_FOUND: msgspec.json.Decoder[Found] = msgspec.json.Decoder(Found)


class Result(Struct):
    """``end`` of a process that had to be killed says that not everything was searched."""

    entries: list[Entry]
    text: list[str]
    matches: int
    end: End


async def search(children: Children, job: Job) -> Result:
    """Raises FileProblem with the process's reason, ToolProblem when there is none."""
    result = Result([], [], 0, End(0))
    over = False
    rest = b""
    size = 0

    async def take(data: bytes) -> bool:
        nonlocal over, rest, size
        size += len(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            match _FOUND.decode(line):
                case Entry() as entry:
                    result.entries.append(entry)
                case Text() as text:
                    result.text.append(text.text)
                    result.matches += text.matches
                case End() as end:
                    result.end, over = end, True
        return size < MAX_MESSAGES

    command = Command(
        argv=search_process.command(),
        env=inherited_env(),
        stdin=msgspec.json.encode(job),
        own_errors=True,
    )
    try:
        ended = await run(children, command, take, seconds=job.search.seconds + KILL_AFTER)
    except OSError as error:
        raise ToolProblem("search", f"the process that searches cannot be started: {error}") from None
    if not over:
        if not ended.timed_out and size < MAX_MESSAGES:
            raise ToolProblem("search", f"the process that searches failed: {ended.errors.strip()[-500:]}")
        result.end = End(max(result.matches, len(result.entries)), cut=True)
    if result.end.error:
        raise FileProblem(result.end.error)
    return result
