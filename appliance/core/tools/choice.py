"""The tools that the user has switched on, on the command line or in the configuration."""

from __future__ import annotations

from collections.abc import Iterable

from appliance.core.mcp_config import McpServers
from appliance.core.settings import ToolSettings
from appliance.core.tools.arguments import SHELL
from appliance.core.tools.specs import NAMES
from appliance.core.tools.targets import BadTarget, parse_target
from appliance.errors import UsageError

ALL = "all"


def chosen_tools(words: Iterable[str], *, runtime: str, root: str, mcp: McpServers) -> ToolSettings:
    """Return settings for these names (``all`` is one), in the tools' own order. Raises UsageError for unusable
    ones.
    """
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
        except BadTarget as error:
            raise UsageError(str(error)) from None
    builtin = tuple(name for name in NAMES if name in asked or (ALL in asked and not (root and name == SHELL)))
    return ToolSettings(builtin=builtin, runtime=runtime, root=root or None, mcp=mcp)
