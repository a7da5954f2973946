"""The activity log as its readers see it: field names and meanings are those of llama-swap 0bdb3720."""

from __future__ import annotations

from datetime import datetime

from msgspec import UNSET, Struct, UnsetType


class Tokens(Struct, frozen=True, kw_only=True):
    """The cost of one answer. -1 is unknown; a failed request has zeros (``NO_TOKENS``)."""

    cache_tokens: int = -1
    draft_tokens: int = -1
    draft_acc_tokens: int = -1
    input_tokens: int = -1
    output_tokens: int = -1
    prompt_per_second: float = -1.0
    tokens_per_second: float = -1.0


NO_TOKENS = Tokens(
    cache_tokens=0,
    draft_tokens=0,
    draft_acc_tokens=0,
    input_tokens=0,
    output_tokens=0,
    prompt_per_second=0.0,
    tokens_per_second=0.0,
)


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


class Page(Struct, frozen=True, kw_only=True):
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


class Capture(Struct, frozen=True, kw_only=True):
    """One exchange kept for its reader. In JSON bodies are base64 and parts that are not kept are null."""

    id: int
    req_path: str
    req_headers: dict[str, str]
    req_body: bytes | None = None
    resp_headers: dict[str, str] | None = None
    resp_body: bytes | None = None
