"""A selector whose stand-in answers while the wanted model loads, and says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from http_harness import CHAT, Answer, Appliance, OpenServer, chat, model
from reload_harness import reload
from swap_harness import Configure
from tool_files import Files
from waiting import until

from appliance.features.tools.box import OpenToolbox

SAID = "X-Appliance-Meanwhile"
NONE = [(SAID, "none")]
MEANWHILE = {"any": {"strategy": "meanwhile", "targets": ["big", "small"]}}
TOGETHER = {"groups": {"all": {"swap": False, "members": ["big", "small"]}}}
SLOW = ("--load-delay", "1.5")


def models(*args: str) -> dict[str, dict[str, object]]:
    """``args`` are the big model's."""
    return {"big": {"args": args}, "small": {}}


async def ask(server: Appliance, name: str = "any", headers: Sequence[tuple[str, str]] = (), query: str = "") -> Answer:
    return await server.ask("POST", CHAT + query, chat(name), headers)


async def test_a_stand_in_is_never_loaded_and_is_alone_where_nothing_may_be(
    open_server: OpenServer, configured: Configure
):
    async with open_server(config=configured(models(), selectors=MEANWHILE, **TOGETHER)) as server:
        answer = await ask(server)
        assert (answer.status, answer.header(SAID)) == (200, None)
        assert await told(server) == ("big", None)
        assert server.state("small") == "unknown"
        await ask(server, "small")
        await server.fleet.unload("big")
        answer = await ask(server, query="?autoload=false")
        assert (answer.status, answer.header(SAID)) == (200, "small; for=big")
        assert server.state("big") == "unloaded"


async def begins(server: Appliance, model: str) -> int:
    """How often a load of the model has begun."""
    entries = (await server.ask("GET", f"/api/history?kind=loading&model={model}")).json["data"]
    return sum(entry["model"] == model for entry in entries)


async def told(server: Appliance) -> tuple[str, str | None]:
    """The model that had the newest request, and for which one it stood in."""
    row = (await server.rows())[0]
    return row["model"], row.get("metadata", {}).get("meanwhile")


async def test_the_stand_in_answers_until_the_wanted_model_is_ready(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured(models(*SLOW), selectors=MEANWHILE, **TOGETHER)) as server:
        await ask(server, "small")
        answer = await ask(server)
        assert (answer.status, answer.header(SAID)) == (200, "small; for=big")
        assert await told(server) == ("small", "big")
        await until(lambda: server.state("big") == "loaded")
        answer = await ask(server)
        assert (answer.status, answer.header(SAID)) == (200, None)
        assert await told(server) == ("big", None)
        assert await begins(server, "big") == 1


async def test_every_kind_of_stream_says_so_before_its_first_word(open_server: OpenServer, configured: Configure):
    file = configured(models("--never-ready"), selectors=MEANWHILE, **TOGETHER)
    async with open_server(config=file, ping_after=0.1) as server:
        await ask(server, "small")
        answer = await server.ask("POST", CHAT, chat("any", stream=True, slow_prompt=0.5))
        assert answer.body.startswith(b": ping")
        assert answer.header(SAID) == "small; for=big"
        kept = await server.ask("POST", CHAT, chat("any", stream=True), [("X-Conversation-Id", "c")])
        assert kept.header(SAID) == "small; for=big"
        assert (await server.ask("POST", "/api/chat", chat("any"))).header(SAID) == "small; for=big"
        assert await begins(server, "big") == 1


async def test_a_client_may_refuse_a_stand_in(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured(models(*SLOW), selectors=MEANWHILE, **TOGETHER)) as server:
        await ask(server, "small")
        answer = await ask(server, headers=NONE)
        assert (answer.status, answer.header(SAID)) == (200, None)
        assert await told(server) == ("big", None)
        for name in ("any", "small"):
            wrong = await ask(server, name, [(SAID, "maybe")])
            assert (wrong.status, wrong.error["type"]) == (400, "invalid_request_error")
            assert wrong.error["message"] == "the X-Appliance-Meanwhile header is 'maybe'; leave it out, or send 'none'"


async def test_nothing_stands_in_where_no_text_is_made(open_server: OpenServer, configured: Configure):
    file = configured({"big": {}, "small": {"args": ("--embeddings",)}}, selectors=MEANWHILE, **TOGETHER)
    async with open_server(config=file) as server:
        await ask(server, "small")
        await server.ask("POST", "/v1/embeddings", {"model": "any", "input": "hi"})
        assert await told(server) == ("big", None)


async def test_a_load_that_failed_is_not_tried_again_with_every_request(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured(models("--fail-to-load"), selectors=MEANWHILE, **TOGETHER)) as server:
        await ask(server, "small")
        for _ in range(3):
            assert (await ask(server)).header(SAID) == "small; for=big"
            await until(lambda: (status := server.fleet.known("big")) is not None and status.error)
        assert await begins(server, "big") == 1
        assert (await ask(server, headers=NONE)).error["reason"] == "model_failed_to_start"
        configured(models(), selectors=MEANWHILE, **TOGETHER)
        await reload(server)
        assert (await ask(server)).header(SAID) == "small; for=big"
        await until(lambda: server.state("big") == "loaded")


async def test_the_load_waits_for_the_stand_in_that_it_evicts(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured(models(), selectors=MEANWHILE)) as server:
        await ask(server, "small")
        async with server.begun(chat("any", stream=True, tokens=1000, token_delay=0.05)) as small:
            await until(lambda: server.state("big") == "queued")
            assert server.state("small") == "loaded"
            await small.stream.aclose()
        await until(lambda: server.state("big") == "loaded")
        assert (await ask(server)).header(SAID) is None
        assert (await begins(server, "small"), await begins(server, "big")) == (1, 1)


async def test_a_stand_in_that_is_full_or_has_to_go_is_not_waited_for(open_server: OpenServer, configured: Configure):
    full = {**models(), "small": {"concurrencyLimit": 1}}
    impatient = {**models(), "big": {"patience": 0}}
    for told_models, groups, tokens in ((full, TOGETHER, 1000), (impatient, {}, 10)):
        async with open_server(config=configured(told_models, selectors=MEANWHILE, **groups)) as server:
            await ask(server, "small")
            async with server.begun(chat("any", stream=True, tokens=tokens, token_delay=0.05)):
                answer = await ask(server)
                assert (answer.status, answer.header(SAID)) == (200, None)
            assert await begins(server, "small") == 1


async def test_the_load_waits_for_the_last_turn_of_a_chat_with_tools(open_server: OpenServer, configured: Configure):
    files = Files()
    script = [{"calls": [{"name": "wait", "arguments": "{}", "id": "c1"}]}, {"text": "Done."}]
    body = {**chat("any", script=json.dumps(script)), "appliance": {"tools": ["wait"]}}
    async with open_server(config=configured(models(), selectors=MEANWHILE), tools=OpenToolbox([files])) as server:
        await ask(server, "small")
        async with server.asking(body) as answers:
            await files.begun.wait()
            assert server.state("big") == "unknown", "between the turns nothing keeps the stand-in"
            files.gate.set()
        assert (answers[0].status, answers[0].header(SAID)) == (200, "small; for=big")
        await until(lambda: server.state("big") == "loaded")
        assert (await begins(server, "small"), await begins(server, "big")) == (1, 1)


@pytest.mark.parametrize("up", [True, False])
async def test_a_peers_model_stands_in_unless_the_peer_is_down(
    open_server: OpenServer, configured: Configure, fake_model: Path, *, up: bool
):
    async with open_server(models=[model(fake_model, "far")]) as there:
        if not up:
            await there.end()
        theirs = {"peers": {"p": {"proxy": there.url, "models": ["far"]}}}
        chain = {"selectors": {"any": {"strategy": "meanwhile", "targets": ["big", "p/far", "small"]}}}
        async with open_server(config=configured(models(*SLOW), **theirs, **chain)) as server:
            if not up:
                await until(lambda: [peer.up for peer in server.owners.peers.snapshot()] == [False])
            answer = await ask(server)
            assert answer.status == 200
            assert answer.header(SAID) == ("p/far; for=big" if up else None)
            await until(lambda: server.state("big") == "loaded")
            assert (await ask(server)).header(SAID) is None
