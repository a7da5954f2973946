"""A model process that hangs at work is found, ended as one that has crashed, and nobody waits for it for ever."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from fleet_harness import InOrder, fake_engine
from http_harness import CHAT, Answer, Appliance, OpenServer, chat, model
from swap_harness import configure
from test_fallback import STORY, asked, marks, records, text
from waiting import until

from appliance.core.config.additions import HangsConfig
from appliance.core.settings import FleetSettings
from appliance.fleet import failures

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGSTOP")
SOON = HangsConfig(after=1, awaited=1, answer=1)
SLOW = {"tokens": 300, "token_delay": 0.02}


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(failures, "FIRST_QUESTION", 0.2)


@asynccontextmanager
async def stream(server: Appliance, name: str = "alpha", **fake: object) -> AsyncGenerator[list[Answer]]:
    """A stream whose first five tokens are here; its whole answer is in the list when it has ended."""
    answers: list[Answer] = []
    async with trio.open_nursery() as nursery, server.begun(chat(name, stream=True, **{**SLOW, **fake})) as client:
        got = await client.until(b"data: ", 5)

        async def rest() -> None:
            answers.append(Answer(200, [], got + await client.rest(), cut=False))

        nursery.start_soon(rest)
        yield answers


def found(server: Appliance) -> str:
    return getattr(server.fleet.known("alpha"), "error", None) or ""


async def test_a_stopped_engine_with_five_clients_makes_way_for_another_model(open_server: OpenServer):
    settings = FleetSettings(models_max=1, stop_timeout=2, hangs=HangsConfig(after=30, awaited=1, answer=1))
    async with open_server(fleet=settings) as server:
        async with stream(server) as one, stream(server) as two, stream(server) as three, stream(server) as four:
            server.process().suspend()
            began = trio.current_time()
            await server.good("POST", CHAT, chat("beta"))
            assert trio.current_time() - began < 8
            await until(lambda: all((one, two, three, four)))
        assert "it hangs: next to nothing has come from it for" in found(server)
        assert "GET /health was not answered within 1 s" in found(server)
        for [ended] in (one, two, three, four):
            assert "it hangs" in records(ended)[-1]["error"]["message"]
        rows = await server.rows()
        assert sum("it hangs" in row.get("error_msg", "") for row in rows) == 4
        assert (await server.ask("POST", CHAT, chat("alpha"))).status == 200


@pytest.mark.parametrize("tokens", [0, 5])
async def test_its_requests_go_to_the_next_engine(open_server: OpenServer, tokens: int):
    """Also where it stops before it has said anything."""
    chooser = InOrder(fake_engine("gpu"), fake_engine("cpu"))
    settings = FleetSettings(stop_timeout=2, hangs=SOON)
    body = asked(CHAT, fake={"token_delay": 0.1, "slow_prompt": 0.0 if tokens else 1.0})
    async with open_server(fleet=settings, chooser=chooser) as server, server.connect() as client:
        await server.ask("POST", CHAT, chat())
        await client.send("POST", CHAT, json.dumps(body).encode())
        got = b""
        if tokens:
            got = await client.until(b"data: ", tokens)
        else:
            await until(lambda: server.fleet.busy)
        server.process().suspend()
        if not tokens:
            head = await client.head()
            assert dict(head.headers.raw_items())[b"X-Appliance-Fallback"] == b"replayed; from=gpu; on=cpu"
        got += await client.rest()
        answer = Answer(200, [], got, cut=False)
        assert text(answer) == STORY
        assert bool(marks(answer)) is bool(tokens)
        assert len(chooser.told) == 1


@pytest.mark.parametrize(("flags", "ends"), [(["--deaf"], True), ([], False)])
async def test_fewer_bytes_than_the_floor_have_it_asked_whether_it_lives(
    open_server: OpenServer, fake_model: Path, flags: list[str], ends: bool
):
    hangs = HangsConfig(after=1, awaited=1, answer=1 if ends else 10, floor=4096)
    settings = FleetSettings(stop_timeout=2, hangs=hangs)
    async with (
        open_server(fleet=settings, models=[model(fake_model, "alpha", args=flags)]) as server,
        stream(server, tokens=20, token_delay=0.12) as answers,
    ):
        await until(lambda: answers)
        assert ("it hangs" in records(answers[0])[-1].get("error", {}).get("message", "")) is ends


async def test_a_server_that_does_one_thing_at_a_time_is_not_judged(
    open_server: OpenServer, fake_llama_server: tuple[str, ...], fake_model: Path, tmp_path: Path
):
    models = {"alpha": {"args": ["--deaf"]}, "beta": {}}
    hangs = {"after": 1, "awaited": 1, "answer": 1}
    path = configure(tmp_path / "c.yaml", fake_llama_server, fake_model, models, hangs=hangs, unloadTimeout=1)
    async with open_server(config=path) as server:
        await server.good("POST", CHAT, chat(slow_prompt=3.0))
        async with stream(server, "beta") as answers:
            await trio.sleep(1)  # it is asked, and answers at work: nothing tells so outside
            server.process("beta").suspend()
            await until(lambda: answers)
        assert "it hangs" in (server.fleet.known("beta").error or "")


async def test_it_can_be_switched_off(open_server: OpenServer):
    settings = FleetSettings(stop_timeout=2, hangs=HangsConfig(after=0, awaited=1, answer=0.1))
    async with open_server(fleet=settings) as server, stream(server, tokens=50) as answers:
        server.process().suspend()
        await trio.sleep(0.5)  # ten looks, and five times what a question would be waited for
        assert not answers
        server.process().resume()
        await until(lambda: answers)
        assert "error" not in records(answers[0])[-1]
