"""Names that stand for a model: aliases, profiles' pins, selectors, stand-ins, peers; and the name that is sent."""

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

ECHO = {"echo": True}
ANY = {"groups": {"all": {"swap": False, "members": ["alpha", "beta", "gamma"]}}}
"""All models may run together."""


def three(**keys: object) -> dict[str, dict[str, object]]:
    return {name: dict(keys) for name in ("alpha", "beta", "gamma")}


async def named(server: Appliance, name: str, target: str = CHAT) -> tuple[str, str]:
    """The name that reached the engine, and the model whose engine it was."""
    answer = await server.good("POST", target, chat(name, **ECHO))
    ports = {status.port: status.model for status in server.fleet.status() if status.port}
    row = (await server.rows())[0]
    assert row["model"] in ports.values()
    return json.loads(answer.json["body"])["model"], row["model"]


async def test_the_requested_name_goes_upstream(open_server: OpenServer, configured: Configure):
    models = {"alpha": {"aliases": ["al", "org/al:7b"]}, "beta": {"useModelName": "weights", "aliases": ["be"]}}
    async with open_server(config=configured(models)) as server:
        for name in ("alpha", "al", "org/al:7b"):
            assert await named(server, name) == (name, "alpha")
        for name in ("beta", "be"):
            assert await named(server, name) == ("weights", "beta")


# ---- profiles --------------------------------------------------------------------------------------------------------

PROFILES = {
    "work": {"pins": {"chat": "beta", "alpha": "be", "gone": None}},
    "play": {"pins": {"chat": "pool", "gamma": ""}},
}


async def test_a_profile_changes_what_names_mean_while_the_server_runs(open_server: OpenServer, configured: Configure):
    """`tests/traffic/test_targets.py` has the names."""
    models = three()
    models["beta"]["aliases"] = ["be"]
    selectors = {"pool": {"strategy": "pin", "targets": ["gamma", "beta"]}}
    async with open_server(config=configured(models, profiles=PROFILES, selectors=selectors, **ANY)) as server:
        assert (await server.ask("POST", CHAT, chat("chat"))).status == 404
        await server.good("PUT", "/api/profiles/active", {"name": "work"})
        assert await named(server, "chat") == ("beta", "beta")
        assert await named(server, "alpha") == ("be", "beta")
        await server.refuses(404, "model_not_found", "POST", CHAT, chat("gone"))
        passed = await server.ask("POST", f"/upstream/chat{CHAT}", chat("whatever", **ECHO))
        assert json.loads(passed.json["body"])["model"] == "whatever"
        assert "chat" in [entry["id"] for entry in (await server.ask("GET", "/v1/models")).json["data"]]
        await server.good("PUT", "/api/profiles/active", {"name": "play"})
        assert await named(server, "chat") == ("gamma", "gamma")
        assert (await server.ask("GET", "/upstream/gamma/health")).status == 404
        await server.good("PUT", "/api/profiles/active", {"name": None})
        assert await named(server, "gamma") == ("gamma", "gamma")


# ---- selectors -------------------------------------------------------------------------------------------------------


def selector(strategy: str, *targets: str, **settings: object) -> dict[str, object]:
    told: dict[str, object] = {"strategy": strategy, "targets": list(targets)}
    if settings:
        told["settings"] = settings
    return told


async def test_a_pin_is_always_its_first(open_server: OpenServer, configured: Configure):
    models = three(filters={"setParamsByID": {"be": {"x": 1}}})
    models["alpha"]["filters"] = models["gamma"]["filters"] = {}
    file = configured(models, selectors={"any": selector("pin", "be", "alpha")}, **ANY)
    async with open_server(config=file) as server:
        await named(server, "alpha")
        assert await named(server, "any") == ("be", "beta")
        assert json.loads((await server.ask("POST", CHAT, chat("any", **ECHO))).json["body"])["x"] == 1
        assert (await server.rows())[0]["metadata"]["selector"] == "any"
        assert (await server.ask("GET", "/upstream/any/health")).status == 404


async def test_spillover_begins_another_model_when_one_is_busy(open_server: OpenServer, configured: Configure):
    """`tests/core/scheduling/test_routing.py` has the rule."""
    pool = selector("spillover", "alpha", "beta", "gamma", spillover=2)
    async with open_server(config=configured(three(), selectors={"pool": pool}, **ANY)) as server:
        async with server.asking(chat("pool", tokens=10, token_delay=0.1), times=5) as answers:
            await until(lambda: sum(s.leases + s.waiting for s in server.fleet.status()) == 5)
            assert sorted(s.leases + s.waiting for s in server.fleet.status()) == [1, 2, 2]
        assert [answer.status for answer in answers] == [200] * 5
        await until(lambda: not any(s.leases + s.waiting for s in server.fleet.status()))


async def test_the_reservation_of_a_client_that_left_is_given_back(open_server: OpenServer, configured: Configure):
    pool = selector("spillover", "alpha", "beta", spillover=1)
    async with open_server(config=configured(three(), selectors={"pool": pool}, **ANY)) as server:
        async with server.begun(chat("pool", stream=True, tokens=1000, token_delay=0.1)):
            pass
        await server.wait_idle("alpha")
        assert await named(server, "pool") == ("alpha", "alpha")
        assert server.state("beta") == "unknown"


# ---- peers -----------------------------------------------------------------------------------------------------------


async def test_a_peer_gets_its_own_names_and_nothing_of_the_client(
    open_server: OpenServer, configured: Configure, fake_model: Path
):
    async with open_server(models=[model(fake_model, "org/big"), model(fake_model, "small")]) as far:
        peer = {"proxy": far.url, "models": ["org/big", "small"]}
        peer["filters"] = {"setParams": {"x": 1}, "stripParams": "top_k"}
        ours = configured({"small": {}}, peers={"far": peer}, selectors={"any": selector("pin", "far/org/big")})
        mine = [("Authorization", "Bearer mine"), ("X-Forwarded-For", "1.2.3.4"), ("Host", "here.localhost")]
        async with open_server(config=ours) as server:
            for name in ("far/org/big", "org/big", "any"):
                answer = await server.good("POST", CHAT, {**chat(name, **ECHO), "top_k": 1}, mine)
                body = json.loads(answer.json["body"])
                assert (body["model"], body["x"], "top_k" in body) == ("org/big", 1, False)
                head = answer.json["head"].lower()
                assert not any(mark in head for mark in ("bearer mine", "here.localhost", "1.2.3.4"))
            assert await named(server, "small") == ("small", "small")
            passed = await server.ask("POST", f"/upstream/far/org/big{CHAT}?a=%2F", chat("org/big", **ECHO))
            assert passed.json["head"].startswith(f"POST {CHAT}?a=%2F HTTP/1.1")
            assert "x" not in json.loads(passed.json["body"])
            lists = await server.ask("GET", "/v1/audio/voices?model=far/org/big&z=1")
            assert lists.status == 404  # the engine there has no voices, but was asked by its own name
            assert "org/big" not in str(lists.json.get("error", {}).get("message", ""))
            told = {(row["model"], row.get("metadata", {}).get("peer")) for row in await server.rows()}
            assert told == {("far/org/big", "far"), ("small", None)}


async def shown(server: Appliance, path: str, *, has: str) -> dict[str, object]:
    """The answer as soon as it has that in it."""
    return (await until(lambda: server.ask("GET", path), lambda answer: has in answer.body.decode())).json


async def test_of_two_appliances_each_shows_what_the_other_has_loaded(open_server: OpenServer, configured: Configure):
    async with open_server() as there:
        async with open_server(config=configured({"gamma": {}}, peers={"box": {"proxy": there.url}})) as here:
            await here.ask("POST", CHAT, chat("gamma"))
            await shown(here, "/api/peers", has='"id":"alpha"')
            assert (await here.ask("POST", CHAT, chat("box/alpha"))).status == 200
            [peer] = (await shown(here, "/api/peers", has='"state":"loaded"'))["peers"]
            assert (peer["id"], peer["up"], peer["linked"], peer["error"]) == ("box", True, True, None)
            assert {model["id"]: model["state"] for model in peer["models"]}["alpha"] == "loaded"
            [guest] = (await shown(there, "/api/peers", has='"id":"gamma","state":"loaded"'))["guests"]
            assert guest["address"] == "127.0.0.1"
        await until(lambda: there.ask("GET", "/api/peers"), lambda answer: not answer.json["guests"])


async def test_a_disabled_model_is_neither_listed_nor_served(open_server: OpenServer, configured: Configure):
    models = {"alpha": {"disabled": True, "aliases": ["al"]}, "beta": {}}
    keys = {"hooks": {"on_startup": {"preload": ["alpha"]}}, "groups": {"g": {"members": ["alpha", "beta"]}}}
    async with open_server(config=configured(models, **keys)) as server:
        listed = (await server.ask("GET", "/v1/models")).json["data"]
        assert [entry["id"] for entry in listed] == ["beta"]
        for name in ("alpha", "al"):
            why = "models.alpha.disabled in the configuration switches it off"
            await server.refuses(404, "model_not_found", "POST", CHAT, chat(name), words=why)
        assert (await server.ask("POST", CHAT, chat("beta"))).status == 200


SAID = "X-Appliance-Meanwhile"
NONE = [(SAID, "none")]
MEANWHILE = {"any": {"strategy": "meanwhile", "targets": ["big", "small"]}}
TOGETHER = {"groups": {"all": {"swap": False, "members": ["big", "small"]}}}
SLOW = ("--load-delay", "1.5")


def big_and_small(*args: str) -> dict[str, dict[str, object]]:
    """``args`` are the big model's."""
    return {"big": {"args": args}, "small": {}}


async def ask_any(
    server: Appliance, name: str = "any", headers: Sequence[tuple[str, str]] = (), query: str = ""
) -> Answer:
    return await server.ask("POST", CHAT + query, chat(name), headers)


async def test_a_stand_in_is_never_loaded_and_is_alone_where_nothing_may_be(
    open_server: OpenServer, configured: Configure
):
    async with open_server(config=configured(big_and_small(), selectors=MEANWHILE, **TOGETHER)) as server:
        answer = await ask_any(server)
        assert (answer.status, answer.header(SAID)) == (200, None)
        assert await answered_by(server) == ("big", None)
        assert server.state("small") == "unknown"
        await ask_any(server, "small")
        await server.fleet.unload("big")
        answer = await ask_any(server, query="?autoload=false")
        assert (answer.status, answer.header(SAID)) == (200, "small; for=big")
        assert server.state("big") == "unloaded"


async def begins(server: Appliance, model: str) -> int:
    """How often a load of the model has begun."""
    entries = (await server.ask("GET", f"/api/history?kind=loading&model={model}")).json["data"]
    return sum(entry["model"] == model for entry in entries)


async def answered_by(server: Appliance) -> tuple[str, str | None]:
    """The model that had the newest request, and for which one it stood in."""
    row = (await server.rows())[0]
    return row["model"], row.get("metadata", {}).get("meanwhile")


async def test_the_stand_in_answers_until_the_wanted_model_is_ready(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured(big_and_small(*SLOW), selectors=MEANWHILE, **TOGETHER)) as server:
        await ask_any(server, "small")
        answer = await ask_any(server)
        assert (answer.status, answer.header(SAID)) == (200, "small; for=big")
        assert await answered_by(server) == ("small", "big")
        await until(lambda: server.state("big") == "loaded")
        answer = await ask_any(server)
        assert (answer.status, answer.header(SAID)) == (200, None)
        assert await answered_by(server) == ("big", None)
        assert await begins(server, "big") == 1


async def test_every_kind_of_stream_says_so_before_its_first_word(open_server: OpenServer, configured: Configure):
    file = configured(big_and_small("--never-ready"), selectors=MEANWHILE, **TOGETHER)
    async with open_server(config=file, ping_after=0.1) as server:
        await ask_any(server, "small")
        answer = await server.ask("POST", CHAT, chat("any", stream=True, slow_prompt=0.5))
        assert answer.body.startswith(b": ping")
        assert answer.header(SAID) == "small; for=big"
        kept = await server.ask("POST", CHAT, chat("any", stream=True), [("X-Conversation-Id", "c")])
        assert kept.header(SAID) == "small; for=big"
        assert (await server.ask("POST", "/api/chat", chat("any"))).header(SAID) == "small; for=big"
        assert await begins(server, "big") == 1


async def test_a_client_may_refuse_a_stand_in(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured(big_and_small(*SLOW), selectors=MEANWHILE, **TOGETHER)) as server:
        await ask_any(server, "small")
        answer = await ask_any(server, headers=NONE)
        assert (answer.status, answer.header(SAID)) == (200, None)
        assert await answered_by(server) == ("big", None)
        for name in ("any", "small"):
            wrong = await ask_any(server, name, [(SAID, "maybe")])
            assert (wrong.status, wrong.error["type"]) == (400, "invalid_request_error")
            assert wrong.error["message"] == "the X-Appliance-Meanwhile header is 'maybe'; leave it out, or send 'none'"


async def test_nothing_stands_in_where_no_text_is_made(open_server: OpenServer, configured: Configure):
    file = configured({"big": {}, "small": {"args": ("--embeddings",)}}, selectors=MEANWHILE, **TOGETHER)
    async with open_server(config=file) as server:
        await ask_any(server, "small")
        await server.ask("POST", "/v1/embeddings", {"model": "any", "input": "hi"})
        assert await answered_by(server) == ("big", None)


async def test_a_load_that_failed_is_not_tried_again_with_every_request(open_server: OpenServer, configured: Configure):
    async with open_server(
        config=configured(big_and_small("--fail-to-load"), selectors=MEANWHILE, **TOGETHER)
    ) as server:
        await ask_any(server, "small")
        for _ in range(3):
            assert (await ask_any(server)).header(SAID) == "small; for=big"
            await until(lambda: (status := server.fleet.known("big")) is not None and status.error)
        assert await begins(server, "big") == 1
        assert (await ask_any(server, headers=NONE)).error["reason"] == "model_failed_to_start"
        configured(big_and_small(), selectors=MEANWHILE, **TOGETHER)
        await reload(server)
        assert (await ask_any(server)).header(SAID) == "small; for=big"
        await until(lambda: server.state("big") == "loaded")


async def test_the_load_waits_for_the_stand_in_that_it_evicts(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured(big_and_small(), selectors=MEANWHILE)) as server:
        await ask_any(server, "small")
        async with server.begun(chat("any", stream=True, tokens=1000, token_delay=0.05)) as small:
            await until(lambda: server.state("big") == "queued")
            assert server.state("small") == "loaded"
            await small.stream.aclose()
        await until(lambda: server.state("big") == "loaded")
        assert (await ask_any(server)).header(SAID) is None
        assert (await begins(server, "small"), await begins(server, "big")) == (1, 1)


async def test_a_stand_in_that_is_full_or_has_to_go_is_not_waited_for(open_server: OpenServer, configured: Configure):
    full = {**big_and_small(), "small": {"concurrencyLimit": 1}}
    impatient = {**big_and_small(), "big": {"patience": 0}}
    for told_models, groups, tokens in ((full, TOGETHER, 1000), (impatient, {}, 10)):
        async with open_server(config=configured(told_models, selectors=MEANWHILE, **groups)) as server:
            await ask_any(server, "small")
            async with server.begun(chat("any", stream=True, tokens=tokens, token_delay=0.05)):
                answer = await ask_any(server)
                assert (answer.status, answer.header(SAID)) == (200, None)
            assert await begins(server, "small") == 1


async def test_the_load_waits_for_the_last_turn_of_a_chat_with_tools(open_server: OpenServer, configured: Configure):
    files = Files()
    script = [{"calls": [{"name": "wait", "arguments": "{}", "id": "c1"}]}, {"text": "Done."}]
    body = {**chat("any", script=json.dumps(script)), "appliance": {"tools": ["wait"]}}
    async with open_server(
        config=configured(big_and_small(), selectors=MEANWHILE), tools=OpenToolbox([files])
    ) as server:
        await ask_any(server, "small")
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
        async with open_server(config=configured(big_and_small(*SLOW), **theirs, **chain)) as server:
            if not up:
                await until(lambda: [peer.up for peer in server.owners.peers.snapshot()] == [False])
            answer = await ask_any(server)
            assert answer.status == 200
            assert answer.header(SAID) == ("p/far; for=big" if up else None)
            await until(lambda: server.state("big") == "loaded")
            assert (await ask_any(server)).header(SAID) is None
