"""Peers: which are well, what they have, whom to ask first, and requests that they answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from http_harness import Answer, Appliance, OpenServer
from small_server import StartServer, small_servers
from waiting import until

from appliance.core.config.types import Config, Peer
from appliance.core.records.activity import Query
from appliance.core.scheduling.routing import Remote, Router
from appliance.errors import PeerFailed, UsageError
from appliance.features.pool.core.shapes import ModelState
from appliance.features.pool.link import read_listing
from appliance.features.pool.peers import Peers, open_peers
from appliance.features.pool.remote_peer import PeerStatus
from appliance.upstream.client import Address, address_of


@pytest.fixture
def start_server() -> Generator[StartServer]:
    with small_servers() as start:
        yield start


Ready = Callable[[dict[str, PeerStatus]], bool]


def config(**urls: str | Peer) -> Config:
    return Config(peers={name: url if isinstance(url, Peer) else Peer(proxy=url) for name, url in urls.items()})


async def known(peers: Peers, ready: Ready) -> dict[str, PeerStatus]:
    return await until(
        lambda: {status.id: status for status in peers.snapshot()}, ready, within=10, changed=peers.wait_changed
    )


async def test_what_is_well_and_what_is_not(start_server: StartServer, free_port: Callable[[], int]):
    well, broken = start_server(models="a,b", loaded="b"), start_server(status=500)
    shut = start_server(key="secret", models="c")
    urls = config(
        well=well.url,
        broken=broken.url,
        gone=f"http://127.0.0.1:{free_port()}",
        shut=shut.url,
        open=Peer(proxy=shut.url, api_key="secret"),
    )
    async with open_peers(urls) as peers:
        found = await known(peers, lambda all_: all(one.up is not None for one in all_.values()))
    assert [name for name, status in found.items() if status.up] == ["well", "open"]
    assert found["well"].models == (ModelState(id="a"), ModelState(id="b", state="loaded"))
    assert "500" in str(found["broken"].error)
    assert "does not accept connections" in str(found["gone"].error)
    assert "apiKey" in str(found["shut"].error)
    assert [model.id for model in found["open"].models] == ["c"]


async def test_a_server_that_comes_back_is_found(start_server: StartServer, free_port: Callable[[], int]):
    port = free_port()
    async with open_peers(config(p=f"http://127.0.0.1:{port}")) as peers:
        assert (await known(peers, lambda found: found["p"].up is False))["p"].models == ()
        start_server(port=port, models="a")
        found = await known(peers, lambda found: found["p"].up is True and found["p"].models != ())
        assert found["p"].error is None


async def test_named_models_are_not_discovered(start_server: StartServer):
    server = start_server(models="a,b", loaded="b")
    given = config(p=Peer(proxy=server.url, models=["b", "z"]), q=server.url)
    async with open_peers(given) as peers:
        found = await known(peers, lambda found: all(one.up for one in found.values()) and found["q"].models != ())
        assert found["p"].models == (ModelState(id="b", state="loaded"), ModelState(id="z"))
        completed = peers.complete(given)
        assert {name: peer.models for name, peer in completed.peers.items()} == {"p": ["b", "z"], "q": ["a", "b"]}


async def test_whom_to_ask_first(start_server: StartServer, free_port: Callable[[], int]):
    cold, warm = start_server(models="m"), start_server(models="m", loaded="m")
    given = config(
        gone=f"http://127.0.0.1:{free_port()}", cold=cold.url, warm=warm.url, twin=Peer(proxy=warm.url, models=["m"])
    )
    everybody = [(name, "m") for name in given.peers]
    async with open_peers(given) as peers:
        await known(peers, lambda all_: all(one.up is not None for one in all_.values()))
        await known(peers, lambda found: all(found[n].models[0].loaded for n in ("warm", "twin")))
        assert [name for name, _ in peers.order(everybody)] == ["warm", "twin", "cold", "gone"]
        with peers.using("warm"):
            assert {status.id: status.busy for status in peers.snapshot()}["warm"] == 1
            assert [name for name, _ in peers.order(everybody)] == ["twin", "warm", "cold", "gone"]
        assert [name for name, _ in peers.order([*everybody, ("nobody", "m")])] == ["warm", "twin", "cold", "gone"]
        peers.failed("warm", "it was rude")
        assert [name for name, _ in peers.order(everybody)] == ["twin", "cold", "warm", "gone"]
        peers.answered("warm")
        assert peers.order(everybody)[0] == ("warm", "m")
        peers.failed("warm", "again")
        await known(peers, lambda found: found["warm"].up is True)


async def test_a_new_configuration_leaves_the_same_peers_alone(start_server: StartServer):
    server = start_server(models="a")
    async with open_peers(config(kept=server.url, changed=server.url, dropped=server.url)) as peers:
        await known(peers, lambda found: all(one.models != () for one in found.values()))
        with peers.using("kept"), peers.using("dropped"):
            peers.adopt(config(changed=Peer(proxy=server.url, api_key="k"), kept=server.url, new=server.url))
            now = {status.id: status for status in peers.snapshot()}
            assert list(now) == ["changed", "kept", "new"]
            assert (now["kept"].up, now["kept"].busy) == (True, 1)
            assert now["changed"].up is None
        with pytest.raises(PeerFailed):
            peers.address("dropped")
        with pytest.raises(UsageError):
            peers.adopt(config(bad="nonsense"))
        assert list(now) == [status.id for status in peers.snapshot()]
        await known(peers, lambda found: all(one.up for one in found.values()))
        peers.adopt(None)
        assert peers.snapshot() == ()


def members(**urls: str) -> dict[str, Address]:
    return {name: address_of(url, name) for name, url in urls.items()}


async def test_boxes_of_the_pool_are_peers_beside_the_configured_ones(start_server: StartServer):
    server, box = start_server(models="a"), start_server(models="a,b", loaded="a")
    given = config(peer=server.url)
    async with open_peers(given) as peers:
        peers.adopt_members(members(box=box.url))
        await known(peers, lambda found: all(one.models != () for one in found.values()))
        assert peers.names() == (("peer", ("a",)), ("box", ("a", "b")))
        assert Router(peers.complete(given)).resolve("a") == Remote((("peer", "a"), ("box", "a")), "a")
        assert [name for name, _ in peers.order([("peer", "a"), ("box", "a")])] == ["box", "peer"]
        with peers.using("box"):
            peers.adopt(config(peer=server.url, other=server.url))
            peers.adopt_members(members(box=box.url, more=server.url))
            now = {status.id: status for status in peers.snapshot()}
            assert (list(now), now["box"].busy) == (["peer", "other", "box", "more"], 1)
        peers.adopt_members(members(box=server.url, peer=box.url))  # a box at another address, and one of a peer's id
        await known(peers, lambda found: [model.id for model in found["peer"].models] == ["a", "b"])
        assert {name: peers.address(name).port for name in ("box", "peer")} == {"box": server.port, "peer": box.port}
        peers.adopt_members({})
        await known(peers, lambda found: all(one.models != () for one in found.values()))
        assert peers.names() == (("peer", ("a",)), ("other", ("a",)))


async def test_a_box_that_the_pool_lost_sight_of(start_server: StartServer):
    away, stays = start_server(models="m"), start_server(models="m")
    async with open_peers(None) as peers:
        peers.adopt_members(members(away=away.url, stays=stays.url))
        await known(peers, lambda found: all(one.models != () for one in found.values()))
        both = [("away", "m"), ("stays", "m")]
        away.stop()
        peers.seen("away", False, "no word for 4 s")
        assert [name for name, _ in peers.order(both)] == ["stays", "away"]
        await known(peers, lambda found: "connections" in str(found["away"].error))
        back = start_server(port=away.port, models="m")
        peers.seen("away", True)
        await known(peers, lambda found: found["away"].up is True)
        peers.seen("away", False, "no word for 4 s, although it is well")
        await known(peers, lambda found: found["away"].up is True)
        assert back.port == away.port


async def test_a_models_list_that_changes(start_server: StartServer):
    server = start_server(models="a")
    async with open_peers(config(p=server.url)) as peers:
        await known(peers, lambda found: [model.id for model in found["p"].models] == ["a"])
        server.models = "b,c"
        peers.failed("p", "so that it looks soon")
        await known(peers, lambda found: [model.id for model in found["p"].models] == ["b", "c"])


def test_listings_of_other_servers():
    found, _ = read_listing(
        b'{"data":[{"id":"a","object":"model","created":1},{"id":"","x":1},{"id":"b","status":{"value":"loaded"}},'
        b'{"id":"p/c","meta":{"llamaswap":{"type":"peer","peerID":"p"}}},{"id":"d","meta":{"n_ctx":5}}]}'
    )
    assert list(found) == ["a", "b", "d"]
    assert [model.loaded for model in found.values()] == [False, True, False]


CLIENTS_OWN = [
    ("Authorization", "Bearer clients-secret"),
    ("x-api-key", "clients-secret"),
    ("Cookie", "clients-secret"),
    ("X-Forwarded-For", "10.0.0.1"),
]


async def complete(relay: Appliance, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    return await relay.ask("POST", "/v1/completions", {"model": "m", "prompt": "x"}, headers)


async def ask(relay: Appliance, headers: Sequence[tuple[str, str]] = ()) -> tuple[int, Any]:
    found = await complete(relay, headers)
    return found.status, found.json


async def answered(relay: Appliance) -> list[str]:
    """The peers whose answers began, in order."""
    rows = await relay.traffic.recorder.rows(Query(limit=100))
    return [row.metadata["peer"] for row in reversed(rows) if "peer" in (row.metadata or {})]


Relaying = Callable[..., AbstractAsyncContextManager[Appliance]]


@pytest.fixture
def relaying(open_server: OpenServer, tmp_path: Path) -> Relaying:
    """A program that has its models at peers, each of which may have ``m``."""

    def relaying(**peers: Mapping[str, object]) -> AbstractAsyncContextManager[Appliance]:
        config = tmp_path / "config.json"
        config.write_text(
            json.dumps({"models": {}, "peers": {id: {"models": ["m"], **peer} for id, peer in peers.items()}})
        )
        return open_server(config=config)

    return relaying


async def test_the_peer_sees_its_own_key_and_host_and_nothing_of_the_clients(
    start_server: StartServer, relaying: Relaying
):
    server = start_server(name="one")
    async with relaying(p=dict(proxy=f"{server.url}/base/", apiKey="peers-key")) as relay:
        status, seen = await ask(relay, [*CLIENTS_OWN, ("Origin", relay.url), ("X-Kept", "yes")])
    assert (status, seen["path"]) == (200, "/base/v1/completions")
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert headers["authorization"] == "Bearer peers-key"
    assert headers["x-api-key"] == "peers-key"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert headers["x-kept"] == "yes"
    assert "clients-secret" not in json.dumps(seen)
    assert not {"cookie", "origin", "x-forwarded-for"} & headers.keys()


async def test_the_next_peer_is_asked_when_the_first_is_gone(start_server: StartServer, relaying: Relaying):
    first, second = start_server(name="first"), start_server(name="second")
    async with relaying(a=dict(proxy=first.url), b=dict(proxy=second.url)) as relay:
        await known(relay.owners.peers, lambda all_: all(one.up is not None for one in all_.values()))
        assert (await ask(relay))[1]["name"] == "first"
        first.stop()
        status, seen = await ask(relay)
        assert (status, seen["name"]) == (200, "second")
        assert [status.up for status in relay.owners.peers.snapshot()] == [False, True]
        assert await answered(relay) == ["a", "b"]


async def test_all_are_gone(free_port: Callable[[], int], relaying: Relaying):
    gone = [dict(proxy=f"http://127.0.0.1:{free_port()}") for _ in range(2)]
    async with relaying(a=gone[0], b=gone[1]) as relay:
        status, answer = await ask(relay)
        assert status == 502
        message = answer["error"]["message"]
        assert "a: it does not accept connections" in message
        assert "b: it does not accept connections" in message
        assert answer["error"]["reason"] == "peer_failed"


async def test_errors_of_a_peer_pass_and_are_not_asked_of_another(start_server: StartServer, relaying: Relaying):
    busy, idle = start_server(post_status=503, name="busy"), start_server(name="idle")
    async with relaying(a=dict(proxy=busy.url), b=dict(proxy=idle.url)) as relay:
        status, seen = await ask(relay)
        assert (status, seen["name"]) == (503, "busy")


async def test_a_peer_that_dies_in_its_answer_is_not_followed_by_another(start_server: StartServer, relaying: Relaying):
    dying, well = start_server(breaks=True, name="dying"), start_server(name="well")
    async with relaying(a=dict(proxy=dying.url), b=dict(proxy=well.url)) as relay:
        answer = await complete(relay)
        assert len(answer.body) < int(answer.header("content-length")), "it has begun, and is cut off"
        assert await answered(relay) == ["a"]


async def test_a_request_does_not_go_in_circles(start_server: StartServer, relaying: Relaying):
    async with relaying(p=dict(proxy=start_server().url)) as relay:
        _, seen = await ask(relay, [("Via", "1.1 llama-appliance, 1.0 cache")])
        via = [value for name, value in seen["headers"] if name.lower() == "via"]
        assert ", ".join(via).count("llama-appliance") == 2
        status, answer = await ask(relay, [("Via", "1.1 llama-appliance")] * 4)
        assert status == 502
        assert "4 appliances" in answer["error"]["message"]
