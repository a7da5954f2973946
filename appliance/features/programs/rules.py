"""Which payload may follow the running program, which version a word means, and how a new one is tried."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from appliance.core.payload import LIST, SIGNATURE, Payload
from appliance.core.programs import NAME, name_of
from appliance.core.versions import VersionState, numbers_of

STARTER = "starter"
WORDS_OF_PLACE = (
    "--listen", "--also-listen", "--ollama-port", "--port", "--ready-file", "--parent-pid", "--log-file", "--trial",
)  # fmt: skip
"""Options of a running server that a second one beside it cannot have."""


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


def refusal(new: Payload, *, platform: str, own: str, program: str, state: VersionState, force: bool) -> str:
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


def model_to_ask(names: Sequence[str]) -> str | None:
    """Return the model that a version on trial is asked with: the starter model, else the first."""
    return STARTER if STARTER in names else next(iter(names), None)
