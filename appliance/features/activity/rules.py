"""The parameters of the activity log's routes, and its rows for other programs: lines of JSON, or of CSV (RFC 4180)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Literal, TypeVar, get_args

import msgspec

from appliance.core.parameters import read_time, read_whole, shown
from appliance.core.records.activity import DEFAULT_LIMIT, MAX_LIMIT, SORT_KEYS, Order, Query, Row, parse_models
from appliance.errors import BadRequest

Format = Literal["jsonl", "csv"]
COLUMNS = (
    "id", "time", "model", "path", "status", "content_type", "cached", "prompt", "generated", "drafted", "accepted",
    "prompt_per_second", "tokens_per_second", "duration_ms", "error", "metadata",
    "first_token_ms", "client", "build", "conversation", "cache_miss", "again_tokens",
)  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings by which a spreadsheet takes a text for a formula; a client chooses a model's name."""
_quoted = re.compile('[,"\r\n]').search
_json = msgspec.json.Encoder()

_Word = TypeVar("_Word", bound=str)

_SWITCH = ("1", "true", "0", "false")
_ORDERS: tuple[Order, ...] = get_args(Order)


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


def head(kind: Format) -> bytes:
    """Return what comes before all rows."""
    return f"{','.join(COLUMNS)}\r\n".encode() if kind == "csv" else b""


def lines(rows: Sequence[Row], kind: Format) -> bytes:
    """Return the rows, one in a line."""
    if kind == "jsonl":
        return b"".join(_json.encode(row) + b"\n" for row in rows)
    return "".join(map(_line, rows)).encode()


def _line(row: Row) -> str:
    """Python's ``csv`` looks at each character of each number, and Python itself takes five times as long to write a
    time or a fraction as JSON does, whose words for them are good in CSV too.
    """
    cost = row.tokens
    time = _json.encode(row.timestamp)[1:-1].decode().replace("Z", "+00:00")
    speeds = _json.encode((cost.prompt_per_second, cost.tokens_per_second))[1:-1].decode()
    metadata = _in_quotes(_json.encode(row.metadata).decode()) if row.metadata else ""
    return (
        f"{row.id},{time},{_cell(row.model)},{_cell(row.req_path)},{row.resp_status_code},"
        f"{_cell(row.resp_content_type)},{cost.cache_tokens},{cost.input_tokens},{cost.output_tokens},"
        f"{cost.draft_tokens},{cost.draft_acc_tokens},{speeds},"
        f"{row.duration_ms},{_cell(row.error_msg or '')},{metadata},{row.first_token_ms},{_cell(row.client)},"
        f"{_cell(row.build)},{_cell(row.conversation)},{_cell(row.cache_miss)},{row.again_tokens}\r\n"
    )


@lru_cache(128)
def _cell(text: str) -> str:
    """Rows beside each other have the same models, paths and clients."""
    text = f"'{text}" if text.startswith(FORMULA) else text
    return _in_quotes(text) if _quoted(text) else text


def _in_quotes(text: str) -> str:
    return '"{}"'.format(text.replace('"', '""'))
