"""Requests answered by other servers, over the program's own connections."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from connection_harness import Gateway, serving
from peers_harness import StartServer
from waiting import until

from appliance.core.config.types import Config, Peer
from appliance.errors import ApplianceError, UpstreamFailed
from appliance.features.pool.peers import Peers, open_peers
from appliance.http.way.at_peers import answer_from_peers
from appliance.http.way.context import RequestContext
from appliance.http.way.explaining import explain
from appliance.upstream.client import Address, HttpCall

CLIENTS_OWN = [
    (b"Authorization", b"Bearer clients-secret"),
    (b"x-api-key", b"clients-secret"),
    (b"Cookie", b"clients-secret"),
    (b"X-Forwarded-For", b"10.0.0.1"),
    (b"Origin", b"http://page.example"),
]


class PeersAlone(Gateway):
    """Has everything answered by peers."""

    def __init__(self, peers: Peers, candidates: Sequence[tuple[str, str]], answered: list[str]) -> None:
        self._peers = peers
        self._candidates = candidates
        self._answered = answered

    async def serve(self, context: RequestContext) -> None:
        request, body = context.request, await context.read_body()

        def body_for(peer_id: str, model: str) -> bytes:
            return body.replace(b"MODEL", f"{model} of {peer_id}".encode())

        try:
            await answer_from_peers(
                self._peers,
                self._candidates,
                request.method,
                request.target,
                request.headers,
                body_for,
                context.sink,
                answering=self._answered.append,
            )
        except ApplianceError as error:
            await explain(context, error)


class Relay:
    def __init__(self, port: int, peers: Peers, answered: list[str]) -> None:
        self.address = Address("127.0.0.1", port, None, "the relay")
        self.peers = peers
        self.answered = answered
        """Peers whose answers began, in order."""

    async def ask(self, headers: Sequence[tuple[bytes, bytes]] = (), body: bytes = b'{"model":"MODEL"}'):
        with trio.fail_after(10):
            async with HttpCall(self.address, "POST", "/v1/x", headers, body) as response:
                return response.status, json.loads(await response.read(1 << 20))

    async def wait_known(self) -> None:
        await until(
            lambda: all(status.up is not None for status in self.peers.snapshot()),
            within=10,
            changed=self.peers.wait_changed,
        )


@asynccontextmanager
async def relaying(**peers: Peer) -> AsyncGenerator[Relay]:
    answered: list[str] = []
    async with open_peers(Config(peers=peers)) as owner:
        candidates = [(name, "m") for name in peers]
        async with serving(PeersAlone(owner, candidates, answered)) as port:
            yield Relay(port, owner, answered)


async def test_the_peer_sees_its_own_key_and_host_and_nothing_of_the_clients(start_server: StartServer):
    server = start_server("--name", "one")
    async with relaying(p=Peer(proxy=f"{server.url}/base/", api_key="peers-key")) as relay:
        status, seen = await relay.ask([*CLIENTS_OWN, (b"X-Kept", b"yes")])
    assert (status, seen["path"], seen["body"]) == (200, "/base/v1/x", '{"model":"m of p"}')
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert headers["authorization"] == "Bearer peers-key"
    assert headers["x-api-key"] == "peers-key"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert headers["x-kept"] == "yes"
    assert "clients-secret" not in json.dumps(seen)
    assert not {"cookie", "origin", "x-forwarded-for"} & headers.keys()


async def test_the_next_peer_is_asked_when_the_first_is_gone(start_server: StartServer):
    first, second = start_server("--name", "first"), start_server("--name", "second")
    async with relaying(a=Peer(proxy=first.url), b=Peer(proxy=second.url)) as relay:
        await relay.wait_known()
        assert (await relay.ask())[1]["name"] == "first"
        first.stop()
        status, seen = await relay.ask()
        assert (status, seen["name"], seen["body"]) == (200, "second", '{"model":"m of b"}')
        assert [status.up for status in relay.peers.snapshot()] == [False, True]
        assert relay.answered == ["a", "b"]


async def test_all_are_gone(free_port: Callable[[], int]):
    gone = [Peer(proxy=f"http://127.0.0.1:{free_port()}") for _ in range(2)]
    async with relaying(a=gone[0], b=gone[1]) as relay:
        status, answer = await relay.ask()
        assert status == 502
        message = answer["error"]["message"]
        assert "a: it does not accept connections" in message
        assert "b: it does not accept connections" in message
        assert answer["error"]["reason"] == "peer_failed"


async def test_errors_of_a_peer_pass_and_are_not_asked_of_another(start_server: StartServer):
    busy, idle = start_server("--post-status", "503", "--name", "busy"), start_server("--name", "idle")
    async with relaying(a=Peer(proxy=busy.url, models=["m"]), b=Peer(proxy=idle.url, models=["m"])) as relay:
        status, seen = await relay.ask()
        assert (status, seen["name"]) == (503, "busy")


async def test_a_peer_that_dies_in_its_answer_is_not_followed_by_another(start_server: StartServer):
    dying, well = start_server("--break", "--name", "dying"), start_server("--name", "well")
    async with relaying(a=Peer(proxy=dying.url), b=Peer(proxy=well.url)) as relay:
        with pytest.raises(UpstreamFailed, match=r"broke|ended"):
            await relay.ask()
        assert relay.answered == ["a"]


async def test_a_request_does_not_go_in_circles(start_server: StartServer):
    async with relaying(p=Peer(proxy=start_server().url)) as relay:
        _, seen = await relay.ask([(b"Via", b"1.1 llama-appliance, 1.0 cache")])
        via = [value for name, value in seen["headers"] if name.lower() == "via"]
        assert ", ".join(via).count("llama-appliance") == 2
        status, answer = await relay.ask([(b"Via", b"1.1 llama-appliance")] * 4)
        assert status == 502
        assert "4 appliances" in answer["error"]["message"]
