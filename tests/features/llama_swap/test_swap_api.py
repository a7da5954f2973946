"""llama-swap's routes beside the models' own."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from pathlib import Path
from urllib.parse import quote

import pytest
import trio
from http_harness import CHAT, Appliance, Client, OpenServer, chat, model
from quart import Response
from quart_trio import QuartTrio
from swap_harness import Configure

from appliance.core.machine import Hardware
from appliance.core.models.model import Model
from appliance.errors import ApplianceError
from appliance.features.llama_swap import routes as swap_api
from appliance.features.llama_swap.routes import RecordRoutes
from appliance.http.errors import describe
from appliance.platform.drivers import Gpus
from appliance.platform.hardware import detect
from appliance.platform.samples import open_samples
from appliance.store.activity import open_activity
from appliance.store.history import open_history
from appliance.traffic.recorder import open_recorder


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


# ---- records ---------------------------------------------------------------------------------------------------------


async def test_activity_statistics_and_captures(
    open_server: OpenServer, configured: Configure, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(swap_api, "MAX_LIMIT", 1)  # an export takes more than one look
    file = configured({"alpha": {"aliases": ["al"]}, "beta": {}}, captureBuffer=5)
    async with open_server(config=file) as server:
        empty = (await server.ask("GET", "/api/metrics/activity")).json
        assert empty == {"data": [], "page": 1, "limit": 25, "total": 0, "total_pages": 0}
        await server.ask("POST", CHAT, chat("al"), headers=[("Authorization", "Bearer secret")])
        await server.ask("POST", CHAT, chat("beta", stream=True))
        page = (await server.ask("GET", "/api/metrics/activity?limit=1&sort=id&order=asc")).json
        assert (page["total"], page["total_pages"]) == (2, 2)
        [first] = page["data"]
        assert (first["client"], first["build"]) == ("127.0.0.1", ""), "its command is the configuration's"
        assert 0 <= first["first_token_ms"] <= first["duration_ms"]
        assert (first["model"], first["req_path"], first["resp_status_code"]) == ("alpha", CHAT, 200)
        assert first["has_capture"] is True
        some = (await server.ask("GET", "/api/metrics/activity?model=beta&model=gamma")).json["data"]
        assert [found["model"] for found in some] == ["beta"]
        assert (await server.ask("GET", "/api/metrics/activity?failed=1")).json["total"] == 0
        assert (await server.ask("GET", "/api/metrics/activity?search=BETA")).json["total"] == 1
        exported = await server.ask("GET", "/api/metrics/activity/export?format=csv")
        assert [line.split(",")[2] for line in exported.body.decode().splitlines()] == ["model", "beta", "alpha"]
        exported = await server.ask("GET", "/api/metrics/activity/export?model=beta")
        assert [json.loads(line)["model"] for line in exported.body.splitlines()] == ["beta"]
        assert int(json.loads(exported.body)["metadata"]["waited_ms"]) > 0, "its model was loaded for it"
        assert (await server.ask("GET", "/api/metrics/activity/export?format=xml")).error["param"] == "format"
        stats = (await server.ask("GET", "/api/metrics/stats")).json
        assert (stats["total_requests"], stats["total_output_tokens"] > 0) == (2, True)
        assert (await server.ask("GET", "/api/metrics/stats?model=gamma")).json["gen_histogram"] is None
        capture = (await server.ask("GET", f"/api/captures/{first['id']}")).json
        assert capture["req_path"] == CHAT
        assert capture["req_headers"]["Authorization"] == "[REDACTED]"
        assert b'"al"' in base64.b64decode(capture["req_body"])
        assert b"choices" in base64.b64decode(capture["resp_body"])
        await server.refuses(404, "not_found", "GET", "/api/captures/999")


async def test_bad_requests_are_the_callers_fault_and_say_where(server: Appliance):
    asked = "/api/metrics/activity?"
    questions = ("limit=0", "limit=1000", "page=0", "sort=colour", "start=yesterday")
    for target in ("/api/captures/x", *(f"{asked}{question}" for question in questions)):
        answer = await server.refuses(400, "invalid_request", "GET", target)
        assert answer.error["param"] in f"{target} id"
    for body in (b"", b"{", b"{}", b"[]", b'{"name":1}', b'{"other":null}'):
        await server.refuses(400, "invalid_request", "PUT", "/api/profiles/active", body)


@asynccontextmanager
async def records(
    every: float | None, detect: Callable[[], Awaitable[Hardware | None]] = detect
) -> AsyncGenerator[Callable[[str], Awaitable[Response]]]:
    """Ask the routes of a Quart application about a machine that is sampled so often."""
    app = QuartTrio("appliance.http", static_folder=None)

    async def refuse(error: ApplianceError) -> tuple[str, int]:
        return str(error), describe(error).code

    app.register_error_handler(ApplianceError, refuse)
    async with (
        open_activity(None, 10) as activity,
        open_recorder(activity) as recorder,
        open_history(None, 10) as history,
        open_samples(Gpus(None), every) as samples,
    ):
        told = RecordRoutes(recorder, history, samples, detect)
        app.add_url_rule("/api/performance", "performance", told.performance)
        app.add_url_rule("/api/hardware", "hardware", told.hardware)
        yield app.test_client().get


async def test_performance(server: Appliance):
    off = await server.ask("GET", "/api/performance")
    assert (off.status, off.json) == (503, {"enabled": False})
    async with records(0.05) as get:
        on = {"sys_stats": []}
        with trio.fail_after(10):
            while not on["sys_stats"]:
                on = await (await get("/api/performance")).get_json()
        assert on["enabled"] is True
        assert on["sys_stats"][0]["mem_total_mb"] > 0
        assert "gpu_stats" in on
        later = quote("2100-01-01T00:00:00+02:00")
        assert (await (await get(f"/api/performance?after={later}")).get_json())["sys_stats"] == []
        for wrong in ("noon", "2026-01-01T00:00:00"):
            refused = await get(f"/api/performance?after={wrong}")
            assert refused.status_code == 400
            assert "after must be" in await refused.get_data(as_text=True)


async def test_hardware_and_version(server: Appliance):
    async def fail() -> None:
        return None

    async with records(None, fail) as get:
        refused = await get("/api/hardware")
        assert refused.status_code == 503
        assert "cannot be described" in await refused.get_data(as_text=True)
    hardware = await server.good("GET", "/api/hardware")
    assert hardware.json["cpu"]["logical_thread_count"] >= 1
    assert (await server.ask("GET", "/api/hardware")).json == hardware.json  # looked at once
    version = (await server.ask("GET", "/api/version")).json
    assert sorted(version) == ["build_date", "commit", "llama_appliance", "version"]


async def test_a_log_is_searched_by_the_server(server: Appliance):
    await server.ask("POST", CHAT, chat("alpha"))
    await server.ask("POST", CHAT, chat("nobody"))
    everything = (await server.ask("GET", "/logs/stream/proxy?no-follow")).body.decode().splitlines()
    found = (await server.ask("GET", "/logs/stream/proxy?no-follow&search=CHAT/completions%20http")).body.decode()
    assert found.splitlines() == [line for line in everything if f"{CHAT} HTTP" in line]
    assert len(found.splitlines()) == 2
    await server.refuses(404, "model_not_found", "GET", "/logs/stream/alpa", words="'alpha'")
