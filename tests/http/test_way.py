"""The way of a plain stream is short, and it is the one that ARCHITECTURE.md tells."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
import trio
from http_harness import CHAT, Appliance, OpenServer, chat
from trio.lowlevel import Task
from waiting import until

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
