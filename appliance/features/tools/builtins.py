"""The built-in tools, and a source of them: names and arguments in, outcomes out, at the chosen place.

The outcomes have llama-server's forms (b11434).
"""

from __future__ import annotations

import base64
import logging
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import trio

from appliance.core.capped_output import MAX_OUTPUT, CappedOutput, text_decoder
from appliance.core.settings import ToolSettings
from appliance.core.sizes import MIB
from appliance.core.tools.box import ToolContext, ToolOutcome, ToolProblem, ToolSpec
from appliance.core.tools.choice import SHELL
from appliance.core.tools.targets import BadToolTarget, ContainerImage, RunningContainer, Ssh, running_target
from appliance.errors import Forbidden, NotFound
from appliance.features.tools.core import specs
from appliance.features.tools.core.search import KINDS, entry_text, footer
from appliance.features.tools.core.texts import EditProblem, LineWindow, apply_edits
from appliance.features.tools.host import HostPlace
from appliance.features.tools.place import CommandEnded, FileProblem, FileTooLarge, ToolPlace, run
from appliance.features.tools.runtime import Runtime
from appliance.platform import process
from appliance.platform.children import REAP_TIME, Child, Children, inherited_env
from appliance.platform.process import Command, Sink, StopSteps, before_end, ignore, into, open_process
from appliance.trio_parts import beside

START_TIME = 120.0  # seconds that a container may take to start, its image's download included
LOOK_EVERY = 0.05
END_TIME = 2.0  # seconds that a container gets to end once its shell's input is closed
REMOVE_TIME = 3.0
GRACE = 0.5  # seconds to wait for the last words of the containers' program

log = logging.getLogger(__name__)
TRUNCATED = "\n[output truncated]"
MAX_BASE64 = 32 * MIB  # llama-server's (b11434)
MAX_EDITED = 32 * MIB
_EDITING = trio.CapacityLimiter(2)
"""Looking for many pieces in a large file takes seconds; nobody else should wait for that."""


class OwnContainer:
    """One container of an image, restarted if it dies. Made by `open_container`, which ends it."""

    def __init__(self, children: Children, image: ContainerImage, nursery: trio.Nursery) -> None:
        self._children = children
        self._image = image
        self._nursery = nursery
        self._starting = trio.Lock()
        self._running: RunningContainer | None = None

    async def running(self) -> RunningContainer:
        """Return the running container. Raises ToolProblem when it cannot be started."""
        async with self._starting:
            return self._running or await self._nursery.start(self._run)

    async def _run(self, *, task_status: trio.TaskStatus[RunningContainer]) -> None:
        engine, name = self._image.engine, f"{self._image.engine}:{self._image.name}"
        if shutil.which(engine) is None:
            raise ToolProblem(name, f"there is no program '{engine}' on this machine; install it")
        with tempfile.TemporaryDirectory(prefix="llama-appliance-") as folder:
            file = Path(folder) / "cid"
            argv = [engine, "run", "--rm", "-i", "--cidfile", str(file), self._image.name, "sh"]
            # The container's first process is a shell that reads our input: closing that ends it.
            command = Command(argv=argv, env=inherited_env(), stdin=None, ending=StopSteps(closed=END_TIME))
            text_answer = CappedOutput(4096)
            container: RunningContainer | None = None
            child: Child | None = None
            try:
                async with open_process(self._children, command, into(text_answer), rest=GRACE) as child:
                    container = await self._started(child, file)
                    if container is not None:
                        self._running = container
                        task_status.started(container)
                        await child.wait()
                        log.warning("the container of the tools, %s, has ended; the next use starts another", name)
            except OSError as error:
                raise ToolProblem(name, f"it cannot be started: {error}") from None
            finally:
                self._running = None
                if container is not None and child is not None and child.status != 0:
                    # Its program did not end in good order; else ``--rm`` has removed it.
                    remove = Command(argv=(engine, "rm", "-f", container.id), env=inherited_env())
                    with trio.move_on_after(REMOVE_TIME + REAP_TIME, shield=True):
                        await process.run(self._children, remove, ignore, seconds=REMOVE_TIME)
        if container is None:
            why = text_answer.text().strip()[-500:] or f"it did not start within {START_TIME:g} s"
            raise ToolProblem(name, f"failed to start the container: {why}")

    async def _started(self, child: Child, file: Path) -> RunningContainer | None:
        """Return the container as soon as its id is known; None when there will be none."""

        async def look() -> RunningContainer:
            while not (id := _content(file)):  # noqa: ASYNC110 - nothing tells of a file that another program writes
                await trio.sleep(LOOK_EVERY)
            return RunningContainer(self._image.engine, id)

        with trio.move_on_after(START_TIME):
            return await before_end(child, look)
        return None


@asynccontextmanager
async def open_container(children: Children, image: ContainerImage) -> AsyncGenerator[OwnContainer]:
    """Own a container for the length of the block; it is started at once. Raises ToolProblem."""
    async with beside() as nursery:
        container = OwnContainer(children, image, nursery)
        await container.running()
        yield container


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""  # not there yet


async def file_glob_search(place: ToolPlace, asked: specs.FileGlobSearch) -> ToolOutcome:
    if asked.limit < 1:
        return failed(f"invalid limit: {asked.limit} (expected 1 or more)")
    kind = KINDS.get(asked.type)
    if kind is None:
        return failed(f'invalid type: {asked.type} (expected "file", "dir" or "all")')
    found = await place.find(asked, kind)
    text = "".join(f"{entry_text(entry.path, entry.kind)}\n" for entry in found.entries)
    text += footer(found.end.total, len(found.entries), what="entries", full=False, cut=found.end.cut)
    entries = [{"path": entry.path, "type": entry.kind} for entry in found.entries]
    return answer({"plain_text_response": text, "entries": entries, "base": found.base}, text)


async def exec_shell_command(children: Children, place: ToolPlace, asked: specs.ExecShellCommand) -> ToolOutcome:
    output = _output(asked)
    # It is read on beyond the limit: a command that could not write would wait for ever.
    ended = await _run(children, place, asked, into(output))
    return text_answer(output.text() + _tail(output, ended))


@asynccontextmanager
async def stream_shell_command(
    children: Children, place: ToolPlace, asked: specs.ExecShellCommand
) -> AsyncGenerator[AsyncIterator[bytes | ToolOutcome]]:
    """Yield the output as it comes, each piece whole UTF-8, then the outcome. Leaving the block kills the command.

    A reader that stops reading stops the command's writing, but not its clock.
    """
    sending, receiving = trio.open_memory_channel[bytes | ToolOutcome](0)
    async with receiving, beside(partial(_print_found, children, place, asked, sending)):
        yield receiving


async def _print_found(
    children: Children,
    place: ToolPlace,
    asked: specs.ExecShellCommand,
    sending: trio.MemorySendChannel[bytes | ToolOutcome],
) -> None:
    output, pieces = _output(asked), text_decoder()
    async with sending:

        async def take(data: bytes) -> bool:
            if piece := pieces.decode(output.feed(data)):
                await sending.send(piece.encode())
            return True

        try:
            ended = await _run(children, place, asked, take)
        except (FileProblem, ToolProblem) as problem:
            await sending.send(failed(str(problem)))
            return
        rest, last = pieces.decode(b"", final=True) if not output.truncated else "", _tail(output, ended)
        await sending.send(f"{rest}{last}".encode())
        await sending.send(text_answer(output.text() + last))


async def _run(children: Children, place: ToolPlace, asked: specs.ExecShellCommand, take: Sink) -> CommandEnded:
    """Raises FileProblem when it cannot run in this place, ToolProblem when no command can."""
    seconds = min(max(asked.timeout, 0), specs.MAX_SECONDS)
    command = place.shell(asked.command)
    try:
        return await run(children, command, take, seconds=seconds)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise FileProblem(f"the working directory cannot be used: {command.cwd} ({error.strerror})") from None
    except ValueError:
        raise FileProblem("the command contains a zero byte") from None
    except OSError as error:
        raise ToolProblem(SHELL, f"no command can be started: {error}") from None


def _output(asked: specs.ExecShellCommand) -> CappedOutput:
    return CappedOutput(min(max(asked.max_output_size, 0), MAX_OUTPUT))


def _tail(output: CappedOutput, ended: CommandEnded) -> str:
    cut, late = TRUNCATED if output.truncated else "", " [exit due to timed out]" if ended.timed_out else ""
    return f"{cut}\n[exit code: {ended.status}]{late}"


async def read_file(place: ToolPlace, asked: specs.ReadFile, *, as_base64: bool) -> ToolOutcome:
    if as_base64:
        try:
            content = await _whole(place, asked.path, MAX_BASE64)
        except FileTooLarge as error:
            return failed(f"file too large ({error.size} bytes, max {MAX_BASE64})")
        encoded = base64.b64encode(content).decode("ascii")
        return answer({"base64": encoded, "size_bytes": len(content)}, f"{len(content)} bytes in base64: {encoded}")
    whole = asked.end_line == -1
    window = LineWindow(asked.start_line, None if whole else max(asked.end_line, 0), numbered=asked.append_loc)

    def take(data: bytes) -> bool:
        window.feed(data)
        return not window.full

    try:
        await place.read(asked.path, take, limit=MAX_OUTPUT if whole else None)
    except FileTooLarge as error:
        return failed(
            f"file too large ({error.size} bytes, max {MAX_OUTPUT}); name start_line and end_line to read a part of it"
        )
    return text_answer(window.text())


async def write_file(place: ToolPlace, asked: specs.WriteFile) -> ToolOutcome:
    content = asked.content.encode()
    await place.write(asked.path, content)
    result = {"result": "file written successfully", "path": asked.path, "bytes": len(content)}
    return answer(result, f"file written successfully: {asked.path}, {len(content)} bytes")


async def edit_file(place: ToolPlace, asked: specs.EditFile) -> ToolOutcome:
    """Bytes in the file that are not UTF-8 stay as they are."""
    try:
        before = (await _whole(place, asked.path, MAX_EDITED)).decode("utf-8", "surrogateescape")
        after = await trio.to_thread.run_sync(
            partial(apply_edits, before, asked.edits), abandon_on_cancel=True, limiter=_EDITING
        )
    except FileTooLarge as error:
        return failed(f"file too large to edit ({error.size} bytes, max {MAX_EDITED})")
    except EditProblem as error:
        return failed(f"{asked.path}: {error}")
    await place.write(asked.path, after.encode("utf-8", "surrogateescape"))
    count = len(asked.edits)
    result = {"result": "file edited successfully", "path": asked.path, "edits_applied": count}
    return answer(result, f"file edited successfully: {asked.path}, edits applied: {count}")


async def _whole(place: ToolPlace, path: str, limit: int) -> bytes:
    """Raises TooLarge, also for a file that grows while it is read."""
    content = bytearray()

    def take(data: bytes) -> bool:
        content.extend(data)
        return len(content) <= limit

    await place.read(path, take, limit=limit)
    if len(content) > limit:
        raise FileTooLarge(len(content))
    return bytes(content)


def text_answer(text: str) -> ToolOutcome:
    return answer({"plain_text_response": text}, text)


def failed(why: str) -> ToolOutcome:
    """It could not be done; the model may try something else."""
    return ToolOutcome(body=msgspec.json.encode({"error": why}), text=f"error: {why}", error=why)


def answer(result: Mapping[str, object], text: str) -> ToolOutcome:
    """``text`` is the model's part."""
    return ToolOutcome(body=msgspec.json.encode(result), text=text)


class Builtins:
    """Made by `features.tools.box.open_tools`. ``runtime`` is the default place of tools; None: here."""

    def __init__(
        self,
        settings: ToolSettings,
        root: str | None,
        children: Children,
        runtime: OwnContainer | RunningContainer | Ssh | None,
    ) -> None:
        self._specs = [spec for spec in specs.SPECS if spec.name in settings.builtin]
        self._root = root
        self._children = children
        self._runtime = runtime

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    async def call(self, name: str, arguments: bytes, context: ToolContext) -> ToolOutcome:
        """Raises BadRequest, Forbidden, NotFound and ToolProblem."""
        if name not in specs.ARGUMENTS:
            raise NotFound(f"there is no built-in tool '{name}'")
        asked = specs.read_arguments(name, arguments, specs.ARGUMENTS[name])
        try:
            place = await self._place(context)
            match asked:
                case specs.ReadFile():
                    return await read_file(place, asked, as_base64=context.base64)
                case specs.FileGlobSearch():
                    return await file_glob_search(place, asked)
                case specs.GrepSearch():
                    found = await place.grep(asked)
                    count, full, cut = found.end.total, found.end.full, found.end.cut
                    return text_answer(found.text + footer(count, count, what="matches", full=full, cut=cut))
                case specs.ExecShellCommand():
                    return await exec_shell_command(self._children, place, asked)
                case specs.WriteFile():
                    return await write_file(place, asked)
                case specs.EditFile():
                    return await edit_file(place, asked)
                case _:
                    system, cwd = await place.info()
                    return answer({"os": system, "cwd": cwd}, f"os: {system}\ncwd: {cwd}")
        except FileProblem as problem:
            return failed(str(problem))

    @asynccontextmanager
    async def stream(
        self, name: str, arguments: bytes, context: ToolContext
    ) -> AsyncGenerator[AsyncIterator[bytes | ToolOutcome]]:
        """Only exec_shell_command sends its output while it runs. Raises as `call`."""
        if name != SHELL:
            raise NotFound(f"the tool '{name}' does not stream")
        asked = specs.read_arguments(name, arguments, specs.ExecShellCommand)
        try:
            place = await self._place(context)
        except FileProblem as problem:
            raise ToolProblem(name, str(problem)) from None
        async with stream_shell_command(self._children, place, asked) as pieces:
            yield pieces

    async def _place(self, context: ToolContext) -> ToolPlace:
        """Return the place of this use. Raises ToolProblem, and Forbidden for a way out of the root."""
        if context.runtime:
            if self._root is not None:
                raise Forbidden(
                    "the tools are confined to a folder of this machine (--tools-root); a tool runtime would lead out"
                )
            try:
                target: RunningContainer | Ssh = running_target(context.runtime)
            except BadToolTarget as error:
                raise ToolProblem("runtime", str(error)) from None
        elif self._runtime is None:
            return HostPlace(self._children, context.cwd, self._root)
        else:
            target = await self._runtime.running() if isinstance(self._runtime, OwnContainer) else self._runtime
        return Runtime(self._children, target, context.cwd)
