"""The program's own routes."""

from __future__ import annotations

import math
from pathlib import Path

import trio
from http_harness import CHAT, Answer, Appliance, OpenServer, chat, model
from waiting import SOON, until

from appliance.catalog.sources import ModelFolders
from appliance.platform.poller import LOOK_EVERY, Poller


async def test_the_list_has_llama_servers_shape(open_server: OpenServer, fake_model: Path):
    alpha = model(fake_model, "alpha", "al", args=("--mmproj", "x", "--output", "decisions"))
    models = [model(fake_model, "zeta"), alpha, model(fake_model, "bad", error="truncated")]
    async with open_server(models=models) as server:
        listed = (await server.ask("GET", "/v1/models")).json
        assert listed["object"] == "list"
        assert [entry["id"] for entry in listed["data"]] == ["alpha", "bad", "zeta"]
        entry = listed["data"][0]
        assert (entry["aliases"], entry["tags"]) == (["al"], [])
        assert (entry["object"], entry["owned_by"], entry["source"]) == ("model", "llamacpp", "path")
        assert isinstance(entry["created"], int)
        assert entry["status"]["value"] == "unloaded"
        assert "meta" not in entry
        assert entry["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}
        assert listed["data"][1]["status"]["error"] == "truncated"
        await server.ask("POST", "/models/load", {"model": "al", "wait": True})
        entry = (await server.ask("GET", "/models")).json["data"][0]
        assert entry["status"]["value"] == "loaded"
        assert "--model" in entry["status"]["args"]
        assert entry["meta"]["n_ctx"] == 4096
        told = {"input_modalities": ["text", "image", "audio"], "output_modalities": ["decisions"]}
        assert entry["architecture"] == told, "a loaded model says itself what it takes and gives"


async def test_load_and_unload(open_server: OpenServer, fake_model: Path):
    slow = model(fake_model, "slow", args=("--load-delay", "0.3"))
    async with open_server(models=[slow]) as server:
        assert (await server.ask("POST", "/models/load", {"model": "nope"})).status == 404
        assert (await server.ask("POST", "/models/unload", {"model": "nope"})).status == 400
        assert (await server.ask("POST", "/models/unload", {"model": "slow"})).status == 400
        assert (await server.ask("POST", "/models/load", {"model": "slow"})).json == {"success": True}
        assert (await server.ask("GET", "/models")).json["data"][0]["status"]["value"] == "loading"
        twice = await server.ask("POST", "/models/load", {"model": "slow"})
        assert (twice.status, twice.error["message"]) == (400, "model is already running")
        assert (await server.ask("POST", "/models/load", {"model": "slow", "wait": True})).status == 200
        assert server.state("slow") == "loaded"
        assert (await server.ask("POST", "/models/unload", {"model": "slow", "wait": True})).json == {"success": True}
        assert server.state("slow") == "unloaded"
        assert "failed" not in (await server.ask("GET", "/models")).json["data"][0]["status"]


async def test_a_bad_control_request_is_the_callers_fault(server: Appliance):
    texts = (b"", b"{", b"[]", b"{}", b'{"model":1}', b'{"model":"","wait":true}', b'{"model":"x","wait":"maybe"}')
    long = b'{"model":"' + b"x" * (2 << 20) + b'"}'
    for body, status in (*((text, 400) for text in texts), (long, 413)):
        answer = await server.ask("POST", "/models/load", body)
        assert (answer.status, answer.error["code"]) == (status, status), body[:20]


async def test_health_props_slots_and_metrics(server: Appliance):
    await server.ask("POST", CHAT, chat())
    health = (await server.ask("GET", "/v1/health")).json
    assert health["models"] == ["alpha"]
    assert health["pool"] == {"capacity": 4, "servers": [{"model": "alpha", "state": "loaded", "leases": 0}]}
    props = (await server.ask("GET", "/props")).json
    assert (props["role"], props["max_instances"], props["build_info"][0]) == ("router", 4, "b")
    slots = (await server.ask("GET", "/slots")).json
    assert {slot["model"] for slot in slots} == {"alpha"}
    assert len(slots) == 4
    text = (await server.ask("GET", "/metrics")).body.decode()
    assert 'llama_appliance_requests_total{route="/v1/chat/completions",status="200"} 1' in text
    assert 'llama_appliance_models{state="loaded"} 1' in text
    assert (await server.ask("HEAD", "/health")).body == b""


async def test_a_model_that_failed_is_unhealthy_with_its_reason_until_it_runs_again(
    open_server: OpenServer, fake_model: Path, tmp_path: Path
):
    async with open_server(
        models=[model(fake_model, "bad", args=("--fail-to-load",)), model(fake_model, "good")]
    ) as server:
        assert (await server.ask("POST", CHAT, chat("bad"))).status == 500
        assert (await server.ask("POST", CHAT, chat("good"))).status == 200
        health = (await server.ask("GET", "/health")).json
        good, bad = health["pool"]["servers"]
        assert (good["model"], good["state"]) == ("good", "loaded")
        assert (bad["model"], bad["state"], bad["leases"]) == ("bad", "unhealthy", 0)
        assert "exit status" in bad["reason"]
        assert "\n" not in bad["reason"]
        assert health["models"] == ["good"]
        server.process("good").kill()
        await until(lambda: server.state("good") != "loaded")
        servers = (await server.ask("GET", "/health")).json["pool"]["servers"]
        assert {each["model"]: each["state"] for each in servers} == {"bad": "unhealthy", "good": "unhealthy"}
        assert (await server.ask("POST", CHAT, chat("good"))).status == 200
        servers = (await server.ask("GET", "/health")).json["pool"]["servers"]
        assert {each["model"]: each["state"] for each in servers} == {"bad": "unhealthy", "good": "loaded"}


MISSING = (
    *("GET /nope", "PUT /models", "DELETE /models/load", "GET /v1/streams", f"GET {CHAT}", "GET /health/x"),
    *("POST /running", "PUT /unload", "GET /api/models/unload/alpha", "POST /api/profiles/active", "GET /api/nope"),
    *("POST /api/inflight//cancel", "DELETE /api/events", "GET /api/config/reload"),
)


async def test_what_is_not_there_is_404_never_405(server: Appliance):
    for missing in MISSING:
        await server.refuses(404, "route_not_found", *missing.split())


async def test_a_log_stream_with_a_long_history_does_not_hold_up_others(server: Appliance):
    for number in range(10_000):
        server.fleet.logs.append("alpha", f"line {number}")
    async with server.connect() as reader:
        await reader.send("GET", "/logs/stream/alpha")
        await reader.head()
        assert (await server.ask("GET", "/health")).status == 200


async def test_single_mode_is_one_llama_server(open_server: OpenServer, fake_model: Path):
    only = model(fake_model, "only", args=("--load-delay", "0.3"))
    async with open_server(models=[only, model(fake_model, "other")], single="only") as server:
        loading = await server.refuses(503, None, "GET", "/health")
        assert (loading.error["message"], loading.error["type"]) == ("Loading model", "unavailable_error")
        assert (await server.ask("GET", "/v1/models")).status == 503
        await server.fleet.load(only)
        assert (await server.ask("GET", "/health")).json == {
            "status": "ok",
            "pool": {"capacity": 4, "servers": [{"model": "only", "state": "loaded", "leases": 0}]},
            "models": ["only"],
        }
        for name in ("whatever", None, "other"):
            assert (await server.ask("POST", CHAT, chat(name))).json["model"] == "only"
        assert (await server.ask("GET", "/v1/models")).json["data"][0]["id"] == "only"
        assert (await server.ask("GET", "/slots")).json[0]["id"] == 0
        assert (await server.ask("POST", "/lora-adapters", b"[]")).json == {"success": True}
        assert (await server.refuses(404, None, "GET", "/nope")).error["message"] == "File Not Found"
        assert b"<!doctype html>" in (await server.ask("GET", "/")).body
        assert (await server.refuses(400, None, "POST", CHAT, b"{")).error["code"] == 400


async def test_a_model_that_is_put_into_the_folder_is_there(open_server: OpenServer, write_model, tmp_path: Path):
    folder = tmp_path / "models"
    folder.mkdir()
    async with open_server(models=[]) as server:
        server.catalog.sources = ModelFolders(models_dir=folder, starter=None)
        assert (await server.ask("POST", CHAT, chat("new"))).status == 404
        write_model(folder / "new.gguf")
        await until(lambda: server.ask("POST", CHAT, chat("new")), lambda answer: answer.status == 200)
        write_model(folder / "newer.gguf")

        def ids(answer: Answer) -> list[str]:
            return [entry["id"] for entry in answer.json["data"]]

        await until(lambda: server.ask("GET", "/v1/models"), lambda answer: ids(answer) == ["new", "newer"])


async def test_a_question_waits_until_the_engine_knows_who_left(server: Appliance):
    await server.ask("POST", CHAT, chat())
    least = math.inf
    for _ in range(5):
        began = trio.current_time()
        assert (await server.ask("GET", "/slots?model=alpha")).status == 200
        least = min(least, trio.current_time() - began)
    assert least < 0.5
    with trio.move_on_after(0.2):
        await server.ask("POST", CHAT, chat(slow_prompt=60))
    await trio.sleep(0.1 if Poller.listens else 2 * LOOK_EVERY)  # until it is seen that the client has left
    began = trio.current_time()
    assert not any(slot["is_processing"] for slot in (await server.ask("GET", "/slots?model=alpha")).json)
    assert (0.5 if Poller.listens else 0) < trio.current_time() - began < SOON


async def test_one_model_of_the_list(server: Appliance):
    listed = (await server.ask("GET", "/v1/models")).json["data"]
    entry = next(entry for entry in listed if entry["id"] == "alpha")
    for name in ("alpha", "al"):
        answer = await server.ask("GET", f"/v1/models/{name}")
        assert (answer.status, answer.json["id"], sorted(answer.json)) == (200, "alpha", sorted(entry))
    await server.refuses(404, "model_not_found", "GET", "/v1/models/org/nobody")
    assert (await server.ask("GET", "/v1/models?reload=1")).json == {"data": [], "object": "list"}  # none is on disk
