"""The built-in tools: their arguments and their descriptions.

Schemas, defaults and limits are llama-server's (b11434).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.core.capped_output import MAX_OUTPUT
from appliance.core.tools.box import ToolSpec
from appliance.core.tools.choice import SHELL
from appliance.errors import BadRequest
from appliance.features.tools.core.texts import TextEdit

MAX_MATCHES = 100
MAX_SECONDS = 60
MAX_CONTEXT = 50  # lines before and after a match
_GLOB = "A glob without '/' is matched with the file's name at any depth; one with '/' with its path below 'path'"
Arguments = TypeVar("Arguments", bound=Struct)


class ReadFile(Struct, frozen=True, kw_only=True):
    path: Annotated[str, Meta(description="The file")]
    start_line: Annotated[int, Meta(description="First line, counted from 1 (default 1)")] = 1
    end_line: Annotated[int, Meta(description="Last line, included (default: the last one)")] = -1
    append_loc: Annotated[bool, Meta(description="Write each line's number and → before it")] = False


class FileGlobSearch(Struct, frozen=True, kw_only=True):
    path: Annotated[str, Meta(description="The folder to search in")]
    include: Annotated[str, Meta(description="Glob of the entries to list (default **)")] = "**"
    exclude: Annotated[str, Meta(description="Glob of the entries to leave out")] = ""
    type: Annotated[str, Meta(description='The kind of entries: "file" (default), "dir" or "all"')] = "file"
    max_depth: Annotated[
        int, Meta(description="Levels of folders to search; 1 is the folder itself, 0 (default) means all")
    ] = 0
    limit: Annotated[int, Meta(description=f"Most entries listed (default and at most {MAX_MATCHES})")] = MAX_MATCHES


class GrepSearch(Struct, frozen=True, kw_only=True):
    path: Annotated[str, Meta(description="The file or folder to search in")]
    pattern: Annotated[str, Meta(description="The pattern: a regular expression as in JavaScript")]
    include: Annotated[str, Meta(description="Glob of the files to search (default **)")] = "**"
    exclude: Annotated[str, Meta(description="Glob of the files to leave out")] = ""
    return_line_numbers: Annotated[bool, Meta(description="Show each line's number")] = False
    literal: Annotated[bool, Meta(description="The pattern is text, not a regular expression (default false)")] = False
    ignore_case: Annotated[
        bool, Meta(description="Ignore the difference between upper and lower case (default false)")
    ] = False
    context_lines: Annotated[
        int, Meta(description=f"Lines shown before and after each match (default 0, at most {MAX_CONTEXT})")
    ] = 0


class ExecShellCommand(Struct, frozen=True, kw_only=True):
    command: Annotated[str, Meta(description="The command")]
    timeout: Annotated[float, Meta(description=f"Seconds that it may take (default 10, at most {MAX_SECONDS})")] = 10
    max_output_size: Annotated[
        int, Meta(description=f"Most bytes of output returned (default and at most {MAX_OUTPUT})")
    ] = MAX_OUTPUT


class WriteFile(Struct, frozen=True, kw_only=True):
    path: Annotated[str, Meta(description="The file")]
    content: Annotated[str, Meta(description="The whole new content")]


class EditFile(Struct, frozen=True, kw_only=True):
    path: Annotated[str, Meta(description="The file")]
    edits: Annotated[list[TextEdit], Meta(description="The replacements, all made at once")]


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


def schema_of(arguments: type[Struct]) -> JsonObject:
    """Return the JSON schema of an object with these fields: without titles, defaults and references."""
    _, parts = msgspec.json.schema_components([arguments])
    found = _plain(parts[arguments.__name__], parts)
    return {name: value for name, value in found.items() if name != "description"}


def _plain(schema: JSON, parts: Mapping[str, JSON]) -> Any:
    match schema:
        case {"$ref": str(reference)}:
            return _plain(parts[reference.rpartition("/")[2]], parts)
        case dict():
            left_out = ("title", "default", *(() if schema.get("required") else ("required",)))
            return {name: _plain(value, parts) for name, value in schema.items() if name not in left_out}
        case list():
            return [_plain(value, parts) for value in schema]
        case _:
            return schema


ARGUMENTS: Mapping[str, type[Struct]] = {
    "read_file": ReadFile,
    "file_glob_search": FileGlobSearch,
    "grep_search": GrepSearch,
    SHELL: ExecShellCommand,
    "write_file": WriteFile,
    "edit_file": EditFile,
    "get_info": GetInfo,
}  # by the tool's name


def _spec(name: str, display_name: str, description: str, *, writes: bool = False, streams: bool = False) -> ToolSpec:
    return ToolSpec(
        name=name,
        display_name=display_name,
        description=description,
        parameters=Raw(msgspec.json.encode(schema_of(ARGUMENTS[name]))),
        writes=writes,
        uses_cwd=True,
        streams=streams,
    )


SPECS = (
    _spec(
        "read_file",
        "Read file",
        f"Read a text file, or some of its lines: at most {MAX_OUTPUT} bytes at once. For a part of a long file, name "
        "start_line and end_line.",
    ),
    _spec(
        "file_glob_search",
        "File search",
        "List the files below a folder whose names match a glob. In a git repository this leaves out ignored files (a "
        "list of folders keeps ignored ones); elsewhere it leaves out the content of folders such as .git, "
        f"node_modules and build. {_GLOB}.",
    ),
    _spec(
        "grep_search",
        "Grep search",
        "Find the lines that match a regular expression, in a file or in all files below a folder. Files are chosen as "
        f"by file_glob_search. At most {MAX_MATCHES} matches. {_GLOB}.",
    ),
    _spec(
        SHELL,
        "Execute shell command",
        "Run a command in a shell and return what it printed, errors included, and its exit code.",
        writes=True,
        streams=True,
    ),
    _spec(
        "write_file",
        "Write file",
        "Write a file: create it, or replace its content; missing folders are created.",
        writes=True,
    ),
    _spec(
        "edit_file",
        "Edit file",
        "Replace pieces of a file. Each old_text must occur exactly once in the file as it is now, and none may "
        "overlap another. To write a whole file, use write_file.",
        writes=True,
    ),
    _spec("get_info", "Get Runtime Info", "Return the operating system and the folder in which the tools work."),
)
"""In llama-server's order."""
