"""Reading a chat stream from a real process that breaks it in every way the fake knows."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from appliance.cli.remote import CHAT_PATH, Ask, ChatRequest, RunMessage, stream_answer, whole_answer
from appliance.core.engine import Engine
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.errors import UpstreamFailed
from appliance.fleet.owner import Fleet, open_fleet
from appliance.upstream.client import HttpAnswer, HttpCall

REQUEST = ChatRequest(model="m", messages=(RunMessage(role="user", content="Tell me a story."),))


@asynccontextmanager
async def ask(fleet: Fleet, model: Model, body: bytes) -> AsyncGenerator[HttpAnswer]:
    async with (
        fleet.lease(model) as address,
        HttpCall(address, "POST", CHAT_PATH, [(b"Content-Type", b"application/json")], body) as response,
    ):
        yield response


@pytest.fixture
async def asked(fake_llama_server: tuple[str, ...], fake_model: Path) -> AsyncGenerator[Ask]:
    engine = Engine(name="fake", backend="cpu", version=None, command=fake_llama_server, source="tests")
    async with open_fleet(FleetSettings(stop_timeout=1), engine) as fleet:
        yield partial(ask, fleet, Model(id="m", source="path", path=str(fake_model)))


async def test_pieces_arrive_one_by_one_and_make_the_answer(asked: Ask) -> None:
    pieces: list[str] = []
    answer = await stream_answer(asked, REQUEST, pieces.append)
    assert "".join(pieces) == answer.text
    assert answer.chunks == len(pieces) > 3
    assert answer.finish_reason in ("stop", "length")
    assert answer.text.strip().encode() in await whole_answer(asked, REQUEST)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("FAKE_DIE_AFTER_TOKENS", "3", "ended early|broke the connection"),
        ("FAKE_CLOSE_AFTER_TOKENS", "3", "ended early|broke the connection"),
        ("FAKE_ERROR_RECORD", "3", "."),
        ("FAKE_CLOSE_WITHOUT_ANSWER", "1", "without an answer|ended early"),
        ("FAKE_NOT_HTTP", "1", "not HTTP"),
    ],
)
async def test_a_broken_stream_is_an_error_and_what_came_before_was_written(
    name: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch, asked: Ask
) -> None:
    monkeypatch.setenv(name, value)
    pieces: list[str] = []
    with pytest.raises(UpstreamFailed) as caught:
        await stream_answer(asked, REQUEST, pieces.append)
    assert caught.value.model == "m"
    assert re.search(why, caught.value.why)
    if value == "3":
        assert len(pieces) == 3
