"""Requests answered by other servers, over the program's own connections."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http_harness import Answer, Appliance, OpenServer
from peers_harness import StartServer
from waiting import until

from appliance.core.records.activity import Query

CLIENTS_OWN = [
    ("Authorization", "Bearer clients-secret"),
    ("x-api-key", "clients-secret"),
    ("Cookie", "clients-secret"),
    ("X-Forwarded-For", "10.0.0.1"),
]


class Relay:
    """A program that has its models at peers, each of which may have ``m``."""

    def __init__(self, server: Appliance) -> None:
        self.peers, self.url, self._server = server.owners.peers, server.url, server

    async def answer(self, headers: Sequence[tuple[str, str]] = ()) -> Answer:
        return await self._server.ask("POST", "/v1/completions", {"model": "m", "prompt": "x"}, headers)

    async def ask(self, headers: Sequence[tuple[str, str]] = ()) -> tuple[int, Any]:
        answer = await self.answer(headers)
        return answer.status, answer.json

    async def answered(self) -> list[str]:
        """The peers whose answers began, in order."""
        rows = await self._server.traffic.recorder.rows(Query(limit=100))
        return [row.metadata["peer"] for row in reversed(rows) if "peer" in (row.metadata or {})]

    async def wait_known(self) -> None:
        await until(
            lambda: all(status.up is not None for status in self.peers.snapshot()),
            within=10,
            changed=self.peers.wait_changed,
        )


Relaying = Callable[..., AbstractAsyncContextManager[Relay]]


@pytest.fixture
def relaying(open_server: OpenServer, tmp_path: Path) -> Relaying:
    @asynccontextmanager
    async def relaying(**peers: Mapping[str, object]) -> AsyncGenerator[Relay]:
        config = tmp_path / "config.json"
        config.write_text(
            json.dumps({"models": {}, "peers": {id: {"models": ["m"], **peer} for id, peer in peers.items()}})
        )
        async with open_server(config=config) as server:
            yield Relay(server)

    return relaying


async def test_the_peer_sees_its_own_key_and_host_and_nothing_of_the_clients(
    start_server: StartServer, relaying: Relaying
):
    server = start_server("--name", "one")
    async with relaying(p=dict(proxy=f"{server.url}/base/", apiKey="peers-key")) as relay:
        status, seen = await relay.ask([*CLIENTS_OWN, ("Origin", relay.url), ("X-Kept", "yes")])
    assert (status, seen["path"]) == (200, "/base/v1/completions")
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert headers["authorization"] == "Bearer peers-key"
    assert headers["x-api-key"] == "peers-key"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert headers["x-kept"] == "yes"
    assert "clients-secret" not in json.dumps(seen)
    assert not {"cookie", "origin", "x-forwarded-for"} & headers.keys()


async def test_the_next_peer_is_asked_when_the_first_is_gone(start_server: StartServer, relaying: Relaying):
    first, second = start_server("--name", "first"), start_server("--name", "second")
    async with relaying(a=dict(proxy=first.url), b=dict(proxy=second.url)) as relay:
        await relay.wait_known()
        assert (await relay.ask())[1]["name"] == "first"
        first.stop()
        status, seen = await relay.ask()
        assert (status, seen["name"]) == (200, "second")
        assert [status.up for status in relay.peers.snapshot()] == [False, True]
        assert await relay.answered() == ["a", "b"]


async def test_all_are_gone(free_port: Callable[[], int], relaying: Relaying):
    gone = [dict(proxy=f"http://127.0.0.1:{free_port()}") for _ in range(2)]
    async with relaying(a=gone[0], b=gone[1]) as relay:
        status, answer = await relay.ask()
        assert status == 502
        message = answer["error"]["message"]
        assert "a: it does not accept connections" in message
        assert "b: it does not accept connections" in message
        assert answer["error"]["reason"] == "peer_failed"


async def test_errors_of_a_peer_pass_and_are_not_asked_of_another(start_server: StartServer, relaying: Relaying):
    busy, idle = start_server("--post-status", "503", "--name", "busy"), start_server("--name", "idle")
    async with relaying(a=dict(proxy=busy.url), b=dict(proxy=idle.url)) as relay:
        status, seen = await relay.ask()
        assert (status, seen["name"]) == (503, "busy")


async def test_a_peer_that_dies_in_its_answer_is_not_followed_by_another(start_server: StartServer, relaying: Relaying):
    dying, well = start_server("--break", "--name", "dying"), start_server("--name", "well")
    async with relaying(a=dict(proxy=dying.url), b=dict(proxy=well.url)) as relay:
        answer = await relay.answer()
        assert len(answer.body) < int(answer.header("content-length")), "it has begun, and is cut off"
        assert await relay.answered() == ["a"]


async def test_a_request_does_not_go_in_circles(start_server: StartServer, relaying: Relaying):
    async with relaying(p=dict(proxy=start_server().url)) as relay:
        _, seen = await relay.ask([("Via", "1.1 llama-appliance, 1.0 cache")])
        via = [value for name, value in seen["headers"] if name.lower() == "via"]
        assert ", ".join(via).count("llama-appliance") == 2
        status, answer = await relay.ask([("Via", "1.1 llama-appliance")] * 4)
        assert status == 502
        assert "4 appliances" in answer["error"]["message"]
