"""MCP as a server: the kind of a request, its revision, and the answers that need no work.

Two eras are served on one path: requests that carry revision and capabilities themselves (2026-07-28), and those of a
client that has begun with ``initialize`` (2024-11-05 to 2025-11-25). No state is kept for either. Source: MCP
2026-07-28, "Versioning and Compatibility" and "Streamable HTTP".
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from appliance import __version__
from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.features.tools.core.mcp_messages import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Id,
    McpError,
)

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS = ("2026-07-28",)
VERSIONS = (*reversed(MODERN_VERSIONS), *reversed(HANDSHAKE_VERSIONS))  # the newest first

SERVER = {"name": "llama-appliance", "title": "Llama Appliance", "version": __version__}
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

VERSION_HEADER = b"mcp-protocol-version"
METHOD_HEADER = b"mcp-method"
NAME_HEADER = b"mcp-name"
REPEATED_HEADERS = (VERSION_HEADER, METHOD_HEADER, NAME_HEADER)  # those that repeat the body's content

META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_SERVER = "io.modelcontextprotocol/serverInfo"

TOOLS_TTL = 60_000  # milliseconds for which a client may keep the list of tools
INSTRUCTIONS = (
    "Runs language models on the machine it is installed on. 'list_models' lists the models, 'chat' asks one of "
    "them. A model that is not loaded yet is loaded first, which can take a minute."
)

_ENCODED = ("=?base64?", "?=")
_TOKEN = msgspec.json.Decoder(str | int)


class ToolsCall(Struct, frozen=True, kw_only=True):
    """``tools/call``, checked. ``arguments`` is the JSON text of an object."""

    id: Id
    name: str
    arguments: bytes
    modern: bool
    token: str | int | None = None  # the token for progress reports, if any


class Immediate(Struct, frozen=True, kw_only=True):
    """An answer that is known at once: a result, or else an error. ``status`` is HTTP's."""

    id: Id | None
    status: int = 200
    result: Mapping[str, object] | None = None
    error: McpError | None = None


class ToolsListing(Struct, frozen=True, kw_only=True):
    """``tools/list``."""

    id: Id
    modern: bool


Reading = ToolsCall | ToolsListing | Immediate


class _ClientRequest(Struct):
    jsonrpc: str = ""
    id: int | float | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET


class _RequestParams(Struct):
    name: str = ""
    arguments: Raw | UnsetType = UNSET
    protocolVersion: str = ""
    meta: dict[str, Raw] | UnsetType | None = msgspec.field(name="_meta", default=UNSET)


_REQUEST = msgspec.json.Decoder(_ClientRequest)
_PARAMS = msgspec.json.Decoder(_RequestParams)


def read_request(body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Reading | None:
    """Return the meaning of a POST's body.

    None: it needs no answer, as a notification, or an answer to a question that was never asked.
    """
    try:
        found = _REQUEST.decode(body)
    except msgspec.ValidationError:
        return _refuse(None, INVALID_REQUEST, "the body is not one JSON-RPC request or notification", 400)
    except UNREADABLE:
        return _refuse(None, PARSE_ERROR, "the body is not JSON", 400)
    if found.jsonrpc != "2.0":
        return _refuse(None, INVALID_REQUEST, 'the body is not JSON-RPC: "jsonrpc" is not "2.0"', 400)
    if found.method is UNSET or found.id is UNSET:
        return None
    if found.id is None:
        return _refuse(None, INVALID_REQUEST, "the id of a request is a text or a number", 400)
    try:
        params = _PARAMS.decode(found.params) if found.params is not UNSET else _RequestParams()
    except UNREADABLE as error:
        return _refuse(found.id, INVALID_PARAMS, f"the params cannot be used: {error}", 400)
    repeated = [
        (low, value.decode("latin-1").strip()) for name, value in headers if (low := name.lower()) in REPEATED_HEADERS
    ]
    meta = params.meta if isinstance(params.meta, dict) else {}
    said = next((value for name, value in repeated if name == VERSION_HEADER), None)
    modern = META_VERSION in meta or said in MODERN_VERSIONS
    if modern and (mistake := _mistake_of_modern(found.id, found.method, params, meta, repeated)) is not None:
        return mistake
    if not modern and said is not None and said not in HANDSHAKE_VERSIONS:
        return _unsupported(found.id, said)
    return _meaning(found.id, found.method, params, meta, modern=modern)


def _meaning(number: Id, method: str, params: _RequestParams, meta: Mapping[str, Raw], *, modern: bool) -> Reading:
    about: dict[str, object] = {"capabilities": {"tools": {}}, "instructions": INSTRUCTIONS}
    match method:
        case "initialize" if not modern:
            asked = params.protocolVersion
            version = asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
            return Immediate(id=number, result={"protocolVersion": version, "serverInfo": SERVER, **about})
        case "server/discover" if modern:
            return Immediate(id=number, result=stamped({"supportedVersions": VERSIONS, **about, **cached()}))
        case "ping":
            return Immediate(id=number, result=stamped({}) if modern else {})
        case "tools/list":
            return ToolsListing(id=number, modern=modern)
        case "tools/call":
            return _call(number, params, meta, modern=modern)
        case _:
            why = f"there is no method '{method[:100]}'"
            return _refuse(number, METHOD_NOT_FOUND, why, 404 if modern else 200)


def _mistake_of_modern(
    number: Id, method: str, params: _RequestParams, meta: Mapping[str, Raw], repeated: Sequence[tuple[bytes, str]]
) -> Immediate | None:
    """Return the first mistake in a request's description of itself: intermediaries rely on its headers."""
    for name in (META_VERSION, META_CAPABILITIES):
        if name not in meta:
            return _refuse(number, INVALID_PARAMS, f"params._meta has no '{name}'", 400)
    if (version := decoded(str, meta[META_VERSION])) is None:
        return _refuse(number, INVALID_PARAMS, f"'{META_VERSION}' is not a text", 400)
    given = dict(repeated)
    if len(given) < len(repeated):
        names = [name for name, _ in repeated]
        twice = next(name.decode() for name in names if names.count(name) > 1)
        return _refuse(number, HEADER_MISMATCH, f"the header {twice} appears twice", 400)
    wanted = [(VERSION_HEADER, version), (METHOD_HEADER, method)]
    if method == "tools/call":
        wanted.append((NAME_HEADER, params.name))
    for name, value in wanted:
        said = given.get(name)
        if (_decoded(said) if name == NAME_HEADER else said) != value:
            return _refuse(number, HEADER_MISMATCH, f"the header {name.decode()} contradicts the body", 400)
    return None if version in MODERN_VERSIONS else _unsupported(number, version)


def _call(number: Id, params: _RequestParams, meta: Mapping[str, Raw], *, modern: bool) -> Reading:
    if not params.name:
        return _refuse(number, INVALID_PARAMS, "params.name is not the name of a tool", 400 if modern else 200)
    arguments = b"{}" if params.arguments is UNSET else bytes(params.arguments)
    token: str | int | None = None
    try:
        if "progressToken" in meta:
            token = _TOKEN.decode(meta["progressToken"])
        msgspec.json.decode(arguments, type=dict[str, Raw])
    except UNREADABLE as error:
        return _refuse(number, INVALID_PARAMS, f"the params cannot be used: {error}", 400 if modern else 200)
    return ToolsCall(id=number, name=params.name, arguments=arguments, modern=modern, token=token)


def stamped(result: Mapping[str, object]) -> dict[str, object]:
    """Return a result in the form of the revision 2026-07-28."""
    return {"resultType": "complete", **result, "_meta": {META_SERVER: SERVER}}


def cached() -> dict[str, object]:
    """Return how long a list may be kept: by its client only."""
    return {"ttlMs": TOOLS_TTL, "cacheScope": "private"}


def _unsupported(number: Id | None, version: str) -> Immediate:
    data = Raw(msgspec.json.encode({"supported": VERSIONS, "requested": version[:100]}))
    error = McpError(code=UNSUPPORTED_VERSION, message="Unsupported protocol version", data=data)
    return Immediate(id=number, status=400, error=error)


def _refuse(number: Id | None, code: int, message: str, status: int) -> Immediate:
    return Immediate(id=number, status=status, error=McpError(code=code, message=message))


def _decoded(value: str | None) -> str | None:
    """Return the text of a header value, decoded from base64 if it is written so."""
    begin, end = _ENCODED
    if value is None or not (value.startswith(begin) and value.endswith(end)):
        return value
    try:
        return base64.b64decode(value[len(begin) : -len(end)], validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def encoded_header(value: str) -> bytes:
    """Return a header value for this text, in base64 if it cannot be written plainly."""
    begin, end = _ENCODED
    plain = value.isascii() and value.isprintable() and value == value.strip()
    if plain and not (value.startswith(begin) and value.endswith(end)):
        return value.encode("ascii")
    return f"{begin}{base64.b64encode(value.encode()).decode()}{end}".encode()
