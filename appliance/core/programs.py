"""The versions of the program on one machine: which payload may follow, and which version a start leads to.

The ids of versions are ``programs/<version>-<digest12>``: one line of `core.engines.state`. So an upgrade of the
program is the update of an engine, with the same journal, the same reducer and the same way back. The rest is here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Sequence

from msgspec import Struct

from appliance.core.engines.builds import numbers_of
from appliance.core.engines.events import SeatFailed
from appliance.core.engines.state import TRIAL, EngineState
from appliance.core.payload import LIST, SIGNATURE, Payload

NAME = "llama-appliance"
LINE = "programs"
SERVES = ("serve", "llama-server", "llama")
"""The verbs of a server: only their failures count against a version."""
STARTER = "starter"
WORDS_OF_PLACE = (
    "--listen", "--also-listen", "--ollama-port", "--port", "--ready-file", "--parent-pid", "--log-file", "--trial",
)  # fmt: skip
"""Options of a running server that a second one beside it cannot have."""


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


def misplaced(payload: Payload) -> str:
    """Return the first path of the list that is not a plain one inside the folder; empty: all are."""
    seen: set[str] = set()
    for file in payload.files:
        target = posixpath.join(posixpath.dirname(file.path), file.link) if file.link else file.path
        for path in (file.path, target):
            odd = "\\" in path or not path.isprintable() or posixpath.isabs(path)
            if odd or not path or posixpath.normpath(path).startswith("..") or posixpath.normpath(path) == ".":
                return file.path or "(an empty path)"
        if file.path != posixpath.normpath(file.path) or file.path in (*seen, LIST, SIGNATURE):
            return file.path
        seen.add(file.path)
    return ""


def refusal(new: Payload, *, platform: str, own: str, program: str, state: EngineState, force: bool) -> str:
    """Return why this payload cannot follow the running program, with the remedy; empty: it can.

    ``own`` is the version of the running program, ``program`` the id of the new one.
    """
    if new.name != NAME:
        return f"it is the payload of '{new.name}', not of {NAME}"
    if new.platform != platform:
        return f"it is for {new.platform}, and this machine is {platform}; take the payload for {platform}"
    if path := misplaced(new):
        return f"its list names {path!r}, which is not a plain path inside it; fetch it again from a source you trust"
    if not any(file.path == NAME and file.executable for file in new.files):
        return f"it has no program '{NAME}'"
    if not force and (why := state.withdrawn.get(program)):
        return f"it was tried before and given up ({why}); --force tries it again"
    if not force and numbers_of(new.version) < numbers_of(own):
        return f"it is version {new.version}, and {own} runs here; --force takes the older one"
    return ""


def matching(word: str, programs: Sequence[str]) -> list[str]:
    """Return the versions that a word means: a whole name, or a beginning of one."""
    names = [program for program in programs if name_of(program) == word]
    return names or [program for program in programs if name_of(program).startswith(word)]


def words_for_trial(words: Sequence[str]) -> list[str]:
    """Return a server's words without its place: options that its neighbour cannot share, and llama-server's flags."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            kept += [word, *rest]
        elif word in WORDS_OF_PLACE:
            next(rest, None)
        elif not word.startswith(tuple(f"{option}=" for option in WORDS_OF_PLACE)):
            kept.append(word)
    return kept


def chosen(state: EngineState, here: Collection[str]) -> str | None:
    """Return the version that a start leads to: the current one, or the newest before it that is still there."""
    line = state.line(LINE)
    known = (line.current, *line.previous) if line is not None else ()
    return next((program for program in known if program in here), None)


def trial_end(state: EngineState, program: str, now: float) -> float | None:
    """Return the Unix time at which the version's first hour ends; None if it has ended, or nothing was before it."""
    line = state.line(LINE)
    if line is None or line.current != program or not line.previous or not 0 <= now - line.switched_at < TRIAL:
        return None
    return line.switched_at + TRIAL


def failure_of(run: TrialRun, boot: str) -> SeatFailed | None:
    """Return the event that a run's end without a word is; None if the machine itself went down."""
    if run.boot != boot:
        return None
    return SeatFailed(
        build=run.program, seat="", digest="", model="", why="it crashed, or was killed", at=run.at, others=False
    )


def model_to_ask(names: Sequence[str]) -> str | None:
    """Return the model that a version on trial is asked with: the starter model, else the first."""
    return STARTER if STARTER in names else next(iter(names), None)
