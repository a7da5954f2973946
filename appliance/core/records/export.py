"""The rows of the activity log for other programs: lines of JSON, or of CSV (RFC 4180)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from appliance.wire import Row

Format = Literal["jsonl", "csv"]
COLUMNS = (
    "id", "time", "model", "path", "status", "content_type", "cached", "prompt", "generated", "drafted", "accepted",
    "prompt_per_second", "tokens_per_second", "duration_ms", "error", "metadata",
    "first_token_ms", "client", "build", "conversation", "cache_miss", "again_tokens",
)  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings by which a spreadsheet takes a text for a formula; a client chooses a model's name."""
_json = msgspec.json.Encoder()


def head(kind: Format) -> bytes:
    """Return what comes before all rows."""
    return _csv((COLUMNS,)) if kind == "csv" else b""


def lines(rows: Sequence[Row], kind: Format) -> bytes:
    """Return the rows, one in a line."""
    if kind == "jsonl":
        return b"".join(_json.encode(row) + b"\n" for row in rows)
    return _csv(map(_cells, rows))


def _cells(row: Row) -> tuple[object, ...]:
    cost = row.tokens
    return (
        row.id,
        row.timestamp.isoformat(),
        _text(row.model),
        _text(row.req_path),
        row.resp_status_code,
        _text(row.resp_content_type),
        cost.cache_tokens,
        cost.input_tokens,
        cost.output_tokens,
        cost.draft_tokens,
        cost.draft_acc_tokens,
        cost.prompt_per_second,
        cost.tokens_per_second,
        row.duration_ms,
        _text(row.error_msg or ""),
        _json.encode(row.metadata).decode() if row.metadata else "",
        row.first_token_ms,
        _text(row.client),
        _text(row.build),
        _text(row.conversation),
        row.cache_miss,
        row.again_tokens,
    )


def _text(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text


def _csv(rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()
