"""The ways of requests are those that ARCHITECTURE.md tells: a plain one is short, the longest takes every hook."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
import trio
from features.pool.test_pool_way import loaded, pooled
from http_harness import CHAT, Appliance, OpenServer, chat, open_appliance
from tool_files import LOOKS, QUESTION, SAYS, Files
from trio.lowlevel import Task
from waiting import until

from appliance.features.tools.box import OpenToolbox
from appliance.platform.poller import Poller

ARCHITECTURE = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text("utf-8")
MOST = 9
"""Frames of ours in which a waiting stream may stand."""


def told() -> tuple[list[str], list[str]]:
    """The functions that the document lists, in order: where a task waits, and without a task."""
    waiting, _, rest = ARCHITECTURE.partition("needs no task, and neither does its connection")
    untasked = rest.partition("Features stand in the way")[0]
    functions = re.compile(r"^\d+\. ((?:`[\w.]+`(?:, )?)+)", re.MULTILINE)
    first, second = (
        [name for names in functions.findall(part) for name in re.findall(r"[\w.]+", names)]
        for part in (waiting, untasked)
    )
    return first, second


def tasks(task: Task) -> Iterator[Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from tasks(child)


def standing() -> list[list[str]]:
    """Where the tasks of connections that wait for a stream stand, each from the outside in, Trio left out."""
    root = trio.lowlevel.current_root_task()
    stacks: list[list[str]] = []
    for task in tasks(root):
        frames = [frame for frame, _ in task.iter_await_frames()]
        names = [frame.f_code.co_qualname for frame in frames if "/trio/" not in frame.f_code.co_filename]
        if names and names[0] == "Connection._run" and "relay" in names:
            stacks.append(names)
    return stacks


of_our_poller = pytest.mark.skipif(not Poller.listens, reason="the program has no poller of its own on this system")


@of_our_poller
async def test_a_waiting_stream_stands_where_the_document_says(server: Appliance):
    """And it has opened no nursery."""
    async with server.begun(chat(stream=True, stall_after_tokens=2)) as client:
        await client.data()
        assert await until(standing) == [told()[0]]
        assert len(told()[0]) <= MOST
        root = trio.lowlevel.current_root_task()
        [serving] = [task for task in tasks(root) if task.name.endswith("Connection._run")]
        assert serving.child_nurseries == []


@of_our_poller
async def test_a_stream_on_the_fast_path_goes_through_the_functions_that_the_document_lists(server: Appliance):
    calls: set[tuple[str, str]] = set()

    def heard(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_back is not None:
            calls.add((frame.f_back.f_code.co_qualname, frame.f_code.co_qualname))

    async with server.connect() as client:
        for _ in range(2):
            assert (await server.ask("POST", CHAT, chat(stream=True))).status == 200
        body = json.dumps(chat(stream=True, token_delay=0.01)).encode()
        sys.setprofile(heard)
        try:
            await client.send("POST", CHAT, body)
            assert (await client.answer()).status == 200
        finally:
            sys.setprofile(None)
    untasked = told()[1]
    for at, name in enumerate(untasked[1:], 1):
        assert any((above, name) in calls for above in untasked[:at]), f"nothing above {name} has called it"


async def test_the_log_says_what_a_name_means_and_that_a_process_is_used_again(
    open_server: OpenServer, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level("DEBUG", "appliance"):
        async with open_server() as server:
            for _ in range(2):
                assert (await server.ask("POST", "/completion", {"model": "al", "prompt": "x"})).status == 200
    said = [record.getMessage() for record in caplog.records]
    assert said.count("the name 'al' means alpha") == 1, "and not with every request"
    assert sum("model 'alpha' is used again as it runs, on port " in line for line in said) == 1


ID = "a-kept-one"


def told_steps() -> list[list[str]]:
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

    steps = told_steps()
    assert len(steps) == 12
    for step in steps:
        for name in step:
            assert any(known == name or known.endswith(f".{name}") for known in first), f"{name} was not called"
    order = [first[step[0]] for step in steps[:10]]
    assert order == sorted(order), "the steps begin in this order"
