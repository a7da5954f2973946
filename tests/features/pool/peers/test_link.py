"""Two appliances that tell each other what they have loaded; what is said over a link, and when."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from connection_harness import Gateway, serving
from waiting import SOON, until

from appliance.core.config.types import Config, Peer
from appliance.features.pool.core.shapes import ModelState
from appliance.features.pool.link import PING_EVERY, SILENCE, exchange_states
from appliance.features.pool.peers import Peers, open_peers
from appliance.features.pool.remote_peer import PeerStatus
from appliance.http.sockets.handshake import Handshake
from appliance.http.way.context import RequestContext
from appliance.traffic.request import Request, send_whole
from appliance.trio_parts import Changed
from appliance.upstream.websocket import NORMAL, Close


class Fleet:
    """What an appliance would say of its models."""

    def __init__(self, *models: ModelState) -> None:
        self.models: Sequence[ModelState] = models
        self.asked_for = 0  # how often the list was fetched
        self._news = Changed()
        self.wait_changed = self._news.wait

    def state(self) -> Sequence[ModelState]:
        return self.models

    def set(self, *models: ModelState) -> None:
        self.models = models
        self._news.wake()


class Side(Gateway):
    """One appliance: its fleet, its peers, its port."""

    def __init__(self, fleet: Fleet, peers: Peers, key: str) -> None:
        self.fleet = fleet
        self.peers = peers
        self.key = key
        self.port = 0

    async def join(self, request: Request, handshake: Handshake) -> None:
        if not self._knows(request) or request.path != "/api/link":
            await handshake.refuse(403, (), b"")
            return
        with self.peers.guest("a guest") as heard:
            channel = await handshake.accept(most=1 << 20)
            await channel.close(
                Close(NORMAL, await exchange_states(channel, heard, self.fleet.state, self.fleet.wait_changed))
            )

    async def serve(self, context: RequestContext) -> None:
        self.fleet.asked_for += 1
        listing = {"data": [{"id": model.id} for model in self.fleet.models]}
        known = self._knows(context.request)
        await send_whole(context.sink, 200 if known else 401, (), json.dumps(listing).encode() if known else b"{}")

    def _knows(self, request: Request) -> bool:
        keys = [value for name, value in request.headers if name.lower() == b"authorization"]
        return keys == [f"Bearer {self.key}".encode()]

    async def wait(self, ready: Callable[[PeerStatus], bool]) -> PeerStatus:
        return await until(lambda: self.peers.snapshot()[0], ready, within=10, changed=self.peers.wait_changed)


@asynccontextmanager
async def appliance(
    other: int, key: str = "key", *, port: int = 0, models: Sequence[ModelState] = ()
) -> AsyncGenerator[Side]:
    fleet = Fleet(*models)
    config = Config(peers={"other": Peer(proxy=f"http://127.0.0.1:{other}", api_key=key)})
    async with open_peers(config, fleet.state, fleet.wait_changed) as peers:
        side = Side(fleet, peers, "key")
        async with serving(side, port=port) as side.port:
            yield side


A, B = ModelState(id="a"), ModelState(id="b")
LOADED = ModelState(id="a", state="loaded", busy=2)


async def test_each_knows_what_the_other_has_loaded(free_port: Callable[[], int]):
    ports = free_port(), free_port()
    async with (
        appliance(ports[1], port=ports[0], models=[A]) as one,
        appliance(ports[0], port=ports[1], models=[B]) as two,
    ):
        seen_by_one = await one.wait(lambda peer: peer.linked)
        assert seen_by_one.appliance
        await two.wait(lambda peer: peer.linked and peer.models == (A,))
        one.fleet.set(LOADED)
        assert (await two.wait(lambda peer: peer.models == (LOADED,))).up
        two.fleet.set(B, LOADED)
        found = await one.wait(lambda peer: [model.id for model in peer.models] == ["b", "a"])
        assert found.models[1].loaded
        await until(
            lambda: [list(models) for _, models in one.peers.guests()] == [[B, LOADED]],
            within=10,
            changed=one.peers.wait_changed,
        )


async def test_busy_peers_are_asked_later(free_port: Callable[[], int]):
    async with appliance(free_port(), models=[A]) as busy, appliance(free_port(), models=[A]) as idle:
        config = Config(
            peers={
                name: Peer(proxy=f"http://127.0.0.1:{side.port}", api_key="key")
                for name, side in (("busy", busy), ("idle", idle))
            }
        )
        async with open_peers(config) as peers:

            def first() -> str:
                return peers.order([("busy", "a"), ("idle", "a")])[0][0]

            await until(lambda: all(status.linked for status in peers.snapshot()), changed=peers.wait_changed)
            assert first() == "busy"
            busy.fleet.set(ModelState(id="a", busy=3))
            await until(first, lambda it: it == "idle", changed=peers.wait_changed)
            busy.fleet.set(LOADED)
            await until(first, lambda it: it == "busy", changed=peers.wait_changed)


async def test_a_link_that_breaks_is_made_again_and_the_death_is_noticed_at_once(free_port: Callable[[], int]):
    port = free_port()
    async with appliance(port) as one:
        async with appliance(one.port, port=port, models=[LOADED]):
            await one.wait(lambda peer: peer.linked and peer.models == (LOADED,))
        began = trio.current_time()
        gone = await one.wait(lambda peer: peer.up is False)
        assert trio.current_time() - began < SOON
        assert not gone.linked
        async with appliance(one.port, port=port, models=[LOADED]):
            assert (await one.wait(lambda peer: peer.linked)).up


async def test_models_are_looked_up_at_once_when_the_link_tells_of_new_ones(free_port: Callable[[], int]):
    port = free_port()
    async with appliance(free_port(), port=port, models=[A]) as one, appliance(port) as two:
        await two.wait(lambda peer: peer.linked)
        before = one.fleet.asked_for
        one.fleet.set(A, ModelState(id="new"))
        await two.wait(lambda peer: [model.id for model in peer.models] == ["a", "new"])
        assert one.fleet.asked_for == before + 1


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
