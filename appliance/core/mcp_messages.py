"""The messages of MCP: JSON-RPC 2.0, one message in one line or one server-sent event. Bytes in, values out.

Source: the Model Context Protocol's revisions 2024-11-05 to 2026-07-28, and JSON-RPC 2.0.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

MAX_LINE = 8 << 20
"""Bytes of one message; a longer one is dropped, as llama-server does."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

Id = int | float | str
"""JSON-RPC's; 1 and 1.0 are one number."""


class RpcError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ``error`` of an answer."""

    code: int
    message: str = ""
    data: Raw | UnsetType = UNSET


class Answer(Struct, frozen=True, kw_only=True):
    """An answer to a request of ours: a result, or an error."""

    id: Id
    result: Raw | None = None
    error: RpcError | None = None


class Asked(Struct, frozen=True, kw_only=True):
    """A request of the other side, which waits for an answer."""

    id: Id
    method: str
    params: Raw | None = None


class Told(Struct, frozen=True, kw_only=True):
    """A notification of the other side."""

    method: str
    params: Raw | None = None


class _LooseError(Struct):
    """Optional members, which servers leave out."""

    code: int | float | str | None = None
    message: str | None = None
    data: Raw | UnsetType = UNSET


class _Message(Struct):
    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: _LooseError | str | UnsetType | None = UNSET


_MESSAGE = msgspec.json.Decoder(_Message)


def read_message(data: bytes) -> Answer | Asked | Told | None:
    """Read a message; None for anything that is not one."""
    try:
        found = _MESSAGE.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    params = None if found.params is UNSET else found.params
    if isinstance(found.method, str):
        if found.id is UNSET or found.id is None:
            return Told(method=found.method, params=params)
        return Asked(id=found.id, method=found.method, params=params)
    if found.id is UNSET or found.id is None:
        return None
    if found.result is not UNSET:
        return Answer(id=found.id, result=found.result)
    if found.error is UNSET:
        return None
    return Answer(id=found.id, error=_error(found.error))


def _error(found: _LooseError | str | None) -> RpcError:
    if isinstance(found, _LooseError):
        code = int(found.code) if isinstance(found.code, int | float) else INTERNAL_ERROR
        return RpcError(code=code, message=found.message or f"error {code}", data=found.data)
    return RpcError(code=INTERNAL_ERROR, message=found or "error without a message")


def request(number: int, method: str, params: object = None) -> bytes:
    """Encode a request of ours, without a line end."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}})


def notification(method: str, params: object = None) -> bytes:
    message: dict[str, object] = {"jsonrpc": "2.0", "method": method}
    return msgspec.json.encode(message | ({"params": params} if params else {}))


def result(number: Id | None, value: object) -> bytes:
    """Encode the answer to a request of the other side."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": number, "result": value})


def refusal(number: Id | None, error: RpcError) -> bytes:
    """Encode the answer that says why there is no result."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": number, "error": error})


def reply(asked: Asked) -> bytes:
    """Return the answer of a client that offers nothing: to ``ping``, or that it has no such method."""
    if asked.method == "ping":
        return result(asked.id, {})
    name = asked.method[:100]
    return refusal(asked.id, RpcError(code=METHOD_NOT_FOUND, message=f"this client has no method '{name}'"))


class Lines:
    """Cuts a stream into lines; it drops a line that is longer than ``limit``."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._held = bytearray()
        self._dropping = False
        self.dropped = 0
        """Number of lines that were too long."""

    @property
    def held(self) -> int:
        """Bytes of the unfinished line."""
        return len(self._held)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that these bytes complete, without their ends and without empty ones."""
        *ended, rest = chunk.split(b"\n")
        found: list[bytes] = []
        for part in ended:
            self._hold(part)
            if not self._dropping and (line := bytes(self._held).strip()):
                found.append(line)
            self._held.clear()
            self._dropping = False
        self._hold(rest)
        return found

    def _hold(self, part: bytes) -> None:
        if self._dropping:
            return
        if len(self._held) + len(part) > self._limit:
            self._dropping = True
            self.dropped += 1
            self._held.clear()
        else:
            self._held += part
