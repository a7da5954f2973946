"""The activity log: its rows, which of them are wanted, and histograms of speeds.

Names, bounds and formulas are those of llama-swap 0bdb3720. ``store.activity`` keeps the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

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


class Tokens(Struct, frozen=True, kw_only=True):
    """The cost of one answer. -1 is unknown; a failed request has zeros (``NO_TOKENS``)."""

    cache_tokens: int = -1
    draft_tokens: int = -1
    draft_acc_tokens: int = -1
    input_tokens: int = -1
    output_tokens: int = -1
    prompt_per_second: float = -1.0
    tokens_per_second: float = -1.0


NO_TOKENS = Tokens(**dict.fromkeys(Tokens.__struct_fields__, 0))


class Row(Struct, frozen=True, kw_only=True):
    """One request on a model route, written when it has ended. The log assigns ``id``."""

    id: int = 0
    timestamp: datetime
    """When the request ended, with a time zone; kept to the second."""
    model: str
    """The real id, not the alias that the client used; for an unknown model, the requested name."""
    req_path: str
    resp_content_type: str = ""
    resp_status_code: int
    tokens: Tokens = NO_TOKENS
    duration_ms: int
    has_capture: bool = False
    error_msg: str | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    first_token_ms: int = -1
    """From the request to the first token of its answer, with the wait for the model; -1 if unknown."""
    client: str = ""
    """Its program and its address, in short; as of requests under way."""
    build: str = ""
    """The id of the engine that answered; empty where this program has not chosen it."""
    conversation: str = ""
    """The id of the conversation that it belongs to, where it says so."""
    cache_miss: str = ""
    """The reason for which its prompt was mostly read again: a `MissKind`; empty where it was not."""
    again_tokens: int = 0
    """Tokens read again that the conversation's request before had as well."""


class ActivityPage(Struct, frozen=True, kw_only=True):
    data: tuple[Row, ...]
    page: int
    limit: int
    total: int
    total_pages: int


class Histogram(Struct, frozen=True, kw_only=True, rename={"bin_size": "binSize"}):
    """The distribution of speeds, in tokens per second: bins of equal width from ``min`` on."""

    bins: list[int]
    min: float
    max: float
    bin_size: float = 0.0
    p50: float
    p95: float
    p99: float


class Stats(Struct, frozen=True, kw_only=True):
    """Totals over the rows kept. Unknown numbers count as nothing; a histogram without a known speed is null."""

    total_requests: int
    total_input_tokens: int
    total_output_tokens: int
    total_cache_tokens: int
    prompt_histogram: Histogram | None
    gen_histogram: Histogram | None


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
