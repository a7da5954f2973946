"""A conversation with one MCP server, which is a process or an address.

A process gets one message in one line on its standard input, and answers on its standard output. That is always read,
so that a question of the server (``ping``) never waits; only the answer that somebody waits for is kept. It is stopped
as the protocol says: its input ends, then SIGTERM, then SIGKILL to the whole group. The end of a pipe is not waited
for, because a grandchild may hold it for ever.

An address speaks streamable HTTP: every message is a POST, the answer is JSON or server-sent events. Source: MCP
revisions 2025-03-26 to 2025-11-25, "Transports". Not spoken: the older HTTP+SSE, and resumed streams.
"""

from __future__ import annotations

import logging
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import NamedTuple

import trio
from msgspec import Raw, Struct
from trio.abc import SendStream

from appliance.core.bodies.sse import Decoder, RecordTooLong
from appliance.core.config.mcp_servers import HttpServer, StdioServer
from appliance.core.config.types import Timeouts
from appliance.core.headers import Headers, field
from appliance.core.lenient_json import decoded
from appliance.errors import ApplianceError, UpstreamFailed
from appliance.features.tools.core import mcp_messages as rpc
from appliance.platform.children import Children, describe_status, inherited_env
from appliance.platform.process import Command, StopSteps, end, open_process
from appliance.upstream.client import Address, ConnectFailed, HttpAnswer, HttpCall, address_of

ERROR_TAIL = 4096  # bytes kept of its standard error
MAX_NOISE = 512 << 20  # bytes of output in a row without an answer; a server that writes more is given up
LEAVE = StopSteps(closed=0.7, asked=0.5, group=1.0)
"""A server that is reported as gone has left no grandchildren that were killed and still run."""
IN_A_HURRY = StopSteps(asked=LEAVE.asked, group=LEAVE.group)
"""For a server that is working, and may not notice EOF on its standard input."""
PIPE_GRACE = 0.5  # seconds for the rest in the pipes of a process that has ended
REPLY_TIME = 5.0  # seconds for the server to take the answer to its own question
log = logging.getLogger(__name__)
VERSION = "2025-11-25"  # the newest revision that begins with a handshake; a server may answer with an older one
CONNECT_TIME = 10
MAX_REFUSAL = 1 << 16
GIVE_UP_TIME = 1.0
SESSION = b"mcp-session-id"
MAX_SESSION_ID = 4096
NOT_FOUND = 404
_REVISION = re.compile(r"[A-Za-z0-9._-]{1,64}")


class SessionLost(Exception):
    """The server cannot be asked, or not any more. ``unsent``: it never got the whole request."""

    def __init__(self, why: str, *, unsent: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.unsent = unsent


class McpSession(ABC):
    """Handles one request at a time. Runs in a task of `open_mcp`, which ends it."""

    version: str  # the protocol revision to request

    def __init__(self) -> None:
        self.last: int = 0  # the id of the last request
        self.dropped = 0  # number of messages that were too long
        self.gone = trio.Event()  # nothing is left of it
        self._lost = ""

    @property
    def alive(self) -> bool:
        return not self._lost

    @abstractmethod
    async def ask(self, method: str, params: object = None) -> rpc.RpcAnswer:
        """Wait for the answer, however long. Raises SessionLost."""

    async def notify(self, method: str, params: object = None) -> None:
        """Raises SessionLost."""
        await self.send(rpc.notification(method, params))

    @abstractmethod
    async def send(self, message: bytes) -> None:
        """Send a whole message, whose answer is not waited for. Raises SessionLost."""

    @abstractmethod
    def begun(self, result: Raw) -> None:
        """Take the server's answer to ``initialize``."""

    @abstractmethod
    def end(self, *, busy: bool = False) -> None:
        """Leave the server; returns at once. ``busy``: it works on something that nobody wants any more."""


Start = Callable[[], Awaitable[McpSession]]  # begins a session in a task of its own. Raises SessionLost.


class StdioSession(McpSession):
    """One process, from its start to its end. Made by `run_stdio`."""

    version = rpc.PROTOCOL

    stdin: SendStream  # set before anybody has the session

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._lines = rpc.LineCutter()
        self._writing = trio.Lock()
        self._waited_for: int | None = None
        self._answer: rpc.RpcAnswer | None = None
        self._news = trio.Event()
        self._noise = 0
        self._errors = bytearray()
        self.busy = False  # the server is working and may not notice EOF on its standard input
        self.drained = trio.Event()  # its output has ended
        self.ending = trio.CancelScope()

    @property
    def last_words(self) -> str:
        """The end of its standard error."""
        return self._errors.decode(errors="replace").strip()

    async def ask(self, method: str, params: object = None) -> rpc.RpcAnswer:
        self.last += 1
        self._waited_for, self._answer, self._news = self.last, None, trio.Event()
        try:
            await self.send(rpc.request(self.last, method, params))
            if not self._lost:
                await self._news.wait()
        finally:
            self._waited_for = None
        if self._answer is None:
            raise SessionLost(self._lost)
        return self._answer

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

    async def read(self, piece: bytes) -> bool:
        """Take a piece of the server's output. A `Sink`."""
        if not piece:
            self.drained.set()
            await trio.sleep(2 * PIPE_GRACE)  # it has mostly ended, and its exit status says more
            self.lose("it closed its standard output")
        self._noise += len(piece)
        for line in self._lines.feed(piece):
            await self._take(line)
        self.dropped = self._lines.dropped
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
        match rpc.read_message(line):
            case rpc.RpcAnswer(id=number) as answer if number == self._waited_for and self._answer is None:
                self._answer = answer
                self._noise = 0
                self._news.set()
            case rpc.RpcRequest() as asked:
                with trio.move_on_after(REPLY_TIME):
                    try:
                        await self.send(rpc.reply(asked))
                    except SessionLost:
                        pass  # the caller that waits for an answer gets the error
            case _:
                pass  # a notification, the answer to what nobody waits for any more, or no message at all

    async def send(self, message: bytes) -> None:
        async with self._writing:  # a line that is cut off cannot be repaired
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
        session.gone.set()


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


class McpEndpoint(NamedTuple):
    """The server's address, and the headers of every request to it."""

    address: Address
    target: str
    headers: Headers


class _Initialized(Struct):
    protocolVersion: str = VERSION


def place_of(server: HttpServer) -> McpEndpoint:
    """Raises UsageError for an address that cannot be used."""
    address = address_of(
        server.url, f"MCP server '{server.name}'", timeouts=Timeouts(connect=CONNECT_TIME, response_header=0)
    )
    has_path = bool(address.base_path or address.base_query)
    slash = server.url.partition("?")[0].endswith("/") and not address.base_query
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in server.headers]
    return McpEndpoint(address, "/" if slash or not has_path else "", headers)


class HttpSession(McpSession):
    """One session, from ``initialize`` to DELETE. Made by `run_http`."""

    version = VERSION

    def __init__(self, place: McpEndpoint) -> None:
        super().__init__()
        self._place = place
        self._session: bytes | None = None
        self._agreed: bytes | None = None
        self.ending = trio.Event()

    async def ask(self, method: str, params: object = None) -> rpc.RpcAnswer:
        self.last += 1
        try:
            async with self._post(rpc.request(self.last, method, params)) as response:
                if (value := field(response.headers, SESSION)) and len(value) <= MAX_SESSION_ID:
                    self._session = value
                if response.status >= 300:
                    return await self._refused(response)
                if response.streaming:
                    return await self._from_stream(response)
                message = rpc.read_message(await response.read(rpc.MAX_LINE))
        except ApplianceError as error:
            raise self._lose(_why(error), unsent=isinstance(error, ConnectFailed)) from None
        if not isinstance(message, rpc.RpcAnswer) or message.id != self.last:
            raise SessionLost("its answer does not belong to the question")
        return message

    def begun(self, result: Raw) -> None:
        agreed = (decoded(_Initialized, result) or _Initialized()).protocolVersion
        self._agreed = (agreed if _REVISION.fullmatch(agreed) else VERSION).encode("ascii")

    def end(self, *, busy: bool = False) -> None:
        self._lose("it was ended")

    async def leave(self) -> None:
        """Notify the server that the session is over, if there is one."""
        if self._session is not None:
            with suppress(ApplianceError):  # else it forgets the session in its own time
                async with HttpCall(self._place.address, "DELETE", self._place.target, self._headers()):
                    pass

    def _lose(self, why: str, *, unsent: bool = False) -> SessionLost:
        self._lost = self._lost or why
        self.ending.set()
        return SessionLost(why, unsent=unsent)

    def _post(self, message: bytes) -> AbstractAsyncContextManager[HttpAnswer]:
        headers = [
            (b"Content-Type", b"application/json"),
            (b"Accept", b"application/json, text/event-stream"),
            *self._headers(),
        ]
        return HttpCall(self._place.address, "POST", self._place.target, headers, message)

    def _headers(self) -> Headers:
        found = list(self._place.headers)
        if self._session is not None:
            found.append((b"Mcp-Session-Id", self._session))
        if self._agreed is not None:
            found.append((b"MCP-Protocol-Version", self._agreed))
        return found

    async def _refused(self, response: HttpAnswer) -> rpc.RpcAnswer:
        """Return the error that it reports in JSON-RPC; any other refusal ends the session."""
        body = await response.read(MAX_REFUSAL)
        message = rpc.read_message(body)
        if isinstance(message, rpc.RpcAnswer) and message.error is not None and response.status != NOT_FOUND:
            return message
        if response.status == NOT_FOUND and self._session is not None:
            raise self._lose("it has forgotten the session", unsent=True)
        words = body[:200].decode(errors="replace").strip()
        raise self._lose(f"it answered with HTTP status {response.status}{f': {words}' if words else ''}")

    async def _from_stream(self, response: HttpAnswer) -> rpc.RpcAnswer:
        decoder = Decoder(rpc.MAX_LINE)
        noise = 0
        while chunk := await response.receive():
            noise += len(chunk)
            try:
                events = decoder.feed(chunk)
            except RecordTooLong:
                raise self._lose(f"it sent a message that is longer than {rpc.MAX_LINE >> 20} MiB") from None
            for event in events:
                match rpc.read_message(event.data.encode("utf-8", "replace")):
                    case rpc.RpcAnswer(id=number) as answer if number == self.last:
                        return answer
                    case rpc.RpcRequest() as asked:
                        await self.send(rpc.reply(asked))
                    case _:
                        pass
            if noise > MAX_NOISE:
                raise self._lose(f"it sent {MAX_NOISE >> 20} MiB without an answer")
        raise self._lose("its stream of events ended without the answer")

    async def send(self, message: bytes) -> None:
        try:
            async with self._post(message) as response:
                if response.status >= 300:
                    raise self._lose(f"it answered with HTTP status {response.status}")
        except ApplianceError as error:
            raise self._lose(_why(error)) from None


def _why(error: ApplianceError) -> str:
    """Leave out the name of the server, which the reader already knows."""
    return error.why if isinstance(error, UpstreamFailed) else str(error)


async def run_http(place: McpEndpoint, *, task_status: trio.TaskStatus[HttpSession] = trio.TASK_STATUS_IGNORED) -> None:
    """Own a session until it ends; then notify the server, if that works within a second."""
    session = HttpSession(place)
    try:
        task_status.started(session)
        await session.ending.wait()
    finally:
        session.end()
        with trio.move_on_after(GIVE_UP_TIME, shield=True):
            await session.leave()
        session.gone.set()
