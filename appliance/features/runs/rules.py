"""The list of agent runs: what a run was asked, in short, and which runs a client wants to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar, get_args

import msgspec
from msgspec import Raw, Struct

from appliance.core.lenient_json import decoded
from appliance.core.parameters import read_whole, shown
from appliance.core.records.activity import parse_models
from appliance.core.turns.messages import RunState
from appliance.errors import BadRequest

MAX_PROMPT = 300  # characters of a prompt in lists, and in the file that keeps runs
STATES: tuple[RunState, ...] = get_args(RunState)


class RunQuery(Struct, frozen=True):
    """Which runs are wanted: of these models, in these states, older than the run ``before``, the newest ``limit``."""

    models: tuple[str, ...] = ()
    states: tuple[RunState, ...] = ()
    before: str = ""
    limit: int | None = None


class ListedRun(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def state(self) -> RunState: ...


Run = TypeVar("Run", bound=ListedRun)


class _Part(Struct):
    type: str = ""
    text: str = ""


class _Message(Struct):
    role: str
    content: str | list[_Part] | None = None


_decoder = msgspec.json.Decoder(_Message)


def parse_run_query(parameters: Mapping[str, Sequence[str]]) -> RunQuery:
    """Read the parameters of GET /api/runs; ``model`` and ``state`` may be repeated. Raises BadRequest."""
    first = {name: text for name, values in parameters.items() if values and (text := values[0].strip())}
    asked = [text for given in parameters.get("state", ()) if (text := given.strip())]
    for text in asked:
        if text not in STATES:
            raise BadRequest(f"state must be one of {', '.join(STATES)}, not {shown(text)}", param="state")
    states: tuple[RunState, ...] = tuple(state for state in STATES if asked.count(state))
    limit = read_whole(first["limit"], "limit", 1) if "limit" in first else None
    return RunQuery(parse_models(parameters), states, first.get("before", ""), limit)


def select_runs(query: RunQuery, runs: Sequence[Run]) -> list[Run]:
    """Return the runs that are wanted of ``runs``, which are newest first. Raises BadRequest if ``before`` is gone."""
    began = 0
    if query.before:
        began = next((at + 1 for at, run in enumerate(runs) if run.id == query.before), 0)
        if not began:
            told = f"before: there is no run {shown(query.before)} any more; read the list anew"
            raise BadRequest(told, param="before")
    models = [run for run in runs[began:] if not query.models or run.model in query.models]
    return [run for run in models if not query.states or run.state in query.states][: query.limit]


def prompt_of(messages: Sequence[Raw]) -> str:
    """Return the beginning of the user's last message, "" if that has no text."""
    read = (decoded(_decoder, message) for message in reversed(messages))
    asked = next((message for message in read if message is not None and message.role == "user"), None)
    said = asked.content if asked is not None else None
    if isinstance(said, list):
        said = next((part.text for part in said if part.type == "text"), "")
    return (said or "").strip()[:MAX_PROMPT]
