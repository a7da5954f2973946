"""The activity log's queries and arithmetic: the parameters of a page, and histograms of speeds.

Names, bounds and formulas are those of llama-swap 0bdb3720. ``store.activity`` keeps the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol, TypeVar, get_args

import msgspec
from msgspec import Struct

from appliance.core.parameters import read_time, read_whole, shown
from appliance.features.activity.rules import Format
from appliance.errors import BadRequest
from appliance.wire import Histogram, Row

DEFAULT_LIMIT = 25
MAX_LIMIT = 999
CLIENT_LEFT = 499
"""The status of a request whose client did not wait for the answer; nginx's number for it."""

MIN_BINS = 5
MAX_BINS = 20

SortKey = Literal[
    "id",
    "time",
    "model",
    "req_path",
    "resp_status_code",
    "resp_content_type",
    "cached",
    "prompt",
    "generated",
    "drafted",
    "prompt_speed",
    "gen_speed",
    "duration",
]
SORT_KEYS: tuple[SortKey, ...] = get_args(SortKey)

Order = Literal["asc", "desc"]

_Word = TypeVar("_Word", bound=str)

_SWITCH = ("1", "true", "0", "false")
_ORDERS: tuple[Order, ...] = get_args(Order)


class EndedRequests(Struct, frozen=True, kw_only=True):
    """The requests of a model that ended lately; those whose client left count in none."""

    model: str
    ended: int
    failed: int
    """Requests that the server or the engine failed."""
    refused: int
    """Requests in which the server found a mistake of the client."""
    last: str = ""
    """The newest error among both."""


class Query(Struct, frozen=True, kw_only=True):
    """The query for one page of rows. Bounds are inclusive, None is unbounded; no models means all."""

    models: tuple[str, ...] = ()
    start: datetime | None = None
    end: datetime | None = None
    min_id: int | None = None
    max_id: int | None = None
    failed: bool = False
    """Only requests that failed, or whose answer broke off."""
    search: str = ""
    """Only rows with this text in model, path, error or metadata, in any case."""
    limit: int = DEFAULT_LIMIT
    page: int = 1
    sort: SortKey = "id"
    order: Order = "desc"


def parse_query(parameters: Mapping[str, Sequence[str]]) -> Query:
    """Read the parameters of GET /api/metrics/activity. Raises BadRequest, which names the parameter.

    ``failed`` and ``search`` are additions to llama-swap's.

    Unknown parameters are ignored, an empty one is as good as none, and of a repeated one the first counts; only
    ``model`` may be repeated.
    """
    first = {name: text for name, values in parameters.items() if values and (text := values[0].strip())}

    def whole(name: str, least: int, most: int | None = None) -> int | None:
        return read_whole(first[name], name, least, most) if name in first else None

    def time(name: str) -> datetime | None:
        return read_time(first[name], name) if name in first else None

    def word(name: str, words: Sequence[_Word], default: _Word) -> _Word:
        found = [one for one in words if one == first.get(name, default)]
        if not found:
            raise BadRequest(f"{name} must be one of {', '.join(words)}, not {shown(first[name])}", param=name)
        return found[0]

    return Query(
        models=parse_models(parameters),
        start=time("start"),
        end=time("end"),
        min_id=whole("min_id", 0) or None,
        max_id=whole("max_id", 0) or None,
        failed=word("failed", _SWITCH, "0") in _SWITCH[:2],
        search=first.get("search", ""),
        limit=whole("limit", 1, MAX_LIMIT) or DEFAULT_LIMIT,
        page=whole("page", 1) or 1,
        sort=word("sort", SORT_KEYS, "id"),
        order=word("order", _ORDERS, "desc"),
    )


def parse_format(parameters: Mapping[str, Sequence[str]]) -> Format:
    """Return the ``format`` parameter of an export. Raises BadRequest."""
    found = [kind for kind in get_args(Format) if kind == next(iter(parameters.get("format", ())), "jsonl")]
    if not found:
        raise BadRequest(f"format must be one of {', '.join(get_args(Format))}", param="format")
    return found[0]


def parse_models(parameters: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the ``model`` parameters of a page or of the statistics; blank ones are ignored."""
    return tuple(model for text in parameters.get("model", ()) if (model := text.strip()))


def with_captures(rows: Iterable[Row], has: Callable[[int], bool]) -> tuple[Row, ...]:
    """Return rows of the table with the current ``has_capture``: captures come and go while rows stay."""
    return tuple(msgspec.structs.replace(row, has_capture=True) if has(row.id) else row for row in rows)


def pages(total: int, limit: int) -> int:
    return -(-total // limit)


class SpeedSeries(Protocol):
    """A sorted series of positive speeds, wherever it is stored; it is never read as a whole."""

    @property
    def count(self) -> int: ...

    def at(self, ranks: Sequence[int]) -> Sequence[float]:
        """Return the values at these places in ascending order, counted from 0."""
        ...

    def binned(self, low: float, width: float, bins: int) -> Sequence[int]:
        """Count the values in each bin: floor((value - low) / width), and at most the last bin."""
        ...


def histogram(speeds: SpeedSeries) -> Histogram | None:
    """Compute bins by Sturges' rule, and percentiles by linear interpolation between ranks; None without values."""
    count = speeds.count
    if count == 0:
        return None
    places = [percent / 100 * (count - 1) for percent in (50, 95, 99)]
    low, high, *values = speeds.at([0, count - 1, *(rank for at in places for rank in (math.floor(at), math.ceil(at)))])
    p50, p95, p99 = map(_between, places, values[::2], values[1::2])
    width, bins = 0.0, [count]
    if low != high:
        number = min(max(math.ceil(math.log2(count)) + 1, MIN_BINS), MAX_BINS)
        width = (high - low) / number
        bins = list(speeds.binned(low, width, number))
    return Histogram(bins=bins, min=low, max=high, bin_size=width, p50=p50, p95=p95, p99=p99)


def _between(place: float, below: float, above: float) -> float:
    return below + (place - math.floor(place)) * (above - below)
