"""The descriptions of the built-in tools. Names, schemas and their order are llama-server's (b11434)."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from appliance.core.tooling import ToolSpec
from appliance.core.tools.arguments import MAX_CONTEXT, MAX_MATCHES, MAX_SECONDS
from appliance.core.tools.lines import MAX_OUTPUT


def _parameters(required: tuple[str, ...] = (), **properties: tuple[str, str]) -> Raw:
    """Return the JSON schema of an object with these members, each a type and its meaning."""
    schema: dict[str, object] = {
        "type": "object",
        "properties": {name: {"type": kind, "description": text} for name, (kind, text) in properties.items()},
    }
    return _raw(schema, required)


def _raw(schema: dict[str, object], required: tuple[str, ...]) -> Raw:
    return Raw(msgspec.json.encode(schema | ({"required": required} if required else {})))


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
