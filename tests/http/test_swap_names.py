"""Names that stand for a model: aliases, profiles' pins, selectors, peers; and the name that each server is told."""

from __future__ import annotations

import json
from pathlib import Path

from http_harness import CHAT, Appliance, OpenServer, chat, model
from swap_harness import Configure
from waiting import until

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
