"""llama-swap's routes beside the models' own."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
import trio
from http_harness import CHAT, chat, model
from swap_harness import OpenSwap, open_swap

from appliance.catalog.configuration import Configuration, Files
from appliance.core.captures import Exchange, pack
from appliance.core.config.types import Config, ModelConfig, Profile
from appliance.http.request import PUBLIC_PATHS
from appliance.wire.activity import Row, Tokens


@pytest.fixture
def open_server(fake_llama_server, fake_model: Path) -> OpenSwap:
    return partial(open_swap, fake_llama_server, fake_model)


# ---- models ----------------------------------------------------------------------------------------------------------


async def test_what_runs(open_server: OpenSwap, fake_model: Path):
    config = Config(
        models={"alpha": ModelConfig(cmd="run it", proxy="http://x:1", ttl=30, name="A", description="first")}
    )
    slow = model(fake_model, "slow", args=("--load-delay", "5"))
    models = [model(fake_model, "alpha"), model(fake_model, "org/beta"), slow]
    async with open_server(models=models, config=config) as server:
        assert (await server.ask("GET", "/running")).json == {"running": []}
        await server.ask("POST", f"{CHAT}?model=alpha", chat("alpha"))
        await server.ask("POST", f"{CHAT}?model=org/beta", chat("org/beta"))
        await server.fleet.load(slow, wait=False)
        [alpha, beta, starting] = (await server.ask("GET", "/running")).json["running"]
        assert alpha == {
            "model": "alpha",
            "state": "ready",
            "cmd": "run it",
            "proxy": "http://x:1",
            "ttl": 30,
            "name": "A",
            "description": "first",
        }
        assert (beta["model"], beta["state"], beta["ttl"], beta["name"]) == ("org/beta", "ready", 0, "")
        assert "--model" in beta["cmd"]
        assert beta["proxy"] == f"http://127.0.0.1:{server.fleet.known('org/beta').port}"
        assert (starting["model"], starting["state"]) == ("slow", "starting")
        assert (await server.ask("HEAD", "/running")).body == b""


@pytest.mark.parametrize("way", ["GET /unload", "POST /api/models/unload"])
async def test_unloading_everything_waits_until_it_has_stopped(open_server: OpenSwap, way: str):
    async with open_server() as server:
        for name in ("alpha", "org/beta"):
            await server.ask("POST", f"{CHAT}?model={name}", chat(name))
        pids = [server.fleet.known(name).pid for name in ("alpha", "org/beta")]
        assert all(pids)
        answer = await server.ask(*way.split())
        assert answer.status == 200
        assert answer.json == {"msg": "ok"} if "api" in way else answer.body == b"OK"
        assert [server.state(name) for name in ("alpha", "org/beta")] == ["unloaded"] * 2
        assert (await server.ask(*way.split())).status == 200  # nothing runs, and that is fine


async def test_looking_unloads_nothing(open_server: OpenSwap):
    async with open_server() as server:
        await server.ask("POST", f"{CHAT}?model=alpha", chat("alpha"))
        assert (await server.ask("HEAD", "/unload")).status == 200
        drive_by = await server.ask("GET", "/unload", headers=[("Sec-Fetch-Site", "cross-site")])
        assert (drive_by.status, drive_by.error["reason"]) == (403, "forbidden")
        assert (await server.ask("GET", "/api/models/unload")).status == 404
        assert server.state("alpha") == "loaded"
        script = [("Sec-Fetch-Site", "cross-site"), ("Origin", "http://localhost:3000")]
        assert (await server.ask("GET", "/unload", headers=script)).status == 200
        assert server.state("alpha") == "unloaded"


@pytest.mark.parametrize("name", ["alpha", "al", "org/beta", "org%2Fbeta"])
async def test_unloading_one_by_id_alias_or_with_slashes(open_server: OpenSwap, name: str):
    async with open_server() as server:
        for other in ("alpha", "org/beta"):
            await server.ask("POST", f"{CHAT}?model={other}", chat(other))
        answer = await server.ask("POST", f"/api/models/unload/{name}")
        assert (answer.status, answer.body) == (200, b"OK")
        states = {other: server.state(other) for other in ("alpha", "org/beta")}
        gone = "org/beta" if "beta" in name else "alpha"
        assert states.pop(gone) == "unloaded"
        assert list(states.values()) == ["loaded"]
        assert (await server.ask("POST", f"/api/models/unload/{name}")).status == 200


async def test_unloading_what_does_not_exist(open_server: OpenSwap):
    async with open_server() as server:
        answer = await server.ask("POST", "/api/models/unload/no/such")
        assert (answer.status, answer.error["reason"]) == (404, "not_found")
        assert "model not found: 'no/such'" in answer.error["message"]


# ---- profiles --------------------------------------------------------------------------------------------------------


async def test_profiles(open_server: OpenSwap):
    profiles = {
        "work": Profile(description="at work", pins={"a": "alpha", "off": None}),
        "home": Profile(pins={"b": "alpha"}),
    }
    async with open_server(config=Config(profiles=profiles)) as server:
        assert (await server.ask("GET", "/api/profiles")).json == {
            "active": None,
            "profiles": [
                {"id": "home", "description": "", "pins": {"b": "alpha"}},
                {"id": "work", "description": "at work", "pins": {"a": "alpha", "off": None}},
            ],
        }
        chosen = await server.ask("PUT", "/api/profiles/active", {"name": "work"})
        assert (chosen.status, chosen.json) == (200, {"active": "work"})
        assert server.profile.name == "work"
        assert (await server.ask("GET", "/api/profiles")).json["active"] == "work"
        unknown = await server.ask("PUT", "/api/profiles/active", {"name": "nope"})
        assert (unknown.status, unknown.error["reason"]) == (404, "not_found")
        assert server.profile.name == "work"
        for none in (None, ""):
            server.profile.choose("home")
            assert (await server.ask("PUT", "/api/profiles/active", {"name": none})).json == {"active": None}


@pytest.mark.parametrize("body", [b"", b"{", b"{}", b"[]", b'{"name":1}', b'{"other":null}'])
async def test_a_bad_choice_of_profile(open_server: OpenSwap, body: bytes):
    async with open_server() as server:
        answer = await server.ask("PUT", "/api/profiles/active", body)
        assert (answer.status, answer.error["reason"]) == (400, "invalid_request")


# ---- configuration ---------------------------------------------------------------------------------------------------


async def test_without_a_file_there_is_nothing_to_reload(open_server: OpenSwap):
    async with open_server() as server:
        answer = await server.ask("POST", "/api/config/reload")
        assert (answer.status, "without a configuration file" in answer.error["message"]) == (400, True)


async def test_reloading_a_real_file(open_server: OpenSwap, tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_text("models: {a: {cmd: 'x --port ${PORT}'}}\n")
    files = Files(config=path)
    configuration = Configuration(files, files.read().require())
    configuration.followers.append(lambda config: config.models)
    async with open_server(reload=configuration.reload) as server:
        path.write_text("modles: {}\nmodels: {a: {cmd: 'x --port ${PORT}'}, b: {cmd: 'x --port ${PORT}'}}\n")
        answer = await server.ask("POST", "/api/config/reload")
        assert (answer.status, answer.json["success"], answer.json["changed"]) == (200, True, ["a", "b"])
        assert (await server.ask("GET", "/api/config/reload")).status == 404
        [warning] = answer.json["warnings"]
        assert f"{path}:1:1" in warning
        path.write_text("models: {a: {ttl: x}}\nglobalTTL: -1\n")
        answer = await server.ask("POST", "/api/config/reload")
        assert (answer.status, answer.error["reason"]) == (400, "invalid_config")
        assert "models.a.ttl" in answer.error["message"]
        assert "globalTTL" in answer.error["message"]
        path.write_text("models: {}\n")
        both: list[int] = []

        async def ask() -> None:
            both.append((await server.ask("POST", "/api/config/reload")).status)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(ask)
        assert sorted(both) in ([200, 200], [200, 409])


# ---- logs ------------------------------------------------------------------------------------------------------------


async def test_the_combined_log(open_server: OpenSwap):
    async with open_server(config=Config(log_to_stdout="both")) as server:
        server.log.say("info", "begin")
        server.fleet.logs.append("alpha", "printed")
        answer = await server.ask("GET", "/logs")
        assert answer.body == b"[INFO] begin\n[alpha] printed\n"
        assert answer.header("content-type") == "text/plain; charset=utf-8"
        page = await server.ask("GET", "/logs", headers=[("Accept", "text/html,*/*")])
        assert (page.status, page.header("location")) == (302, "ui/")
        server.adopt(Config())
        assert (await server.ask("GET", "/logs")).body == b"[INFO] begin\n"
        server.adopt(None)
        assert (await server.ask("GET", "/logs")).body == b"[alpha] printed\n"


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("", "[INFO] old\n[org/beta] old\n", "[INFO] new\n[org/beta] new\n"),
        ("/proxy", "[INFO] old\n", "[INFO] new\n"),
        ("/upstream", "[org/beta] old\n", "[org/beta] new\n"),
        ("/org/beta", "old\n", "new\n"),
        ("/al", "", ""),
    ],
)
@pytest.mark.parametrize("history", [True, False])
async def test_log_streams(open_server: OpenSwap, path: str, old: str, new: str, history: bool):
    async with open_server(config=Config(log_to_stdout="both")) as server, server.connect() as reader:

        def say(text: str) -> None:
            server.log.say("info", text)
            server.fleet.logs.append("org/beta", text)

        say("old")
        await reader.send("GET", f"/logs/stream{path}{'' if history else '?no-history'}")
        headers = dict((await reader.head()).headers)
        assert headers[b"x-content-type-options"] == b"nosniff"
        assert headers[b"x-accel-buffering"] == b"no"
        say("new")
        server.fleet.logs.append("alpha", "end")
        last = {"": "[alpha] end\n", "/upstream": "[alpha] end\n", "/al": "end\n"}.get(path, "")
        expected = (old if history else "") + new + last
        seen = ""
        with trio.fail_after(5):
            while len(seen) < len(expected):
                seen += (await reader.data()).decode()
        assert seen == expected


async def test_log_streams_of_nobody_and_their_end(open_server: OpenSwap):
    async with open_server() as server:
        unknown = await server.ask("GET", "/logs/stream/alpa")
        assert (unknown.status, unknown.error["reason"]) == (404, "model_not_found")
        assert "'alpha'" in unknown.error["message"]
        assert (await server.ask("HEAD", "/logs/stream/proxy")).body == b""
        async with server.connect() as reader:
            await reader.send("GET", "/logs/stream/proxy")
            await reader.head()
            server.lifetime.end_followers()
            with trio.fail_after(2):
                assert await reader.data() == b""


# ---- records ---------------------------------------------------------------------------------------------------------


def row(model_id: str = "alpha", **more: object) -> Row:
    given = {
        "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
        "model": model_id,
        "req_path": CHAT,
        "resp_status_code": 200,
        "duration_ms": 5,
        **more,
    }
    return Row(**given)


async def test_activity_statistics_and_captures(open_server: OpenSwap):
    async with open_server() as server:
        empty = (await server.ask("GET", "/api/metrics/activity")).json
        assert empty == {"data": [], "page": 1, "limit": 25, "total": 0, "total_pages": 0}
        tokens = Tokens(input_tokens=3, output_tokens=4, tokens_per_second=9.0)
        first = server.activity.add(row(tokens=tokens))
        second = server.activity.add(row("beta"))
        exchange = Exchange(req_path=CHAT, req_headers={"A": "b"}, req_body=pack(b"{}", 1000))
        assert server.captures.add(first, exchange)
        page = (await server.ask("GET", "/api/metrics/activity?limit=1&sort=id&order=asc")).json
        assert (page["total"], page["total_pages"], len(page["data"])) == (2, 2, 1)
        assert (page["data"][0]["id"], page["data"][0]["has_capture"]) == (first, True)
        some = (await server.ask("GET", "/api/metrics/activity?model=beta&model=gamma")).json["data"]
        assert [(found["id"], found["has_capture"]) for found in some] == [(second, False)]
        stats = (await server.ask("GET", "/api/metrics/stats")).json
        assert (stats["total_requests"], stats["total_input_tokens"]) == (2, 3)
        assert stats["gen_histogram"]["p50"] == 9.0
        assert (await server.ask("GET", "/api/metrics/stats?model=beta")).json["gen_histogram"] is None
        capture = (await server.ask("GET", f"/api/captures/{first}")).json
        assert (capture["req_path"], capture["req_headers"]) == (CHAT, {"A": "b"})
        assert base64.b64decode(capture["req_body"]) == b"{}"
        assert capture["resp_body"] is None
        missing = await server.ask("GET", f"/api/captures/{second}")
        assert (missing.status, missing.error["reason"]) == (404, "not_found")


@pytest.mark.parametrize(
    "target",
    ["/api/captures/x", "/api/metrics/activity?limit=0", "/api/metrics/activity?limit=1000",
     "/api/metrics/activity?page=0", "/api/metrics/activity?sort=colour", "/api/metrics/activity?start=yesterday",
     "/api/performance?after=noon", "/api/performance?after=2026-01-01T00:00:00"],
)  # fmt: skip
async def test_bad_questions_are_the_callers_fault(open_server: OpenSwap, target: str):
    async with open_server(sample_every=60) as server:
        answer = await server.ask("GET", target)
        assert (answer.status, answer.error["reason"]) == (400, "invalid_request")
        assert answer.error["param"] in f"{target} id"


async def test_performance(open_server: OpenSwap):
    async with open_server() as server:
        off = await server.ask("GET", "/api/performance")
        assert (off.status, off.json) == (503, {"enabled": False})
    async with open_server(sample_every=0.05) as server:
        on = {"sys_stats": []}
        with trio.fail_after(10):
            while not on["sys_stats"]:
                on = (await server.ask("GET", "/api/performance")).json
        assert on["enabled"] is True
        assert on["sys_stats"][0]["mem_total_mb"] > 0
        assert "gpu_stats" in on
        later = quote("2100-01-01T00:00:00+02:00")
        assert (await server.ask("GET", f"/api/performance?after={later}")).json["sys_stats"] == []


async def test_hardware_and_version(open_server: OpenSwap):
    async with open_server() as server:
        hardware = await server.ask("GET", "/api/hardware")
        assert hardware.status == 200
        assert hardware.json["cpu"]["logical_thread_count"] >= 1
        assert (await server.ask("GET", "/api/hardware")).json == hardware.json  # looked at once
        version = (await server.ask("GET", "/api/version")).json
        assert sorted(version) == ["build_date", "commit", "version"]


# ---- small things ----------------------------------------------------------------------------------------------------


async def test_hardware_that_does_not_let_itself_be_described(open_server: OpenSwap):
    async def detect() -> None:
        return None

    async with open_server(detect=detect) as server:
        answer = await server.ask("GET", "/api/hardware")
        assert (answer.status, answer.error["reason"]) == (503, "busy")


async def test_public_places(open_server: OpenSwap):
    async with open_server() as server:
        paths = ("/wol-health", "/favicon.ico", "/upstream")
        assert set(paths) <= PUBLIC_PATHS
        answers = {path: await server.ask("GET", path) for path in paths}
        assert answers["/wol-health"].body == b"OK"
        assert answers["/favicon.ico"].header("content-type") == "image/svg+xml"
        assert (answers["/upstream"].status, answers["/upstream"].header("location")) == (302, "ui/")
        for path in paths:
            assert (await server.ask("HEAD", path)).status == answers[path].status


@pytest.mark.parametrize(
    "wrong",
    ["POST /running", "PUT /unload", "GET /api/models/unload/alpha", "POST /api/profiles/active", "GET /api/nope",
     "POST /api/inflight//cancel", "DELETE /api/events"],
)  # fmt: skip
async def test_a_wrong_method_is_no_route(open_server: OpenSwap, wrong: str):
    async with open_server() as server:
        answer = await server.ask(*wrong.split())
        assert (answer.status, answer.error["reason"]) == (404, "route_not_found")
