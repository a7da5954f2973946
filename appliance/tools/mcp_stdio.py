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
from trio.abc import SendStream

from appliance.core.mcp.config import StdioServer
from appliance.core.mcp.messages import PROTOCOL, Answer, Asked, Lines, notification, read_message, reply, request
from appliance.platform.children import Children, describe_status, inherited_env
from appliance.platform.process import Command, Ending, end, open_process
from appliance.tools.mcp_session import SessionLost

ERROR_TAIL = 4096
"""Bytes kept of its standard error."""
MAX_NOISE = 512 << 20
"""Bytes of output in a row without an answer; a server that writes more is given up."""
LEAVE = Ending(closed=0.7, asked=0.5, group=1.0)
"""A server that is reported as gone has left no grandchildren that were killed and still run."""
IN_A_HURRY = Ending(asked=LEAVE.asked, group=LEAVE.group)
"""For a server that would not notice the end of its input soon."""
PIPE_GRACE = 0.5
"""Seconds for the rest in the pipes of a process that has ended."""
REPLY_TIME = 5.0
"""Seconds for the server to take the answer to its own question."""

log = logging.getLogger(__name__)


class StdioSession:
    """One process, from its start to its end. Made by `run_stdio`."""

    version = PROTOCOL

    stdin: SendStream
    """Set before anybody has the session."""

    def __init__(self, name: str) -> None:
        self._name = name
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

    async def read(self, piece: bytes) -> bool:
        """Take a piece of the server's output. A `Sink`."""
        if not piece:
            self.drained.set()
            await trio.sleep(2 * PIPE_GRACE)  # it has mostly ended, and its exit status says more
            self.lose("it closed its standard output")
        self._noise += len(piece)
        for line in self._lines.feed(piece):
            await self._take(line)
        if self._noise > MAX_NOISE:
            log.warning("MCP server '%s' is ended: it floods its standard output", self._name)
            self.lose(f"it wrote {MAX_NOISE >> 20} MiB in a row without an answer")
            return False
        return True

    async def keep_errors(self, piece: bytes) -> bool:
        """Keep the end of its standard error. A `Sink`."""
        self._errors += piece
        del self._errors[:-ERROR_TAIL]
        return True

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
                await self.stdin.send_all(message + b"\n")
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
    env = {**inherited_env(), **server.env}
    command = Command(
        argv=[_find(server, env), *server.args], env=env, cwd=server.cwd, stdin=None, own_errors=True, ending=LEAVE
    )
    session = StdioSession(server.name)
    try:
        async with open_process(children, command, session.read, errors=session.keep_errors, rest=0) as child:
            session.stdin = child.stdin
            task_status.started(session)
            status: int | None = None
            try:
                with session.ending:
                    status = await child.wait_exit()
                if status is not None:
                    with trio.move_on_after(PIPE_GRACE):
                        await session.drained.wait()
                    how = describe_status(status)
                    session.lose(f"it ended ({how})")
                    words = session.last_words
                    log.warning("MCP server '%s' ended: %s%s", server.name, how, words and f"; {words}")
            finally:
                session.lose("it was ended")
            if session.busy:
                await end(child, IN_A_HURRY)
    except (OSError, ValueError) as error:
        raise SessionLost(f"'{server.command}' cannot be started: {error}") from None
    finally:
        session.gone()


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
