"""The way of a plain stream is short, and it is the one that ARCHITECTURE.md tells."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import trio
from http_harness import CHAT, OpenServer, chat
from trio.lowlevel import Task
from waiting import until

ARCHITECTURE = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text("utf-8")
MOST = 12
"""Frames of ours in which a waiting stream may stand."""


def told() -> list[str]:
    """The functions that the document lists, in order."""
    return re.findall(r"^\d+\. `([\w.]+)`", ARCHITECTURE, re.MULTILINE)


def tasks(task: Task) -> Iterator[Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from tasks(child)


def standing() -> list[list[str]]:
    """Where the tasks of connections that wait for a stream stand, each from the outside in, Trio left out."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    stacks: list[list[str]] = []
    for task in tasks(root):
        frames = [frame for frame, _ in task.iter_await_frames()]
        names = [frame.f_code.co_qualname for frame in frames if "/trio/" not in frame.f_code.co_filename]
        if names and names[0] == "Clients._serve_one" and "Relay.run" in names:
            stacks.append(names)
    return stacks


async def test_a_waiting_stream_stands_where_the_document_says(open_server: OpenServer):
    async with open_server() as server, server.connect() as client:
        await client.send("POST", CHAT, json.dumps(chat(stream=True, stall_after_tokens=2)).encode())
        await client.head()
        await client.data()
        assert await until(standing, within=5) == [told()]
        assert len(told()) <= MOST


async def test_a_plain_request_opens_no_nursery(open_server: OpenServer):
    async with open_server() as server, server.connect() as client:
        await client.send("POST", CHAT, json.dumps(chat(stream=True, stall_after_tokens=2)).encode())
        await client.head()
        await client.data()
        root = trio.lowlevel.current_root_task()
        assert root is not None
        serving = [task for task in tasks(root) if task.name.endswith("Clients._serve_one")]
        assert len(serving) == 1
        assert serving[0].child_nurseries == []
