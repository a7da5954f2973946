"""The arguments of the built-in tools. Names, defaults and limits are llama-server's (b11434)."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from appliance.core.tools.edits import Edit
from appliance.core.tools.lines import MAX_OUTPUT
from appliance.errors import BadRequest

SHELL = "exec_shell_command"
MAX_MATCHES = 100
MAX_SECONDS = 60
MAX_CONTEXT = 50
"""Lines before and after a match."""

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
    edits: list[Edit]


class GetInfo(Struct, frozen=True, kw_only=True):
    pass


def read_arguments(tool: str, arguments: bytes, kind: type[Arguments]) -> Arguments:
    """Read the arguments of one call; null counts as absent, and ``"5"`` as 5. Raises BadRequest."""
    try:
        given = msgspec.json.decode(arguments or b"{}", type=dict[str, Raw])
        said = {name: value for name, value in given.items() if bytes(value).strip() != b"null"}
        return msgspec.convert({name: msgspec.json.decode(value) for name, value in said.items()}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the arguments of '{tool}' cannot be used: {error}", param="params") from None
    except RecursionError:
        raise BadRequest(f"the arguments of '{tool}' are nested too deeply", param="params") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the arguments of '{tool}' are not valid JSON: {error}", param="params") from None
