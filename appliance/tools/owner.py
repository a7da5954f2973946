"""Opens the tools that are switched on, and ends everything that they have started."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from appliance.core.settings import ToolSettings
from appliance.core.tools.places import BadTarget, Container, Image, Ssh, parse_target
from appliance.errors import UsageError
from appliance.platform.children import Children, open_children
from appliance.tools.box import Toolbox, ToolSource


@asynccontextmanager
async def open_tools(settings: ToolSettings, children: Children) -> AsyncGenerator[Toolbox]:
    """Own the tools for the length of the block. Raises UsageError for a root or runtime that cannot be used, and
    ToolProblem for a container that does not start."""
    # Twenty modules, which most servers do without: they have no tools.
    from appliance.tools.builtins import Builtins
    from appliance.tools.container import OwnContainer, open_container
    from appliance.tools.mcp_owner import open_mcp

    async with AsyncExitStack() as stack:
        sources: list[ToolSource] = []
        if settings.builtin:
            root = _root(settings.root)
            target = _target(settings.runtime)
            runtime: OwnContainer | Container | Ssh | None
            if isinstance(target, Image):
                runtime = await stack.enter_async_context(open_container(children, target))
            else:
                runtime = target
            sources.append(Builtins(settings, root, children, runtime))
        if settings.mcp.servers:
            sources.append(await stack.enter_async_context(open_mcp(settings.mcp, children)))
        yield Toolbox(sources)


@asynccontextmanager
async def open_own_tools(settings: ToolSettings) -> AsyncGenerator[Toolbox]:
    """The same with children of its own, which it does without as long as no tool is switched on.

    Raises the exceptions of `open_tools` unchanged: open it outside of every nursery.
    """
    if not settings.enabled:
        yield Toolbox()
        return
    async with open_children() as children, open_tools(settings, children) as tools:
        yield tools


def _root(root: str | None) -> str | None:
    from appliance.tools.files import real_root

    try:
        return real_root(root) if root is not None else None
    except OSError as error:
        raise UsageError(f"--tools-root {root} cannot be used: {error.strerror or error}; name a folder") from None


def _target(runtime: str) -> Container | Image | Ssh | None:
    try:
        return parse_target(runtime) if runtime else None
    except BadTarget as error:
        raise UsageError(f"--tools-runtime: {error}") from None
