"""The parameters of ``GET /api/history``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from appliance.core.parameters import read_time, read_whole, shown
from appliance.core.records.activity import parse_models
from appliance.core.records.history import DEFAULT_LIMIT, KINDS, MAX_LIMIT, HistoryQuery, Kind
from appliance.errors import BadRequest


def parse_history_query(parameters: Mapping[str, Sequence[str]]) -> HistoryQuery:
    """Read the parameters of GET /api/history. Raises BadRequest, which names the parameter.

    ``model`` and ``kind`` may be repeated. Unknown parameters are ignored, as are blank ones.
    """
    first = {name: text for name, values in parameters.items() if values and (text := values[0].strip())}

    def whole(name: str, least: int, most: int | None = None) -> int | None:
        return read_whole(first[name], name, least, most) if name in first else None

    return HistoryQuery(
        models=parse_models(parameters),
        kinds=tuple(_kind(text) for given in parameters.get("kind", ()) if (text := given.strip())),
        after=whole("after", 0),
        before=whole("before", 1),
        start=read_time(first["start"], "start") if "start" in first else None,
        limit=whole("limit", 1, MAX_LIMIT) or DEFAULT_LIMIT,
    )


def _kind(text: str) -> Kind:
    found: list[Kind] = [kind for kind in KINDS if kind == text]
    if not found:
        raise BadRequest(f"kind must be one of {', '.join(KINDS)}, not {shown(text)}", param="kind")
    return found[0]
