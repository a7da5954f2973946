"""A verb of the command line: its name, its place in the help, and the function that imports its command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import click

if TYPE_CHECKING:
    from appliance.fleet.chooser import EngineSource

Group = Literal["models", "server", "this machine", "several machines", "for developers"]
"""The parts of the help, in their order."""
GROUPS: tuple[Group, ...] = get_args(Group)


class Verb(NamedTuple):
    """``summary`` is one sentence; ``command`` imports the command, when it is used.

    ``alone`` is called where the program was started without a verb. It returns True if it had something to say then,
    which takes the place of the help. ``page`` is the document in docs/ that says more. ``removed`` is called with each
    model whose files were removed while no server runs. ``engines`` imports the engines of this machine.
    """

    name: str
    group: Group
    summary: str
    command: Callable[[], click.Command]
    alone: Callable[[], bool] | None = None
    page: str = ""
    removed: Callable[[str], Awaitable[None]] | None = None
    engines: Callable[[], EngineSource] | None = None
