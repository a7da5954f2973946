"""A verb of the command line: its name, its place in the help, and the function that imports its command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, get_args

import click

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.catalog.sources import ModelPresets
    from appliance.core.config.types import Config
    from appliance.core.examination import Examiner
    from appliance.core.models.download import Remote
    from appliance.core.models.hub_address import HubAccess
    from appliance.fleet.chooser import EngineSource
    from appliance.fleet.estimate import Estimate

Group = Literal["models", "server", "this machine", "several machines", "for developers"]
"""The parts of the help, in their order."""
GROUPS: tuple[Group, ...] = get_args(Group)


class ReadPresets(NamedTuple):
    """The meaning of ``--models-preset FILE``: models for ``serve``, and a table for ``config show``.

    ``show`` gets flags of llama-server that stand beside it, and prints JSON if that is wanted. Both print the oddities
    of the file, and raise UsageError for its mistakes.
    """

    read: Callable[[Path], ModelPresets]
    show: Callable[[Path, Sequence[str], bool], int]


class Bring(Protocol):
    """Fetches what is not here into a cache, and shows its progress.

    Returns the exit status where the user has stopped it, else None. Raises what the source says, and DownloadFailed.
    """

    def __call__(self, wanted: Remote, cache: Path, hub: HubAccess) -> Awaitable[int | None]: ...


class Verb(NamedTuple):
    """``summary`` is one sentence; ``command`` imports the command, when it is used.

    ``alone`` is called where the program was started without a verb. It returns True if it had something to say then,
    which takes the place of the help. ``page`` is the document in docs/ that says more. ``removed`` is called with each
    model whose files were removed while no server runs. ``exits_with_1`` after every error, as llama-server does.
    ``presets`` reads the files of ``--models-preset``, ``brings`` downloads models for other verbs.
    """

    name: str
    group: Group
    summary: str
    command: Callable[[], click.Command]
    alone: Callable[[], bool] | None = None
    page: str = ""
    removed: Callable[[str], Awaitable[None]] | None = None
    exits_with_1: bool = False
    presets: ReadPresets | None = None
    brings: Bring | None = None


class VerbGround(NamedTuple):
    """All verbs of a program, and the parts of it that they ask for. Each function imports what it makes.

    ``engines`` are those of this machine, ``estimate`` knows what models take of memory, ``examiners`` are the parts of
    an examination, ``config_type`` is that of a configuration with the keys of all features.
    """

    verbs: Collection[Verb]
    engines: Callable[[], EngineSource]
    estimate: Callable[[], Estimate]
    examiners: Callable[[], Sequence[Examiner]]
    config_type: Callable[[], type[Config]]
