"""The rows of the activity log for other programs: lines of JSON, or of CSV (RFC 4180)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
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
_quoted = re.compile('[,"\r\n]').search
_json = msgspec.json.Encoder()


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
