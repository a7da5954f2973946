"""``mcp``: an MCP server on standard input and output that forwards everything to a running appliance's ``/mcp``.

Each message is one request, and its answer. The relay knows of no method but what the two ways of speaking differ in:
whatever the program offers reaches the client.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import click
import msgspec
import trio
from msgspec import UNSET, Raw, Struct, UnsetType

from appliance import start
from appliance.cli.remote import ErrorAnswer, address_options, key_advice
from appliance.core.bodies.sse import Decoder, RecordTooLong
from appliance.core.config.types import Timeouts
from appliance.core.headers import Headers
from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.core.settings import DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE
from appliance.errors import ApplianceError, UpstreamFailed
from appliance.features.tools.core import mcp_messages as rpc
from appliance.features.tools.core.mcp_serving import META_VERSION, encoded_header
from appliance.platform.console import EXIT_OURS, PROGRAM, say
from appliance.upstream.client import Address, ConnectFailed, HttpAnswer, HttpCall, address_of

PATH = "/mcp"
MAX_AT_ONCE = 64
CANCELLED = "notifications/cancelled"
STDIN, STDOUT = 0, 1
BLOCK = 1 << 16
CONNECT_TIME = 10
NAME = "llama-appliance"


class _Meta(Struct):
    version: str | UnsetType = msgspec.field(name=META_VERSION, default=UNSET)


class _Params(Struct):
    name: str = ""
    requestId: rpc.Id | UnsetType = UNSET
    meta: _Meta | UnsetType = msgspec.field(name="_meta", default=UNSET)


class _Message(Struct):
    id: rpc.Id | UnsetType | None = UNSET
    method: str = ""
    params: Raw | UnsetType = UNSET


class _Begun(Struct):
    protocolVersion: str


class _Said(NamedTuple):
    """A line of the client, with the few fields that are read."""

    line: bytes
    id: rpc.Id | None
    method: str
    params: _Params


class Relay:
    """Reads messages until the input ends, and then waits for the remaining answers."""

    def __init__(self, url: str, address: Address) -> None:
        self._url = url
        self._address = address
        self._version = b""  # the version that `initialize` agreed on; newer clients send theirs in every request
        self._under_way: dict[rpc.Id, trio.CancelScope] = {}
        self._places = trio.Semaphore(MAX_AT_ONCE)
        self._client_left = trio.CancelScope()

    async def run(self) -> int:
        lines = _Input()
        with self._client_left:
            async with trio.open_nursery() as nursery:
                while line := await trio.to_thread.run_sync(lines.read_line, abandon_on_cancel=True):
                    if len(line) > rpc.MAX_LINE:
                        self._fail(None, rpc.INVALID_REQUEST, f"the message is longer than {rpc.MAX_LINE >> 20} MiB")
                    elif line.strip():
                        await self._take(line.strip(), nursery)
        return EXIT_OURS if self._client_left.cancelled_caught else 0

    async def _take(self, line: bytes, nursery: trio.Nursery) -> None:
        said = _understood(line)
        if said is None:
            self._fail(None, rpc.PARSE_ERROR, "the line is not JSON")
        elif said.method == CANCELLED and said.params.requestId is not UNSET:
            if scope := self._under_way.get(said.params.requestId):
                scope.cancel()  # closing the connection is how the server learns of it
        elif said.method == "initialize":
            await self._ask(said)  # all that follows depends on its outcome
        else:
            await self._places.acquire()
            nursery.start_soon(self._ask_in_place, said)

    async def _ask_in_place(self, said: _Said) -> None:
        try:
            await self._ask(said)
        finally:
            self._places.release()

    async def _ask(self, said: _Said) -> None:
        with trio.CancelScope() as scope:
            if said.id is not None:
                self._under_way[said.id] = scope
            try:
                await self._post(said)
            except ConnectFailed as error:
                why = f"no server answers at {self._url} ({error.why}); start it with '{PROGRAM} serve --mcp-server'"
                self._fail(said.id, rpc.INTERNAL_ERROR, why)
            except UpstreamFailed as error:
                self._fail(said.id, rpc.INTERNAL_ERROR, f"the server at {self._url} failed: {error.why}")
            except (ApplianceError, RecordTooLong) as error:
                self._fail(said.id, rpc.INTERNAL_ERROR, str(error))
            finally:
                if said.id is not None:
                    self._under_way.pop(said.id, None)

    async def _post(self, said: _Said) -> None:
        headers: Headers = [
            (b"Content-Type", b"application/json"),
            (b"Accept", b"application/json, text/event-stream"),
            *self._repeated(said),
        ]
        async with HttpCall(self._address, "POST", PATH, headers, said.line) as response:
            if not response.streaming:
                self._pass_on(said, response, await response.read(rpc.MAX_LINE))
                return
            decoder = Decoder(rpc.MAX_LINE)
            while data := await response.receive():
                for event in decoder.feed(data):
                    self._write_line(event.data.encode())

    def _pass_on(self, said: _Said, response: HttpAnswer, body: bytes) -> None:
        if response.status == 202:
            return
        answer = rpc.read_message(body)
        if not isinstance(answer, rpc.RpcAnswer) and b'"jsonrpc"' not in body[:100]:
            # A refusal that is not MCP: of the key, of the feature, or from another program.
            told = decoded(ErrorAnswer, body)
            message = told.error.message if told is not None else body[:200].decode("utf-8", "replace").strip()
            advice = key_advice() if response.status == 401 else ""
            why = f"{message or 'it gave no reason'}{advice} ({self._url} answered {response.status})"
            self._fail(said.id, rpc.INTERNAL_ERROR, why)
            return
        if said.method == "initialize" and isinstance(answer, rpc.RpcAnswer) and answer.result is not None:
            begun = decoded(_Begun, answer.result)
            version = begun.protocolVersion if begun is not None else ""
            self._version = version.encode() if version.isascii() else b""
        self._write_line(body)

    def _repeated(self, said: _Said) -> Headers:
        """Repeat in headers what HTTP requires there."""
        if said.params.meta is UNSET or said.params.meta.version is UNSET:
            return [(b"MCP-Protocol-Version", self._version)] if self._version else []
        found = [
            (b"MCP-Protocol-Version", said.params.meta.version),
            (b"Mcp-Method", said.method),
            (b"Mcp-Name", said.params.name),
        ]
        return [(name, encoded_header(value)) for name, value in found if value]

    def _fail(self, number: rpc.Id | None, code: int, why: str) -> None:
        """Send it to the client, or, if the client asked for nothing, to the reader of its log."""
        if number is None:
            say(f"{PROGRAM}: {why}")
        else:
            self._write_line(rpc.refusal(number, rpc.McpError(code=code, message=why)))

    def _write_line(self, message: bytes) -> None:
        """Write one line. When the client is gone, there is no reason to continue."""
        rest = memoryview(message.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")
        try:
            while rest:
                rest = rest[os.write(STDOUT, rest) :]
        except OSError:
            self._client_left.cancel()


class _Input:
    """Reads lines of standard input, but not through `sys.stdin`: a waiting thread would hold its lock for ever."""

    def __init__(self) -> None:
        self._rest = b""

    def read_line(self) -> bytes:
        """Return the next line, at most one byte too long; b"" at the end. Blocks."""
        line = bytearray()
        while self._rest or self._read():
            part, newline, self._rest = self._rest.partition(b"\n")
            line += part[: rpc.MAX_LINE + 1 - len(line)]
            if newline:
                return bytes(line + newline)
        return bytes(line)

    def _read(self) -> bool:
        self._rest = os.read(STDIN, BLOCK)
        return bool(self._rest)


def _understood(line: bytes) -> _Said | None:
    """Return None for text that is not JSON; the server itself reports JSON that is not a message."""
    try:
        message = msgspec.json.decode(line, type=_Message)
        params = msgspec.json.decode(message.params, type=_Params) if message.params is not UNSET else _Params()
    except msgspec.ValidationError:
        return _Said(line, None, "", _Params())
    except UNREADABLE:
        return None
    return _Said(line, None if message.id is UNSET else message.id, message.method, params)


@click.command()
@address_options
@click.option("--print-config", is_flag=True, help="Print the entry for a desktop client's configuration, and exit.")
async def mcp(url: str | None, api_key: str | None, print_config: bool) -> int:
    """Connect an MCP client, on standard input and output, to the models of a running server.

    The server must have been started with --mcp-server. Desktop clients start this command themselves; --print-config
    prints the entry for their configuration.

    \b
    Examples:
      llama-appliance serve --mcp-server --api-key "$KEY"
      llama-appliance mcp --api-key "$KEY" --print-config
    """
    where = (url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
    key = api_key.partition(",")[0].strip() if api_key else ""
    address = address_of(
        where, "--url" if url else URL_VARIABLE, api_key=key, timeouts=Timeouts(connect=CONNECT_TIME, response_header=0)
    )
    if print_config:
        click.echo(client_config(where, key))
        return 0
    return await Relay(where, address).run()


def client_config(url: str, key: str) -> str:
    """Return the entry for a desktop client's ``mcpServers``, as JSON. The key is kept out of the list of processes."""
    command, *words = start.own_command()
    entry: dict[str, object] = {"command": command, "args": [*words, "mcp", "--url", url]}
    if key:
        entry["env"] = {KEY_VARIABLE: key}
    return msgspec.json.format(msgspec.json.encode({"mcpServers": {NAME: entry}}), indent=2).decode()
