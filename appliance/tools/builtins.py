"""The built-in tools as a source of tools: names and arguments in, outcomes out, at the chosen place."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from appliance.core.settings import ToolSettings
from appliance.core.tools.places import BadTarget, Container, Ssh, running_target
from appliance.core.tools.specs import (
    SHELL,
    SPECS,
    EditFile,
    ExecShellCommand,
    FileGlobSearch,
    GetInfo,
    GrepSearch,
    ReadFile,
    WriteFile,
    read_arguments,
)
from appliance.core.tools.tool import ToolContext, ToolOutcome, ToolProblem, ToolSpec
from appliance.errors import Forbidden, NotFound
from appliance.platform.children import Children
from appliance.tools.container import OwnContainer
from appliance.tools.file_tools import edit_file, read_file, write_file
from appliance.tools.host import Host
from appliance.tools.outcomes import failed
from appliance.tools.place import FileProblem, Place
from appliance.tools.runtime import Runtime
from appliance.tools.search_tools import file_glob_search, grep_search
from appliance.tools.shell_tools import exec_shell_command, get_info, stream_shell_command


class Builtins:
    """Made by `tools.owner.open_tools`. ``runtime`` is the default place of tools; None: here."""

    def __init__(
        self,
        settings: ToolSettings,
        root: str | None,
        children: Children,
        runtime: OwnContainer | Container | Ssh | None,
    ) -> None:
        self._specs = [spec for spec in SPECS if spec.name in settings.builtin]
        self._root = root
        self._children = children
        self._runtime = runtime

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs

    async def call(self, name: str, arguments: bytes, context: ToolContext) -> ToolOutcome:
        """Raises BadRequest, Forbidden, NotFound and ToolProblem."""
        try:
            return await self._call(name, arguments, context)
        except FileProblem as problem:
            return failed(str(problem))

    @asynccontextmanager
    async def stream(
        self, name: str, arguments: bytes, context: ToolContext
    ) -> AsyncGenerator[AsyncIterator[bytes | ToolOutcome]]:
        """Only exec_shell_command sends its output while it runs. Raises as `call`."""
        if name != SHELL:
            raise NotFound(f"the tool '{name}' does not stream")
        asked = read_arguments(name, arguments, ExecShellCommand)
        try:
            place = await self._place(context)
        except FileProblem as problem:
            raise ToolProblem(name, str(problem)) from None
        async with stream_shell_command(self._children, place, asked) as pieces:
            yield pieces

    async def _call(self, name: str, arguments: bytes, context: ToolContext) -> ToolOutcome:
        match name:
            case "read_file":
                asked = read_arguments(name, arguments, ReadFile)
                return await read_file(await self._place(context), asked, as_base64=context.base64)
            case "file_glob_search":
                asked = read_arguments(name, arguments, FileGlobSearch)
                return await file_glob_search(await self._place(context), asked)
            case "grep_search":
                asked = read_arguments(name, arguments, GrepSearch)
                return await grep_search(await self._place(context), asked)
            case "exec_shell_command":
                asked = read_arguments(name, arguments, ExecShellCommand)
                return await exec_shell_command(self._children, await self._place(context), asked)
            case "write_file":
                return await write_file(await self._place(context), read_arguments(name, arguments, WriteFile))
            case "edit_file":
                return await edit_file(await self._place(context), read_arguments(name, arguments, EditFile))
            case "get_info":
                read_arguments(name, arguments, GetInfo)
                return await get_info(await self._place(context))
            case _:
                raise NotFound(f"there is no built-in tool '{name}'")

    async def _place(self, context: ToolContext) -> Place:
        """Return the place of this use. Raises ToolProblem, and Forbidden for a way out of the root."""
        if context.runtime:
            if self._root is not None:
                raise Forbidden(
                    "the tools are confined to a folder of this machine (--tools-root); a tool runtime would lead out"
                )
            try:
                target: Container | Ssh = running_target(context.runtime)
            except BadTarget as error:
                raise ToolProblem("runtime", str(error)) from None
            return Runtime(self._children, target, context.cwd)
        match self._runtime:
            case None:
                return Host(self._children, context.cwd, self._root)
            case OwnContainer() as own:
                return Runtime(self._children, await own.running(), context.cwd)
            case target:
                return Runtime(self._children, target, context.cwd)
