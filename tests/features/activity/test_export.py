"""core.records.export: other programs read back what was written."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from appliance.core.records.activity import Row, Tokens
from appliance.features.activity.rules import COLUMNS, FORMULA, head, lines

texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(",\"\r\n\t =;'"), max_size=20)
rows = st.builds(
    Row,
    id=st.integers(1, 9),
    timestamp=st.datetimes(timezones=st.just(UTC)).map(lambda time: time.replace(microsecond=0)),
    model=texts,
    req_path=texts,
    resp_status_code=st.sampled_from((200, 404)),
    tokens=st.builds(Tokens, input_tokens=st.integers(-1, 99), prompt_per_second=st.floats(-1, 1e300)),
    duration_ms=st.integers(0, 99),
    error_msg=st.just(UNSET) | texts,
    metadata=st.just(UNSET) | st.dictionaries(texts, texts),
    conversation=texts,
)


@given(st.lists(rows, max_size=4))
def test_every_row_is_read_back(written: list[Row]) -> None:
    decoder = msgspec.json.Decoder(Row)
    assert [decoder.decode(line) for line in lines(written, "jsonl").splitlines()] == written
    text = (head("csv") + lines(written, "csv")).decode()
    again = io.StringIO(newline="")
    csv.writer(again).writerows(csv.reader(io.StringIO(text, newline="")))
    assert again.getvalue() == text, "cells are in quotes that need none, or the other way round"
    found = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(found) == len(written)
    for cells, row in zip(found, written, strict=True):
        assert tuple(cells) == COLUMNS
        assert int(cells["id"]) == row.id
        assert datetime.fromisoformat(cells["time"]) == row.timestamp
        assert int(cells["prompt"]) == row.tokens.input_tokens
        assert float(cells["prompt_per_second"]) == row.tokens.prompt_per_second
        for name, said in (("model", row.model), ("path", row.req_path), ("error", row.error_msg or "")):
            assert not cells[name].startswith(FORMULA), "a spreadsheet would calculate it"
            assert cells[name].removeprefix("'") == said or cells[name] == said
