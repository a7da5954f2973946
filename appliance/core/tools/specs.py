"""The built-in tools: their arguments, their descriptions, and the choice of those that the user has switched on.

Names, schemas, defaults, limits and the order are llama-server's (b11434).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from appliance.core.settings import ToolSettings
from appliance.core.tools.places import BadToolTarget, parse_target
from appliance.core.tools.texts import MAX_OUTPUT, TextEdit
from appliance.errors import ApplianceError, BadRequest, UsageError

SHELL = "exec_shell_command"
MAX_MATCHES = 100
MAX_SECONDS = 60
MAX_CONTEXT = 50
"""Lines before and after a match."""
_GLOB = "A glob without '/' is matched with the file's name at any depth; one with '/' with its path below 'path'"
_EDITS: dict[str, object] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "The file"},
        "edits": {
            "type": "array",
            "description": "The replacements, all made at once",
            "items": {
                "type": "object",
                "properties": {
                    "old_text": {"type": "string", "description": "The current text; it must occur exactly once"},
                    "new_text": {"type": "string", "description": "The new text in its place"},
                },
                "required": ["old_text", "new_text"],
            },
        },
    },
}
ALL = "all"


class ToolSpec(Struct, frozen=True, kw_only=True):
    """One tool as it is offered. ``parameters`` is the JSON schema of its arguments, an object."""

    name: str
    display_name: str
    description: str
    parameters: Raw
    kind: Literal["builtin", "mcp"] = "builtin"
    server: str = ""
    """The MCP server that has it."""
    writes: bool = False
    """True if it changes something on the machine, as far as is known."""
    uses_cwd: bool = False
    streams: bool = False
    """True if it can send partial output while it works."""

    @property
    def size(self) -> int:
        """Return the approximate size of its description in bytes."""
        return len(self.name) + len(self.display_name) + len(self.description) + len(self.parameters)


class ToolContext(Struct, frozen=True, kw_only=True):
    """The circumstances of one use. ``cwd`` is where relative paths begin; None is the program's own."""

    cwd: str | None = None
    runtime: str | None = None
    """The place of commands and files, in llama-server's words: ``docker-container:<id>``, ``ssh:<target>``."""
    base64: bool = False
    """Wants file content as base64, for files that are not text."""


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of one use. A tool that failed at its task gives an ``error``, not an exception."""

    body: bytes
    """The JSON object with which ``POST /tools`` answers."""
    text: str
    """The text for the model."""
    error: str | None = None


class ToolProblem(ApplianceError):
    """A tool that could not be used at all: the runtime is unknown, the process could not be started."""

    reason = "tool_failed"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name = name
        self.why = why

    def __str__(self) -> str:
        return f"tool '{self.name}': {self.why}"


Arguments = TypeVar("Arguments", bound=Struct)


class ReadFile(Struct, frozen=True, kw_only=True):
    path: str
    start_line: int = 1
    end_line: int = -1
    append_loc: bool = False


class FileGlobSearch(Struct, frozen=True, kw_only=True):
    path: str
    include: str = "**"
    exclude: str = ""
    type: str = "file"
    max_depth: int = 0
    limit: int = MAX_MATCHES


class GrepSearch(Struct, frozen=True, kw_only=True):
    path: str
    pattern: str
    include: str = "**"
    exclude: str = ""
    return_line_numbers: bool = False
    literal: bool = False
    ignore_case: bool = False
    context_lines: int = 0


class ExecShellCommand(Struct, frozen=True, kw_only=True):
    command: str
    timeout: float = 10
    max_output_size: int = MAX_OUTPUT


class WriteFile(Struct, frozen=True, kw_only=True):
    path: str
    content: str


class EditFile(Struct, frozen=True, kw_only=True):
    path: str
    edits: list[TextEdit]


class GetInfo(Struct, frozen=True, kw_only=True):
    pass


def read_arguments(tool: str, arguments: bytes, kind: type[Arguments]) -> Arguments:
    """Read the arguments of one call; null counts as absent, and ``"5"`` as 5. Raises BadRequest."""
    try:
        given = msgspec.json.decode(arguments or b"{}", type=dict[str, Raw])
        said = {name: value for name, value in given.items() if bytes(value).strip() != b"null"}
        return msgspec.json.decode(msgspec.json.encode(said), type=kind, strict=False)  # builds nothing but ``kind``
    except msgspec.ValidationError as error:
        raise BadRequest(f"the arguments of '{tool}' cannot be used: {error}", param="params") from None
    except RecursionError:
        raise BadRequest(f"the arguments of '{tool}' are nested too deeply", param="params") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the arguments of '{tool}' are not valid JSON: {error}", param="params") from None


def _parameters(required: tuple[str, ...] = (), **properties: tuple[str, str]) -> Raw:
    """Return the JSON schema of an object with these members, each a type and its meaning."""
    schema: dict[str, object] = {
        "type": "object",
        "properties": {name: {"type": kind, "description": text} for name, (kind, text) in properties.items()},
    }
    return _raw(schema, required)


def _raw(schema: dict[str, object], required: tuple[str, ...]) -> Raw:
    return Raw(msgspec.json.encode(schema | ({"required": required} if required else {})))


SPECS = (
    ToolSpec(
        name="read_file",
        display_name="Read file",
        description=f"Read a text file, or some of its lines: at most {MAX_OUTPUT} bytes at once. For a part of "
        "a long file, name start_line and end_line.",
        parameters=_parameters(
            ("path",),
            path=("string", "The file"),
            start_line=("integer", "First line, counted from 1 (default 1)"),
            end_line=("integer", "Last line, included (default: the last one)"),
            append_loc=("boolean", "Write each line's number and → before it"),
        ),
        uses_cwd=True,
    ),
    ToolSpec(
        name="file_glob_search",
        display_name="File search",
        description="List the files below a folder whose names match a glob. In a git repository this leaves out "
        "ignored files (a list of folders keeps ignored ones); elsewhere it leaves out the content of folders such as "
        f".git, node_modules and build. {_GLOB}.",
        parameters=_parameters(
            ("path",),
            path=("string", "The folder to search in"),
            include=("string", "Glob of the entries to list (default **)"),
            exclude=("string", "Glob of the entries to leave out"),
            type=("string", 'The kind of entries: "file" (default), "dir" or "all"'),
            max_depth=("integer", "Levels of folders to search; 1 is the folder itself, 0 (default) means all"),
            limit=("integer", f"Most entries listed (default and at most {MAX_MATCHES})"),
        ),
        uses_cwd=True,
    ),
    ToolSpec(
        name="grep_search",
        display_name="Grep search",
        description="Find the lines that match a regular expression, in a file or in all files below a folder. Files "
        f"are chosen as by file_glob_search. At most {MAX_MATCHES} matches. {_GLOB}.",
        parameters=_parameters(
            ("path", "pattern"),
            path=("string", "The file or folder to search in"),
            pattern=("string", "The pattern: a regular expression as in JavaScript"),
            include=("string", "Glob of the files to search (default **)"),
            exclude=("string", "Glob of the files to leave out"),
            return_line_numbers=("boolean", "Show each line's number"),
            literal=("boolean", "The pattern is text, not a regular expression (default false)"),
            ignore_case=("boolean", "Ignore the difference between upper and lower case (default false)"),
            context_lines=("integer", f"Lines shown before and after each match (default 0, at most {MAX_CONTEXT})"),
        ),
        uses_cwd=True,
    ),
    ToolSpec(
        name="exec_shell_command",
        display_name="Execute shell command",
        description="Run a command in a shell and return what it printed, errors included, and its exit code.",
        parameters=_parameters(
            ("command",),
            command=("string", "The command"),
            timeout=("integer", f"Seconds that it may take (default 10, at most {MAX_SECONDS})"),
            max_output_size=("integer", f"Most bytes of output returned (default and at most {MAX_OUTPUT})"),
        ),
        writes=True,
        uses_cwd=True,
        streams=True,
    ),
    ToolSpec(
        name="write_file",
        display_name="Write file",
        description="Write a file: create it, or replace its content; missing folders are created.",
        parameters=_parameters(
            ("path", "content"), path=("string", "The file"), content=("string", "The whole new content")
        ),
        writes=True,
        uses_cwd=True,
    ),
    ToolSpec(
        name="edit_file",
        display_name="Edit file",
        description="Replace pieces of a file. Each old_text must occur exactly once in the file as it is now, and "
        "none may overlap another. To write a whole file, use write_file.",
        parameters=_raw(_EDITS, ("path", "edits")),
        writes=True,
        uses_cwd=True,
    ),
    ToolSpec(
        name="get_info",
        display_name="Get Runtime Info",
        description="Return the operating system and the folder in which the tools work.",
        parameters=_parameters(),
        uses_cwd=True,
    ),
)
"""In llama-server's order."""
NAMES = tuple(spec.name for spec in SPECS)


def chosen_tools(words: Iterable[str], *, runtime: str, root: str) -> ToolSettings:
    """Return settings for these names (``all`` is one), in the tools' order. Raises UsageError."""
    asked = [word.strip() for word in words if word.strip()]
    for word in asked:
        if word != ALL and word not in NAMES:
            raise UsageError(f'unknown tool "{word}"; there are {", ".join(NAMES)}, and {ALL}')
    if root and runtime:
        raise UsageError(
            "a root confines the tools to a folder of this machine, and in a tool runtime they do not run on it; "
            "leave out one of the two"
        )
    if root and SHELL in asked:
        raise UsageError(
            f"{SHELL} cannot be confined to a folder: a command can reach everything that its user can; "
            "leave it out, or let the tools run in a container (a tool runtime) instead of the root"
        )
    if runtime:
        try:
            parse_target(runtime)
        except BadToolTarget as error:
            raise UsageError(str(error)) from None
    builtin = tuple(name for name in NAMES if name in asked or (ALL in asked and not (root and name == SHELL)))
    return ToolSettings(builtin=builtin, runtime=runtime, root=root or None)
