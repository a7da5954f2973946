"""llama-swap's routes beside the models' own."""

from __future__ import annotations

from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path

import pytest
from http_harness import CHAT, Appliance, Client, OpenServer, chat, model
from swap_harness import Configure

from appliance.core.models.model import Model


@pytest.fixture
def models(fake_model: Path) -> list[Model]:
    return [model(fake_model, "alpha", "al"), model(fake_model, "org/beta")]


# ---- models ----------------------------------------------------------------------------------------------------------


async def test_what_runs(open_server: OpenServer, configured: Configure):
    file = configured(
        {
            "alpha": {"ttl": 30, "name": "A", "description": "first"},
            "org/beta": {},
            "slow": {"args": ("--load-delay", "5")},
        },
        groups={"all": {"swap": False, "members": ["alpha", "org/beta", "slow"]}},
    )
    async with open_server(config=file) as server:
        assert (await server.ask("GET", "/running")).json == {"running": []}
        for name in ("alpha", "org/beta"):
            await server.ask("POST", CHAT, chat(name))
        await server.ask("POST", "/models/load", {"model": "slow"})
        [alpha, beta, starting] = (await server.ask("GET", "/running")).json["running"]
        port = server.fleet.known("alpha").port
        assert alpha.pop("cmd").endswith(f" --port {port}")
        told = {"ttl": 30, "name": "A", "description": "first"}
        assert alpha == {"model": "alpha", "state": "ready", "proxy": f"http://127.0.0.1:{port}", **told}
        assert (beta["model"], beta["state"], beta["ttl"], beta["name"]) == ("org/beta", "ready", 0, "")
        assert (starting["model"], starting["state"]) == ("slow", "starting")
        assert (await server.ask("HEAD", "/running")).body == b""


async def test_what_runs_without_a_configuration(server: Appliance):
    await server.ask("POST", CHAT, chat("alpha"))
    [alpha] = (await server.ask("GET", "/running")).json["running"]
    assert "--model" in alpha["cmd"]
    assert alpha["proxy"] == f"http://127.0.0.1:{server.fleet.known('alpha').port}"
    assert (alpha["state"], alpha["ttl"]) == ("ready", 0)
    assert (await server.rows())[0]["has_capture"] is False


@pytest.mark.parametrize("way", ["GET /unload", "POST /api/models/unload"])
async def test_unloading_everything_waits_until_it_has_stopped(open_server: OpenServer, way: str, models: list[Model]):
    async with open_server(models=models) as server:
        for name in ("alpha", "org/beta"):
            await server.ask("POST", CHAT, chat(name))
        pids = [server.fleet.known(name).pid for name in ("alpha", "org/beta")]
        assert all(pids)
        answer = await server.good(*way.split())
        assert answer.json == {"msg": "ok"} if "api" in way else answer.body == b"OK"
        assert [server.state(name) for name in ("alpha", "org/beta")] == ["unloaded"] * 2
        assert (await server.ask(*way.split())).status == 200  # nothing runs, and that is fine


async def test_looking_unloads_nothing(server: Appliance):
    await server.ask("POST", CHAT, chat("alpha"))
    assert (await server.ask("HEAD", "/unload")).status == 200
    await server.refuses(403, "forbidden", "GET", "/unload", headers=[("Sec-Fetch-Site", "cross-site")])
    assert (await server.ask("GET", "/api/models/unload")).status == 404
    await server.refuses(404, "not_found", "POST", "/api/models/unload/no/such", words="model not found: 'no/such'")
    assert server.state("alpha") == "loaded"
    script = [("Sec-Fetch-Site", "cross-site"), ("Origin", "http://localhost:3000")]
    assert (await server.ask("GET", "/unload", headers=script)).status == 200
    assert server.state("alpha") == "unloaded"


@pytest.mark.parametrize("name", ["al", "org%2Fbeta"])
async def test_unloading_one_by_id_alias_or_with_slashes(open_server: OpenServer, name: str, models: list[Model]):
    async with open_server(models=models) as server:
        for other in ("alpha", "org/beta"):
            await server.ask("POST", CHAT, chat(other))
        answer = await server.ask("POST", f"/api/models/unload/{name}")
        assert (answer.status, answer.body) == (200, b"OK")
        states = {other: server.state(other) for other in ("alpha", "org/beta")}
        assert states.pop("org/beta" if "beta" in name else "alpha") == "unloaded"
        assert list(states.values()) == ["loaded"]
        assert (await server.ask("POST", f"/api/models/unload/{name}")).status == 200


# ---- profiles --------------------------------------------------------------------------------------------------------


async def test_profiles(open_server: OpenServer, configured: Configure):
    profiles = {
        "work": {"description": "at work", "pins": {"a": "alpha", "off": None}},
        "home": {"pins": {"b": "alpha"}},
    }
    async with open_server(config=configured({"alpha": {}}, profiles=profiles)) as server:
        assert (await server.ask("GET", "/api/profiles")).json == {
            "active": None,
            "profiles": [
                {"id": "home", "description": "", "pins": {"b": "alpha"}},
                {"id": "work", "description": "at work", "pins": {"a": "alpha", "off": None}},
            ],
        }
        chosen = await server.good("PUT", "/api/profiles/active", {"name": "work"})
        assert chosen.json == {"active": "work"}
        assert (await server.ask("GET", "/api/profiles")).json["active"] == "work"
        assert (await server.ask("POST", CHAT, chat("a"))).status == 200
        await server.refuses(404, "not_found", "PUT", "/api/profiles/active", {"name": "nope"})
        assert (await server.ask("GET", "/api/profiles")).json["active"] == "work"
        for none in (None, ""):
            await server.ask("PUT", "/api/profiles/active", {"name": "home"})
            assert (await server.ask("PUT", "/api/profiles/active", {"name": none})).json == {"active": None}


# ---- logs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["proxy", None])
async def test_the_combined_log(open_server: OpenServer, configured: Configure, mode: str | None):
    """`test_program_log.py` has every mode."""
    async with open_server(config=configured({"alpha": {}}, logToStdout=mode) if mode else None) as server:
        server.traffic.program_log.say("warn", "begin")
        server.fleet.logs.append("alpha", "printed")
        answer = await server.ask("GET", "/logs")
        assert answer.body == (b"[WARN] begin\n" if mode else b"[alpha] printed\n")
        assert answer.header("content-type") == "text/plain; charset=utf-8"
        page = await server.ask("GET", "/logs", headers=[("Accept", "text/html,*/*")])
        assert (page.status, page.header("location")) == (302, "ui/")


async def test_log_streams(open_server: OpenServer, configured: Configure):
    file = configured({"alpha": {"aliases": ["al"]}, "org/beta": {}}, logToStdout="both", logLevel="warn")
    streams = {
        "": ("[WARN] old\n[org/beta] old\n", "[WARN] new\n[org/beta] new\n[alpha] end\n"),
        "/proxy": ("[WARN] old\n", "[WARN] new\n"),
        "/upstream": ("[org/beta] old\n", "[org/beta] new\n[alpha] end\n"),
        "/org/beta": ("old\n", "new\n"),
        "/al": ("", "end\n"),
    }
    async with open_server(config=file) as server, AsyncExitStack() as stack:

        def say(text: str) -> None:
            server.traffic.program_log.say("warn", text)
            server.fleet.logs.append("org/beta", text)

        say("old")
        readers: dict[str, Client] = {}
        for path, history in product(streams, ("", "?no-history")):
            readers[path + history] = reader = await stack.enter_async_context(server.connect())
            await reader.send("GET", f"/logs/stream{path}{history}")
            headers = dict((await reader.head()).headers)
            assert (headers[b"x-content-type-options"], headers[b"x-accel-buffering"]) == (b"nosniff", b"no")
        say("new")
        server.fleet.logs.append("alpha", "end")
        for target, reader in readers.items():
            old, new = streams[target.removesuffix("?no-history")]
            expected = ("" if "?" in target else old) + new
            seen = ""
            while len(seen) < len(expected):
                seen += (await reader.data()).decode()
            assert seen == expected, target


async def test_bad_requests_are_the_callers_fault_and_say_where(server: Appliance):
    asked = "/api/metrics/activity?"
    questions = ("limit=0", "limit=1000", "page=0", "sort=colour", "start=yesterday")
    for target in ("/api/captures/x", *(f"{asked}{question}" for question in questions)):
        answer = await server.refuses(400, "invalid_request", "GET", target)
        assert answer.error["param"] in f"{target} id"
    for body in (b"", b"{", b"{}", b"[]", b'{"name":1}', b'{"other":null}'):
        await server.refuses(400, "invalid_request", "PUT", "/api/profiles/active", body)


async def test_a_log_is_searched_by_the_server(server: Appliance):
    await server.ask("POST", CHAT, chat("alpha"))
    await server.ask("POST", CHAT, chat("nobody"))
    everything = (await server.ask("GET", "/logs/stream/proxy?no-follow")).body.decode().splitlines()
    found = (await server.ask("GET", "/logs/stream/proxy?no-follow&search=CHAT/completions%20http")).body.decode()
    assert found.splitlines() == [line for line in everything if f"{CHAT} HTTP" in line]
    assert len(found.splitlines()) == 2
    await server.refuses(404, "model_not_found", "GET", "/logs/stream/alpa", words="'alpha'")
