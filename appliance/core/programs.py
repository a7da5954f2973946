"""The versions of the program on one machine: how they are named, and which one a start leads to.

The ids of versions are ``programs/<version>-<digest12>``: one line of `core.versions`, which has the journal of an
upgrade and the way back. The rest is here.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from appliance.core.versions import BuildFailed, VersionState

NAME = "llama-appliance"
LINE = "programs"
SERVES = ("serve", "llama-server", "llama")
"""The verbs of a server: only their failures count against a version."""


class TrialRun(Struct, frozen=True, kw_only=True):
    """A server of a version on trial, noted before it starts and forgotten when it ends in good order.

    ``boot`` names the start of the machine: a run that a power cut ended has not failed. ``at`` and ``until``: Unix
    times of its start, and of the end of its version's trial.
    """

    program: str
    pid: int
    boot: str
    at: float
    until: float


def program_id(version: str, digest: str) -> str:
    """Return the id of a payload with this version and this sha256 of its list."""
    return f"{LINE}/{version}-{digest[:12]}"


def name_of(program: str) -> str:
    """Return the name of the version's folder, which is also what people call it."""
    return program.removeprefix(f"{LINE}/")


def unpacked_link(name: str) -> str:
    """Return the name of the link to the folder that the user unpacked, where a copy of that version has its place.

    No search for versions finds it; a start from the folder leads on by it.
    """
    return f".{name}.unpacked"


def chosen(state: VersionState, here: Collection[str]) -> str | None:
    """Return the version that a start leads to: the current one, or the newest before it that is still there."""
    line = state.line(LINE)
    known = (line.current, *line.previous) if line is not None else ()
    return next((program for program in known if program in here), None)


def failure_of(run: TrialRun, boot: str) -> BuildFailed | None:
    """Return the event that a run's end without a word is; None if the machine itself went down."""
    if run.boot != boot:
        return None
    return BuildFailed(build=run.program, why="it crashed, or was killed", at=run.at)
