"""The translators of LM Studio's answers: any pieces give the same, and nothing makes them raise."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from gguf_files import write_model
from http_harness import request
from hypothesis import given
from hypothesis import strategies as st
from known_models import read_info
from msgspec import structs

from appliance.features.lm_studio.answering import ChatItems, Unchanged, WithStats
from appliance.features.lm_studio.rules import described, told_error
from appliance.traffic.record import Record

PATH = "/api/v1/chat"
TEXTS = st.lists(st.tuples(st.sampled_from(("content", "reasoning_content")), st.text(min_size=1)), max_size=6)


def chat_items() -> ChatItems:
    record = Record(request(PATH), PATH)
    record.model = "alpha"
    return ChatItems(PATH, record)


def stream(parts: list[tuple[str, str]]) -> bytes:
    records = [{"choices": [{"index": 0, "delta": {member: text}}]} for member, text in parts]
    records.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(parts)}})
    return b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in records) + b"data: [DONE]\n\n"


@given(TEXTS, st.data())
def test_any_pieces_of_a_stream_give_the_same_events(parts: list[tuple[str, str]], data: st.DataObject) -> None:
    content = stream(parts)
    cut = data.draw(st.integers(0, len(content)))
    whole, pieces = chat_items(), chat_items()
    told = whole.feed(content) + whole.end()
    assert pieces.feed(content[:cut]) + pieces.feed(content[cut:]) + pieces.end() == told
    events = [json.loads(record.partition("data: ")[2]) for record in told.decode().split("\n\n")[:-1]]
    assert [events[0]["type"], events[-1]["type"]] == ["chat.start", "chat.end"]
    result, kinds = events[-1]["result"], {"content": "message", "reasoning_content": "reasoning"}
    joined = {kind: "".join(text for member, text in parts if kinds[member] == kind) for kind in kinds.values()}
    for kind, text in joined.items():
        assert "".join(one["content"] for one in result["output"] if one["type"] == kind) == text
    said = " ".join(one["type"] for one in events if one["type"].partition(".")[0] in joined)
    assert re.fullmatch(r"(?:(\w+)\.start (?:\1\.delta )+\1\.end ?)*", said), "items follow each other"
    assert result["stats"]["reasoning_output_tokens"] <= result["stats"]["total_output_tokens"] == len(parts)
    with_stats = WithStats("/api/v0/chat/completions", dict)
    assert with_stats.feed(content).count(b'"stats"') == 1


@given(
    st.one_of(
        st.binary(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
    )
)
def test_nothing_makes_them_raise(content: bytes) -> None:
    for path in (PATH, "/api/v0/models/x"):
        assert json.loads(json.dumps(told_error(path, 500, content)))["message"]
    for translate in (chat_items(), WithStats(PATH, dict), Unchanged(PATH)):
        status, body = translate.whole(content)
        assert status in (200, 502)
        assert status == 200 or json.loads(body)["error"]["type"] == "internal_error"
        translate.feed(b"data: " + content.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n\n")
        translate.end()


@pytest.mark.parametrize(
    ("parameters", "shown"),
    [(0, None), (2_400_000, "2.4M"), (270_000_000, "270M"), (8_030_000_000, "8B"), (1_026_000_000_000, "1026B")],
)
def test_numbers_of_parameters(tmp_path: Path, parameters: int, shown: str | None) -> None:
    info = read_info(write_model(tmp_path / "x.gguf"))
    found = described("x", None, structs.replace(info, parameters=parameters), loaded=False)
    assert found.v1["params_string"] == shown


def test_an_answer_that_is_an_error_is_no_empty_chat() -> None:
    status, body = chat_items().whole(b'{"error":{"message":"it broke","code":500,"type":"server_error"}}')
    assert (status, json.loads(body)["error"]["message"]) == (502, "it broke")
