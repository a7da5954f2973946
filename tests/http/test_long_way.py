"""The longest way of a request takes every hook, in the order that ARCHITECTURE.md tells."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import FrameType

from features.pool.test_pool_way import loaded, pooled
from http_harness import OpenServer, open_appliance
from tool_files import LOOKS, QUESTION, SAYS, Files

from appliance.features.tools.box import OpenToolbox

ARCHITECTURE = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text("utf-8")
ID = "a-kept-one"


def told() -> list[list[str]]:
    """The functions of each step that the document lists."""
    steps = ARCHITECTURE.partition("takes them all")[2].partition("## A feature")[0]
    return [re.findall(r"`(\w+(?:\.\w+)?)`", line) for line in re.findall(r"^\d+\. (.*)", steps, re.MULTILINE)]


async def test_a_held_chat_of_an_ollama_client_with_tools_in_a_pool(
    open_server: OpenServer, fake_llama_server: tuple[str, ...], fake_model: Path
):
    scripted, files = (*fake_llama_server, "--script", json.dumps([LOOKS, SAYS])), Files()
    first: dict[str, int] = {}

    def heard(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/appliance/" in frame.f_code.co_filename:
            first.setdefault(frame.f_code.co_qualname, len(first))

    body = {"model": "alpha", "messages": QUESTION, "stream": True, "appliance": {"tools": ["read_file"]}}
    async with (
        open_server(tools=OpenToolbox([files])) as entry,
        open_appliance(scripted, fake_model) as other,
        pooled(entry, b2=other),
    ):
        await loaded(entry, other, "b2")
        sys.setprofile(heard)
        try:
            answer = await entry.good("POST", "/api/chat", body, headers=[("X-Conversation-Id", ID)])
        finally:
            sys.setprofile(None)
        again = await entry.good("GET", f"/v1/stream/{ID}")
        [row] = await entry.rows()
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert "".join(line["message"]["content"] for line in lines).endswith("Milk and eggs.")
    assert lines[-1]["done"]
    assert files.used == [("read_file", {"path": "notes"})]
    assert again.body == answer.body, "it is held as the client got it"
    assert row["metadata"]["box"] == "b2"

    steps = told()
    assert len(steps) == 12
    for step in steps:
        for name in step:
            assert any(known == name or known.endswith(f".{name}") for known in first), f"{name} was not called"
    order = [first[step[0]] for step in steps[:10]]
    assert order == sorted(order), "the steps begin in this order"
