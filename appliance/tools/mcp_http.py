"""An MCP server at an address: streamable HTTP, every message a POST, the answer as JSON or as server-sent events.

Source: MCP revisions 2025-03-26 to 2025-11-25, "Transports". Not spoken: the older HTTP+SSE, and resumed streams.
"""

from __future__ import annotations

import re
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

import msgspec
import trio
from msgspec import Raw, Struct

from appliance.core.bodies.sse import Decoder, RecordTooLong
from appliance.core.config.types import Timeouts
from appliance.core.mcp.config import HttpServer
from appliance.core.mcp.messages import MAX_LINE, Answer, Asked, notification, read_message, reply, request
from appliance.errors import ApplianceError, UpstreamFailed
from appliance.tools.mcp_session import SessionLost
from appliance.upstream.client import Address, ConnectFailed, Exchange, Response, address_of

VERSION = "2025-11-25"
"""The newest revision that begins with a handshake; a server may answer with an older one."""
CONNECT_TIME = 10
MAX_NOISE = 512 << 20
MAX_REFUSAL = 1 << 16
GIVE_UP_TIME = 1.0
SESSION = b"mcp-session-id"
MAX_SESSION_ID = 4096
NOT_FOUND = 404
_REVISION = re.compile(r"[A-Za-z0-9._-]{1,64}")

Headers = list[tuple[bytes, bytes]]


class Place(NamedTuple):
    """The server's address, and the headers of every request to it."""

    address: Address
    target: str
    headers: Headers


class _Begun(Struct):
    protocolVersion: str = VERSION


def place_of(server: HttpServer) -> Place:
    """Raises UsageError for an address that cannot be used."""
    address = address_of(
        server.url, f"MCP server '{server.name}'", timeouts=Timeouts(connect=CONNECT_TIME, response_header=0)
    )
    has_path = bool(address.base_path or address.base_query)
    slash = server.url.partition("?")[0].endswith("/") and not address.base_query
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in server.headers]
    return Place(address, "/" if slash or not has_path else "", headers)


class HttpSession:
    """One session, from ``initialize`` to DELETE. Made by `run_http`."""

    def __init__(self, place: Place) -> None:
        self.version = VERSION
        self._place = place
        self._session: bytes | None = None
        self._agreed: bytes | None = None
        self.last = 0
        self._lost = ""
        self._gone = trio.Event()
        self.ending = trio.Event()
        self.dropped = 0

    @property
    def alive(self) -> bool:
        return not self._lost

    async def ask(self, method: str, params: object = None) -> Answer:
        self.last += 1
        try:
            async with self._post(request(self.last, method, params)) as response:
                self._note_session(response)
                if response.status >= 300:
                    return await self._refused(response)
                if response.streaming:
                    return await self._from_stream(response)
                message = read_message(await response.read(MAX_LINE))
        except ApplianceError as error:
            raise self._lose(_why(error), unsent=isinstance(error, ConnectFailed)) from None
        if not isinstance(message, Answer) or message.id != self.last:
            raise SessionLost("its answer does not belong to the question")
        return message

    async def tell(self, method: str, params: object = None) -> None:
        await self._deliver(notification(method, params))

    def begun(self, result: Raw) -> None:
        try:
            agreed = msgspec.json.decode(result, type=_Begun).protocolVersion
        except (msgspec.MsgspecError, UnicodeError):
            agreed = VERSION
        self._agreed = (agreed if _REVISION.fullmatch(agreed) else VERSION).encode("ascii")

    def end(self, *, busy: bool = False) -> None:
        self._lose("it was ended")

    async def wait_gone(self) -> None:
        await self._gone.wait()

    async def leave(self) -> None:
        """Notify the server that the session is over, if there is one."""
        if self._session is not None:
            try:
                async with Exchange(self._place.address, "DELETE", self._place.target, self._headers()):
                    pass
            except ApplianceError:
                pass  # it forgets the session in its own time

    def gone(self) -> None:
        self._gone.set()

    def _lose(self, why: str, *, unsent: bool = False) -> SessionLost:
        self._lost = self._lost or why
        self.ending.set()
        return SessionLost(why, unsent=unsent)

    def _post(self, message: bytes) -> AbstractAsyncContextManager[Response]:
        headers = [
            (b"Content-Type", b"application/json"),
            (b"Accept", b"application/json, text/event-stream"),
            *self._headers(),
        ]
        return Exchange(self._place.address, "POST", self._place.target, headers, message)

    def _headers(self) -> Headers:
        found = list(self._place.headers)
        if self._session is not None:
            found.append((b"Mcp-Session-Id", self._session))
        if self._agreed is not None:
            found.append((b"MCP-Protocol-Version", self._agreed))
        return found

    def _note_session(self, response: Response) -> None:
        for name, value in response.headers:
            if name.lower() == SESSION and value and len(value) <= MAX_SESSION_ID:
                self._session = value

    async def _refused(self, response: Response) -> Answer:
        """Return the error that it reports in JSON-RPC; any other refusal ends the session."""
        body = await response.read(MAX_REFUSAL)
        message = read_message(body)
        if isinstance(message, Answer) and message.error is not None and response.status != NOT_FOUND:
            return message
        if response.status == NOT_FOUND and self._session is not None:
            raise self._lose("it has forgotten the session", unsent=True)
        words = body[:200].decode(errors="replace").strip()
        raise self._lose(f"it answered with HTTP status {response.status}{f': {words}' if words else ''}")

    async def _from_stream(self, response: Response) -> Answer:
        decoder = Decoder(MAX_LINE)
        noise = 0
        while chunk := await response.receive():
            noise += len(chunk)
            try:
                events = decoder.feed(chunk)
            except RecordTooLong:
                raise self._lose(f"it sent a message that is longer than {MAX_LINE >> 20} MiB") from None
            for event in events:
                match read_message(event.data.encode("utf-8", "replace")):
                    case Answer(id=number) as answer if number == self.last:
                        return answer
                    case Asked() as asked:
                        await self._deliver(reply(asked))
                    case _:
                        pass
            if noise > MAX_NOISE:
                raise self._lose(f"it sent {MAX_NOISE >> 20} MiB without an answer")
        raise self._lose("its stream of events ended without the answer")

    async def _deliver(self, message: bytes) -> None:
        """Send a message that has no answer."""
        try:
            async with self._post(message) as response:
                if response.status >= 300:
                    raise self._lose(f"it answered with HTTP status {response.status}")
        except ApplianceError as error:
            raise self._lose(_why(error)) from None


def _why(error: ApplianceError) -> str:
    """Leave out the name of the server, which the reader already knows."""
    return error.why if isinstance(error, UpstreamFailed) else str(error)


async def run_http(place: Place, *, task_status: trio.TaskStatus[HttpSession] = trio.TASK_STATUS_IGNORED) -> None:
    """Own a session until it ends; then notify the server, if that works within a second."""
    session = HttpSession(place)
    try:
        task_status.started(session)
        await session.ending.wait()
    finally:
        session.end()
        with trio.move_on_after(GIVE_UP_TIME, shield=True):
            await session.leave()
        session.gone()
