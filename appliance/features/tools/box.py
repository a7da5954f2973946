"""All tools of the program under one roof: their sources, their use, and the end of everything that they started."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from appliance.core.near_names import meant_or_all
from appliance.core.settings import ToolSettings
from appliance.core.tools.box import ToolContext, ToolOutcome, ToolSpec, none_switched_on
from appliance.core.tools.targets import ContainerImage, parse_target
from appliance.errors import BadRequest, NotFound, UsageError
from appliance.platform.children import Children, open_children

if TYPE_CHECKING:
    from appliance.features.tools.mcp_client import McpClient

ALL = "*"
MCP = "mcp:"

log = logging.getLogger(__name__)


class ToolSource(Protocol):
    """A source of tools. Its list is known beforehand, and stays the same."""

    def specs(self) -> Sequence[ToolSpec]: ...

    async def call(self, name: str, arguments: bytes, context: ToolContext) -> ToolOutcome:
        """Use one of its tools. ``arguments`` is the JSON text of the arguments object.

        Raises BadRequest for arguments that cannot be used, and ToolProblem when the tool could not even begin.
        Cancelling stops the tool and ends its processes.
        """
        ...


@runtime_checkable
class StreamingSource(Protocol):
    """A source with tools that can send partial output while they work (`ToolSpec.streams`)."""

    def stream(
        self, name: str, arguments: bytes, context: ToolContext
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes | ToolOutcome]]:
        """Like `ToolSource.call`; pieces of output, the outcome last. Leaving the block stops the tool."""
        ...


class OpenToolbox:
    """The tools of several sources; of two with the same name, the one of the earlier source counts.

    Made by `features.tools.box.open_tools`. Without sources it is an empty box: no tool was switched on.
    """

    def __init__(self, sources: Sequence[ToolSource] = (), servers: Sequence[McpClient] = ()) -> None:
        self.enabled = bool(sources)  # true if somebody asked for tools, though there may be none
        self.servers = {server.name: server for server in servers}  # the MCP servers by name
        self._sources: dict[str, ToolSource] = {}
        self._specs: dict[str, ToolSpec] = {}
        for source in sources:
            for spec in source.specs():
                if spec.name in self._specs:
                    whose = f"the MCP server '{spec.server}'" if spec.server else "a later source"
                    log.warning("there are two tools called '%s'; that of %s is left out", spec.name, whose)
                else:
                    self._sources[spec.name], self._specs[spec.name] = source, spec

    def specs(self) -> Sequence[ToolSpec]:
        return list(self._specs.values())

    def find(self, name: str) -> ToolSpec | None:
        return self._specs.get(name)

    async def call(self, name: str, arguments: bytes, context: ToolContext) -> ToolOutcome:
        """Like `ToolSource.call`. Also raises NotFound."""
        return await self._source_of(name).call(name, arguments, context)

    def stream(
        self, name: str, arguments: bytes, context: ToolContext
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes | ToolOutcome]]:
        """Like `StreamingSource.stream`. Raises NotFound, also for a tool that does not stream."""
        source = self._source_of(name)
        if not self._specs[name].streams or not isinstance(source, StreamingSource):
            raise NotFound(f"the tool '{name}' does not stream; use it without \"stream\"")
        return source.stream(name, arguments, context)

    def select(self, words: Sequence[str]) -> list[ToolSpec]:
        """Return the tools that names, ``*``, ``mcp:*`` and ``mcp:<server>`` mean, each once. Raises BadRequest."""
        found: dict[str, ToolSpec] = {}
        for word in words:
            for spec in self._meant(word):
                found.setdefault(spec.name, spec)
        return list(found.values())

    def _meant(self, word: str) -> list[ToolSpec]:
        if word in self._specs:
            return [self._specs[word]]
        if word == ALL:
            return list(self._specs.values())
        if word.startswith(MCP):
            server = word.removeprefix(MCP)
            found = [spec for spec in self._specs.values() if spec.kind == "mcp" and server in (ALL, spec.server)]
            if found or server == ALL:
                return found
        raise BadRequest(self._unknown(word), param="tools")

    def _source_of(self, name: str) -> ToolSource:
        if name not in self._sources:
            raise NotFound(self._unknown(name))
        return self._sources[name]

    def _unknown(self, word: str) -> str:
        servers = {f"{MCP}{spec.server}" for spec in self._specs.values() if spec.kind == "mcp"}
        known = sorted({*self._specs, *servers})
        return f"there is no tool '{word}'{meant_or_all(word, known)}" if known else none_switched_on(word)


@asynccontextmanager
async def open_tools(settings: ToolSettings, children: Children) -> AsyncGenerator[OpenToolbox]:
    """Own the tools for the length of the block. Raises UsageError for a root or runtime that cannot be used, and
    ToolProblem for a container that does not start."""
    # Twenty modules, which most servers do without: they have no tools.
    from appliance.features.tools.builtins import Builtins, open_container
    from appliance.features.tools.mcp_client import open_mcp
    from appliance.platform.rooted_files import real_root

    async with AsyncExitStack() as stack:
        sources: list[ToolSource] = []
        servers: Sequence[McpClient] = ()
        if settings.builtin:
            try:
                root = real_root(settings.root) if settings.root is not None else None
            except OSError as error:
                why = error.strerror or error
                raise UsageError(f"--tools-root {settings.root} cannot be used: {why}; name a folder") from None
            target = parse_target(settings.runtime) if settings.runtime else None
            if isinstance(target, ContainerImage):
                target = await stack.enter_async_context(open_container(children, target))
            sources.append(Builtins(settings, root, children, target))
        if settings.mcp.servers:
            mcp = await stack.enter_async_context(open_mcp(settings.mcp, children))
            sources.append(mcp)
            servers = mcp.servers
        yield OpenToolbox(sources, servers)


@asynccontextmanager
async def open_own_tools(settings: ToolSettings) -> AsyncGenerator[OpenToolbox]:
    """The same with children of its own, once a tool is switched on. Raises the exceptions of `open_tools`."""
    if not settings.enabled:
        yield OpenToolbox()
        return
    async with open_children() as children, open_tools(settings, children) as tools:
        yield tools
