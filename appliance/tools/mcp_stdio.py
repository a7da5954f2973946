"""An MCP server that is a process: one message in one line on its standard input and output.

Its standard output is always read, so that a question of the server (``ping``) never waits, and nothing of it is kept
but the answer that somebody waits for. It is stopped as the protocol says: its input ends, then SIGTERM, then SIGKILL
to the whole group; nobody waits for the end of a pipe, which a grandchild may hold for ever.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

import trio
from msgspec import Raw
from trio.abc import ReceiveStream

from appliance.core.mcp_config import StdioServer
from appliance.core.mcp_messages import Answer, Asked, Lines, notification, read_message, reply, request
from appliance.core.mcp_tools import PROTOCOL
from appliance.platform.children import REAP_TIME, Child, Children, describe_status
from appliance.platform.env import inherited_env
from appliance.tools.mcp_session import SessionLost

ERROR_TAIL = 4096
"""Bytes kept of its standard error."""
MAX_NOISE = 512 << 20
"""Bytes of output in a row without an answer; a server that writes more is given up."""
READ_SIZE = 1 << 16
LEAVE_TIME = 0.7
"""Seconds to end after the end of its input."""
TERMINATE_TIME = 0.5
"""Seconds to end after SIGTERM."""
GROUP_TIME = 1.0
"""Seconds for the kernel to end grandchildren that were killed."""
PIPE_GRACE = 0.5
"""Seconds for the rest in the pipes of a process that has ended."""
REPLY_TIME = 5.0
"""Seconds for the server to take the answer to its own question."""

log = logging.getLogger(__name__)


class StdioSession:
    """One process, from its start to its end. Made by `run_stdio`."""

    version = PROTOCOL

    def __init__(self, name: str, child: Child) -> None:
        self._name = name
        self._child = child
        self._lines = Lines()
        self._writing = trio.Lock()
        self.last = 0
        self._waited_for: int | None = None
        self._answer: Answer | None = None
        self._news = trio.Event()
        self._noise = 0
        self._errors = bytearray()
        self._lost = ""
        self._gone = trio.Event()
        self.busy = False
        """It would not notice the end of its input soon."""
        self.drained = trio.Event()
        """Its output has ended."""
        self.ending = trio.CancelScope()

    @property
    def alive(self) -> bool:
        return not self._lost

    @property
    def dropped(self) -> int:
        return self._lines.dropped

    @property
    def last_words(self) -> str:
        """The end of its standard error."""
        return self._errors.decode(errors="replace").strip()

    async def ask(self, method: str, params: object = None) -> Answer:
        self.last += 1
        self._waited_for, self._answer, self._news = self.last, None, trio.Event()
        try:
            await self._send(request(self.last, method, params))
            if not self._lost:
                await self._news.wait()
        finally:
            self._waited_for = None
        if self._answer is None:
            raise SessionLost(self._lost)
        return self._answer

    async def tell(self, method: str, params: object = None) -> None:
        await self._send(notification(method, params))

    def begun(self, result: Raw) -> None:
        """Accept every revision: the requests in use have not changed since the first one."""

    def end(self, *, busy: bool = False) -> None:
        self.busy = busy
        self.lose("it was ended")

    def lose(self, why: str) -> None:
        """Give it up; the first reason counts."""
        self._lost = self._lost or why
        self._news.set()
        self.ending.cancel()

    async def wait_gone(self) -> None:
        await self._gone.wait()

    def gone(self) -> None:
        self._gone.set()

    async def read(self, output: ReceiveStream) -> None:
        """Read the server's output until its end."""
        try:
            while chunk := await output.receive_some(READ_SIZE):
                self._noise += len(chunk)
                for line in self._lines.feed(bytes(chunk)):
                    await self._take(line)
                if self._noise > MAX_NOISE:
                    log.warning("MCP server '%s' is ended: it floods its standard output", self._name)
                    self.lose(f"it wrote {MAX_NOISE >> 20} MiB in a row without an answer")
                    return
        except trio.BrokenResourceError:
            pass
        self.drained.set()
        await trio.sleep(2 * PIPE_GRACE)  # it has mostly ended, and its exit status says more
        self.lose("it closed its standard output")

    async def keep_errors(self, errors: ReceiveStream) -> None:
        """Keep the end of its standard error."""
        try:
            while chunk := await errors.receive_some(READ_SIZE):
                self._errors += chunk
                del self._errors[:-ERROR_TAIL]
        except trio.BrokenResourceError:
            pass

    async def _take(self, line: bytes) -> None:
        match read_message(line):
            case Answer(id=number) as answer if number == self._waited_for and self._answer is None:
                self._answer = answer
                self._noise = 0
                self._news.set()
            case Asked() as asked:
                with trio.move_on_after(REPLY_TIME):
                    try:
                        await self._send(reply(asked))
                    except SessionLost:
                        pass  # the caller that waits for an answer gets the error
            case _:
                pass  # a notification, the answer to what nobody waits for any more, or no message at all

    async def _send(self, message: bytes) -> None:
        """Send one whole line; a line that is cut off cannot be repaired."""
        async with self._writing:
            if self._lost:
                raise SessionLost(self._lost, unsent=True)
            whole = False
            try:
                await self._child.stdin.send_all(message + b"\n")
                whole = True
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise SessionLost("it closed its standard input", unsent=True) from None
            finally:
                if not whole:
                    self.lose("it did not take a whole message from its standard input")


async def run_stdio(
    server: StdioServer, children: Children, *, task_status: trio.TaskStatus[StdioSession] = trio.TASK_STATUS_IGNORED
) -> None:
    """Own the server's process from start to end. Raises SessionLost when it cannot be started, and never later."""
    child = await _spawn(server, children)
    session = StdioSession(server.name, child)
    status: int | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.read, child.output)
            if child.errors is not None:
                nursery.start_soon(session.keep_errors, child.errors)
            task_status.started(session)
            with session.ending:
                status = await child.wait_exit()
            if status is not None:
                with trio.move_on_after(PIPE_GRACE):
                    await session.drained.wait()
                session.lose(f"it ended ({describe_status(status)})")
                words = session.last_words
                log.warning("MCP server '%s' ended: %s%s", server.name, describe_status(status), words and f"; {words}")
            nursery.cancel_scope.cancel()
    finally:
        session.lose("it was ended")
        await _stop(child, 0 if session.busy else LEAVE_TIME)
        session.gone()


async def _spawn(server: StdioServer, children: Children) -> Child:
    env = {**inherited_env(), **server.env}
    command = _find(server, env)
    try:
        return await children.spawn([command, *server.args], env, cwd=server.cwd, own_errors=True)
    except (OSError, ValueError) as error:
        raise SessionLost(f"'{server.command}' cannot be started: {error}") from None


def _find(server: StdioServer, env: Mapping[str, str]) -> str:
    """Return the program's file: by name on the PATH, by path relative to its working folder. Raises SessionLost."""
    if server.cwd is not None and not Path(server.cwd).is_dir():
        raise SessionLost(f"its folder {server.cwd} does not exist")
    command = server.command
    if Path(command).name != command and server.cwd is not None:
        command = str(Path(server.cwd, command).absolute())
    found = shutil.which(command, path=env.get("PATH"))
    if found is None:
        raise SessionLost(f"there is no program '{server.command}' that can be executed; is it on the PATH?")
    return str(Path(found).absolute())


async def _stop(child: Child, leave_time: float) -> None:
    """Ask it to end, then kill it. Takes ``leave_time`` and TERMINATE_TIME at most, unless the kernel holds the
    process.
    """
    with trio.CancelScope(shield=True):
        await child.stdin.aclose()
        with trio.move_on_after(leave_time) as leaving:
            await child.wait_exit()
        if leaving.cancelled_caught:
            child.terminate()
            with trio.move_on_after(TERMINATE_TIME) as terminating:
                await child.wait_exit()
            if terminating.cancelled_caught:
                child.kill()
        with trio.move_on_after(REAP_TIME):
            await child.wait()
        with trio.move_on_after(GROUP_TIME):
            await child.wait_group()
        await child.output.aclose()
        if child.errors is not None:
            await child.errors.aclose()
