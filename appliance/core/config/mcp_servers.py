"""The configured MCP servers: the JSON of desktop clients (``mcpServers``), and the same section in YAML.

Source: llama-server README, ``--mcp-servers-config``; "type", "url" and "headers" as desktop clients write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast
from urllib.parse import urlsplit

from msgspec import Struct

from appliance.errors import UsageError

DEFAULT_TIMEOUT_MS = 30_000
MAX_TIMEOUT_MS = 24 * 3600 * 1000

_STDIO_KEYS = ("command", "args", "env", "cwd")
_HTTP_KEYS = ("url", "headers")
_COMMON_KEYS = ("type", "timeout_ms", "disabled")
_HTTP_TYPES = ("http", "streamable-http", "streamableHttp")
_OWN_HEADERS = ("host", "connection", "content-length", "transfer-encoding", "content-type", "accept")
"""Headers that frame a request; a configuration cannot set them."""
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class StdioServer(Struct, frozen=True, kw_only=True):
    """A program that speaks MCP on its standard input and output."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    """Variables that are added to this program's own environment."""
    cwd: str | None = None
    timeout: float = DEFAULT_TIMEOUT_MS / 1000
    """Seconds for one request to it."""


class HttpServer(Struct, frozen=True, kw_only=True):
    """A server that speaks MCP over streamable HTTP at one address."""

    name: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    """Sent with every request; the place for its key."""
    timeout: float = DEFAULT_TIMEOUT_MS / 1000
    """Seconds for one request to it."""


McpServer = StdioServer | HttpServer


class McpServers(Struct, frozen=True, kw_only=True):
    """Servers in order, and warnings about the others."""

    servers: tuple[McpServer, ...] = ()
    warnings: tuple[str, ...] = ()

    def joined(self, more: McpServers) -> McpServers:
        """Join these servers with those; of servers with one name the first counts."""
        names = {server.name for server in self.servers}
        new = tuple(server for server in more.servers if server.name not in names)
        twice = tuple(
            f"MCP server '{s.name}' appears twice; the first one counts" for s in more.servers if s not in new
        )
        return McpServers(servers=self.servers + new, warnings=self.warnings + more.warnings + twice)


def parse_mcp_servers(text: str, where: str) -> McpServers:
    """Read ``{"mcpServers": {name: entry}}``. ``where`` names the text in messages. Raises UsageError."""
    import json  # see `core.bodies.json_text`

    warnings: list[str] = []

    def first_wins(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, value in pairs:
            if name in found:
                warnings.append(f"{where}: '{name}' appears twice; the first one counts")
            else:
                found[name] = value
        return found

    try:
        document: object = json.loads(text, object_pairs_hook=first_wins)
    except ValueError as error:
        raise UsageError(f"{where} is not valid JSON: {error}") from None
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply") from None
    if (found := _object(document)) is None or "mcpServers" not in found:
        raise UsageError(
            f'{where} has no "mcpServers"; an example is {{"mcpServers": {{"files": {{"command": "npx"}}}}}}'
        )
    servers = read_mcp_servers(found["mcpServers"], where)
    return McpServers(servers=servers.servers, warnings=(*warnings, *servers.warnings))


def read_mcp_servers(section: object, where: str) -> McpServers:
    """Read the section itself, from JSON or YAML: a mapping of name to entry, or nothing. Raises UsageError."""
    if section is None:
        return McpServers()
    entries = _object(section)
    if entries is None:
        raise UsageError(f"{where}: mcpServers is not a mapping of a name to a server")
    servers: list[McpServer] = []
    warnings: list[str] = []
    for name, value in entries.items():
        place = f"{where}: mcpServers.{name}"
        entry = _object(value)
        if entry is None:
            raise UsageError(f"{place} is not a mapping; an example is {{'command': 'npx', 'args': ['some-server']}}")
        server = _server(name, entry, place, warnings)
        if server is not None:
            servers.append(server)
    return McpServers(servers=tuple(servers), warnings=tuple(warnings))


def _server(name: str, entry: Mapping[str, object], place: str, warnings: list[str]) -> McpServer | None:
    """Return None for a server that is skipped, with a warning unless the user has switched it off."""
    kind = _text(entry, "type", place) or ("http" if "url" in entry and "command" not in entry else "stdio")
    if entry.get("disabled") is True:
        return None
    skipped = _why_skipped(name, kind, entry)
    if skipped:
        warnings.append(f"{place} is skipped: {skipped}")
        return None
    known = (_HTTP_KEYS if kind in _HTTP_TYPES else _STDIO_KEYS) + _COMMON_KEYS
    warnings += [f"{place}: '{key}' is unknown and has no effect" for key in entry if key not in known]
    timeout = _timeout(entry, place)
    if kind in _HTTP_TYPES:
        url = _url(entry, place)
        return HttpServer(name=name, url=url, headers=tuple(_headers(entry, place)), timeout=timeout)
    return StdioServer(
        name=name,
        command=_text(entry, "command", place),
        args=tuple(_words(entry, place)),
        env=_environment(entry, place),
        cwd=_text(entry, "cwd", place) or None,
        timeout=timeout,
    )


def _why_skipped(name: str, kind: str, entry: Mapping[str, object]) -> str:
    if not name:
        return "it has no name"
    if kind in _HTTP_TYPES:
        return "" if entry.get("url") else "it has no url"
    if kind != "stdio":
        return f"type '{kind}' is not supported; the types are 'stdio' and 'http'"
    return "" if entry.get("command") else "it has no command"


def _text(entry: Mapping[str, object], key: str, place: str) -> str:
    value = entry.get(key)
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value:
        raise UsageError(f"{place}.{key} is not a text")
    return value


def _words(entry: Mapping[str, object], place: str) -> Iterable[str]:
    value = entry.get("args")
    if value is None:
        return ()
    if not isinstance(value, list):
        raise UsageError(f"{place}.args is not a list of texts")
    words = cast("list[object]", value)  # JSON and YAML lists hold anything
    return [_scalar(word, f"{place}.args[{at}]") for at, word in enumerate(words)]


def _environment(entry: Mapping[str, object], place: str) -> dict[str, str]:
    found = _mapping(entry, "env", place)
    for name in found:
        if not name or "=" in name or "\0" in name:
            raise UsageError(f"{place}.env: {name!r} cannot be the name of an environment variable")
    return {name: _scalar(value, f"{place}.env.{name}") for name, value in found.items()}


def _headers(entry: Mapping[str, object], place: str) -> Iterable[tuple[str, str]]:
    for name, value in _mapping(entry, "headers", place).items():
        text = _scalar(value, f"{place}.headers.{name}").strip()
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(text):
            raise UsageError(f"{place}.headers: {name!r} and its value cannot be an HTTP header")
        if name.lower() in _OWN_HEADERS:
            raise UsageError(f"{place}.headers: '{name}' is set by the program itself; leave it out")
        yield name, text


def _mapping(entry: Mapping[str, object], key: str, place: str) -> Mapping[str, object]:
    value = entry.get(key)
    if value is None:
        return {}
    found = _object(value)
    if found is None:
        raise UsageError(f"{place}.{key} is not a mapping of names to texts")
    return found


def _scalar(value: object, place: str) -> str:
    """Treat numbers and truth values as the text they are written as; YAML makes them of unquoted text."""
    match value:
        case bool():
            return "true" if value else "false"
        case str() if "\0" not in value:
            return value
        case int() | float():
            return str(value)
        case _:
            raise UsageError(f"{place} is not a text")


def _timeout(entry: Mapping[str, object], place: str) -> float:
    value = entry.get("timeout_ms", DEFAULT_TIMEOUT_MS)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TIMEOUT_MS:
        raise UsageError(f"{place}.timeout_ms is not a number of milliseconds above 0 and up to {MAX_TIMEOUT_MS}")
    return value / 1000


def _url(entry: Mapping[str, object], place: str) -> str:
    url = _text(entry, "url", place)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{place}.url is not an http or https address; an example is http://127.0.0.1:3000/mcp")
    return url


def _object(value: object) -> Mapping[str, object] | None:
    """Return the value if it is a mapping with texts as keys."""
    if not isinstance(value, Mapping):
        return None
    found = cast("Mapping[object, object]", value)  # JSON and YAML mappings hold anything
    return {key: each for key, each in found.items() if isinstance(key, str)} if _has_names(found) else None


def _has_names(found: Mapping[object, object]) -> bool:
    return all(isinstance(key, str) for key in found)
