"""The names of the built-in tools, and the choice of those that the user has switched on."""

from __future__ import annotations

from collections.abc import Iterable

from appliance.core.settings import ToolSettings
from appliance.core.tools.targets import BadToolTarget, parse_target
from appliance.errors import UsageError

SHELL = "exec_shell_command"
ALL = "all"
NAMES = ("read_file", "file_glob_search", "grep_search", SHELL, "write_file", "edit_file", "get_info")
"""In llama-server's order (b11434)."""


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
