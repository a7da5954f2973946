"""What is said over a link and when, without a network."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from appliance.features.pool.core.shapes import ModelState
from appliance.features.pool.link import PING_EVERY, SILENCE, exchange_states
from appliance.trio_parts import Changed


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
