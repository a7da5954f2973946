"""Two appliances that tell each other what they have loaded; what is said over a link, and when."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
from connection_harness import Gateway, serving
from http_harness import Appliance, OpenServer, chat, model
from waiting import SOON, until

from appliance.catalog.catalog import Snapshot
from appliance.core.config.types import Config, Peer
from appliance.features.pool.core.shapes import ModelState
from appliance.features.pool.link import PING_EVERY, SILENCE, exchange_states
from appliance.features.pool.peers import Peers, open_peers
from appliance.features.pool.remote_peer import PeerStatus
from appliance.http.sockets.handshake import Handshake
from appliance.http.way.context import RequestContext
from appliance.traffic.request import Request, send_whole
from appliance.trio_parts import Changed


def follow(side: Appliance, **others: str) -> Peers:
    """Make the servers at these URLs peers of this one."""
    peers = side.owners.peers
    peers.adopt(Config(peers={name: Peer(proxy=url, api_key="key") for name, url in others.items()}))
    return peers


async def seen(peers: Peers, ready: Callable[[PeerStatus], bool]) -> PeerStatus:
    return await until(lambda: peers.snapshot()[0], ready, changed=peers.wait_changed)


def loaded(models: Sequence[ModelState]) -> list[str]:
    return [model.id for model in models if model.loaded]


async def load(side: Appliance, name: str = "alpha") -> None:
    await side.fleet.load(side.catalog.snapshot.require(name))


async def test_each_knows_what_the_other_has_loaded(open_server: OpenServer):
    async with open_server(api_keys=("key",)) as one, open_server() as two:
        by_one, by_two = follow(one, other=two.url), follow(two, other=one.url)
        assert (await seen(by_one, lambda peer: peer.linked)).appliance
        await seen(by_two, lambda peer: peer.linked and [model.id for model in peer.models] == ["alpha", "beta"])
        await load(one)
        assert (await seen(by_two, lambda peer: loaded(peer.models) == ["alpha"])).up
        await load(two, "beta")
        await seen(by_one, lambda peer: loaded(peer.models) == ["beta"])
        await until(
            lambda: [loaded(models) for _, models in by_one.guests()] == [["beta"]], changed=by_one.wait_changed
        )


async def test_busy_peers_are_asked_later(open_server: OpenServer):
    async with open_server() as entry, open_server() as busy, open_server() as idle:
        peers = follow(entry, busy=busy.url, idle=idle.url)
        await load(busy)
        await load(idle)
        await until(
            lambda: all(one.linked and loaded(one.models) for one in peers.snapshot()), changed=peers.wait_changed
        )

        def first() -> str:
            return peers.order([("busy", "alpha"), ("idle", "alpha")])[0][0]

        assert first() == "busy"
        async with busy.begun(chat(stream=True, tokens=10_000, token_delay=0.01)):
            await until(first, lambda it: it == "idle", changed=peers.wait_changed)
        await until(first, lambda it: it == "busy", changed=peers.wait_changed)


async def test_a_link_that_breaks_is_made_again_and_the_death_is_noticed_at_once(
    open_server: OpenServer, free_port: Callable[[], int]
):
    port = free_port()
    async with open_server() as one:
        peers = follow(one, other=f"http://127.0.0.1:{port}")
        async with open_server(listen=[("127.0.0.1", port)]) as other:
            await load(other)
            await seen(peers, lambda peer: peer.linked and loaded(peer.models) == ["alpha"])
        began = trio.current_time()
        assert not (await seen(peers, lambda peer: peer.up is False)).linked
        assert trio.current_time() - began < SOON
        async with open_server(listen=[("127.0.0.1", port)]):
            assert (await seen(peers, lambda peer: peer.linked)).up


async def test_models_are_looked_up_at_once_when_the_link_tells_of_new_ones(open_server: OpenServer, fake_model: Path):
    async with open_server() as one, open_server() as two:
        peers = follow(two, other=one.url)
        await seen(peers, lambda peer: peer.linked)
        one.catalog.snapshot = Snapshot([*one.catalog.snapshot.models, model(fake_model, "new")])
        await load(one, "new")
        await seen(peers, lambda peer: [each.id for each in peer.models] == ["alpha", "beta", "new"])


@pytest.mark.parametrize("said", ["{", "[]", '{"type":"models","models":[{"id":1}]}'])
async def test_nonsense_ends_the_link_and_not_the_peer(said: str):
    closed = trio.Event()

    class Odd(Gateway):
        async def serve(self, context: RequestContext) -> None:
            await send_whole(context.sink, 200, (), b'{"data":[{"id":"a"}]}')

        async def join(self, request: Request, handshake: Handshake) -> None:
            websocket = await handshake.accept()
            await websocket.send('{"type":"of a later version"}')
            await websocket.send(said)
            while await websocket.receive() is not None:
                pass
            closed.set()

    async with serving(Odd()) as port, open_peers(Config(peers={"p": Peer(proxy=f"http://127.0.0.1:{port}")})) as peers:
        with trio.fail_after(10):
            await closed.wait()
        (status,) = peers.snapshot()
        assert status.up
        assert [model.id for model in status.models] == ["a"]


class Pipe:
    """One end of a link in memory."""

    def __init__(self, to: trio.MemorySendChannel[str], back: trio.MemoryReceiveChannel[str]) -> None:
        self._to = to
        self._back = back
        self.sent: list[dict[str, object]] = []

    async def send(self, text: str) -> None:
        self.sent.append(json.loads(text))
        await self._to.send(text)

    async def receive(self) -> str | None:
        try:
            return await self._back.receive()
        except trio.EndOfChannel:
            return None


@pytest.fixture
def channels():
    """What the other side gets, what it says, and the link's own end."""
    to, theirs = trio.open_memory_channel[str](100)
    ours, back = trio.open_memory_channel[str](100)
    return theirs, ours, Pipe(to, back)


async def test_silence_ends_a_link_and_pings_do_not(channels, autojump_clock: trio.testing.MockClock):
    _, ours, pipe = channels

    async def ping_three_times() -> None:
        for _ in range(3):
            await trio.sleep(PING_EVERY)
            await ours.send('{"type":"ping"}')

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ping_three_times)
        why = await exchange_states(pipe, lambda _: None, tuple, trio.sleep_forever)
    assert trio.current_time() == pytest.approx(3 * PING_EVERY + SILENCE)
    assert "nothing was heard" in why
    assert [message["type"] for message in pipe.sent] == ["models", *["ping"] * 5]


async def test_a_burst_of_changes_is_told_once_and_the_last_state_always(channels, autojump_clock):
    _, ours, pipe = channels
    state: Sequence[ModelState] = ()
    news = Changed()

    async def change() -> None:
        nonlocal state
        for busy in range(1, 101):
            state = (ModelState(id="a", busy=busy),)
            news.wake()
            await trio.lowlevel.checkpoint()
        await trio.sleep(1)
        await ours.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        assert await exchange_states(pipe, lambda _: None, lambda: state, news.wait) == "it ended the link"
    assert len(pipe.sent) <= 3
    assert pipe.sent[-1] == {"models": [{"id": "a", "state": "unloaded", "busy": 100}], "type": "models"}


async def test_what_is_heard_arrives_in_order(channels, autojump_clock):
    _, ours, pipe = channels
    heard: list[Sequence[ModelState]] = []
    for said in ('{"type":"models","models":[{"id":"a","new":1}]}', '{"type":"x"}', '{"type":"models","models":[]}'):
        await ours.send(said)
    await ours.aclose()
    await exchange_states(pipe, heard.append, tuple, trio.sleep_forever)
    assert [list(models) for models in heard] == [[ModelState(id="a")], []]
