"""LM Studio's REST API over a real server and fake engines: documented shapes, errors, who may ask.

A shape names the types of members; those that may be missing or null end in a question mark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import pytest
from gguf_files import write_model
from http_harness import Answer, Appliance, OpenServer, model
from hub_process import FakeHub
from known_models import known
from msgspec import structs
from swap_harness import Configure
from waiting import until

from appliance.core.settings import FleetSettings

STORY = "Once upon a time a small llama carried"
"""What the fake says in its eight tokens."""
ASK = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}]}
SAY = {"model": "alpha", "input": "hi"}
NUMBER = (int, float)
V0_MODEL = {
    "id": str, "object": str, "type": str, "publisher": str, "arch": str, "compatibility_type": str,
    "quantization": str, "state": str, "max_context_length": int, "loaded_context_length?": int, "capabilities": list,
}  # fmt: skip
V1_MODEL = {
    "type": str, "publisher": str, "key": str, "display_name": str, "architecture?": str, "quantization": dict,
    "size_bytes": int, "params_string": str, "loaded_instances": list, "max_context_length": int, "format": str,
    "capabilities?": dict, "description?": str,
}  # fmt: skip
V0_STATS = {"tokens_per_second": NUMBER, "time_to_first_token": NUMBER, "generation_time": NUMBER, "stop_reason": str}
MODEL_INFO = {"arch": str, "quant": str, "format": str, "context_length": int}
RUNTIME = {"name": str, "version": str, "supported_formats": list}
CHAT = {"model_instance_id": str, "output": list, "stats": dict}
STATS = {
    "input_tokens": int, "total_output_tokens": int, "reasoning_output_tokens": int, "tokens_per_second": NUMBER,
    "time_to_first_token_seconds": NUMBER, "model_load_time_seconds?": NUMBER,
}  # fmt: skip
JOB = {
    "job_id": str, "status": str, "total_size_bytes": int, "downloaded_bytes": int, "started_at": str,
    "bytes_per_second?": NUMBER, "estimated_completion?": str, "completed_at?": str,
}  # fmt: skip
ERROR = {"type": str, "message": str, "code?": str, "param?": str}
"""The last two are missing, not null, where there is nothing to say."""
KINDS = {"invalid_request", "model_not_found", "job_not_found", "not_implemented", "internal_error"}


def fits(found: Mapping[str, object], shape: Mapping[str, object]) -> None:
    """Compare members and their types."""
    known = {name.removesuffix("?"): kind for name, kind in shape.items()}
    assert found.keys() <= known.keys()
    for name, kind in shape.items():
        value = found.get(name.removesuffix("?"))
        if value is not None or not name.endswith("?"):
            assert isinstance(value, kind), (name, value)  # type: ignore[arg-type]


async def post(server: Appliance, path: str, body: object, *headers: tuple[str, str]) -> Answer:
    return await server.ask("POST", f"/api/{path}", body, headers)


async def refusal(server: Appliance, method: str, path: str, body: object = None) -> tuple[int, dict[str, str | None]]:
    answer = await server.ask(method, f"/api/{path}", body)
    assert answer.header("content-type") == "application/json; charset=utf-8"
    assert answer.json.keys() == {"error"}
    fits(answer.error, ERROR)
    assert None not in answer.error.values()
    assert not path.startswith("v1") or answer.error["type"] in KINDS
    return answer.status, answer.error


def events(answer: Answer) -> list[dict]:
    """Those of a streamed chat, whose names are their types."""
    assert answer.header("content-type") == "text/event-stream"
    found = [record.split("\n") for record in answer.events]
    told = [json.loads(data.removeprefix("data: ")) for _, data in found]
    assert [name for name, _ in found] == [f"event: {one['type']}" for one in told]
    return told


async def entry(server: Appliance, key: str) -> dict:
    listed = (await server.good("GET", "/api/v1/models")).json["models"]
    return next(one for one in listed if one["key"] == key)


# ---- lists -----------------------------------------------------------------------------------------------------------


async def test_models(open_server: OpenServer, fake_model: Path):
    template = "<think></think>{{ tools }}"
    clever = known(fake_model, "org/clever", tokenizer__chat_template=template, llama__context_length=8192)
    sees = structs.replace(known(fake_model, "sees", llama__context_length=512), input_modalities=("text", "image"))
    vectors = known(fake_model, "vectors", architecture="bert", bert__context_length=512)
    models = [clever, sees, vectors, model(fake_model, "bare")]
    async with open_server(models=models) as server:
        await server.good("POST", "/api/v1/models/load", {"model": "org/clever"})
        v0 = (await server.good("GET", "/api/v0/models")).json
        assert (v0.keys(), v0["object"]) == ({"object", "data"}, "list")
        by_id = {one["id"]: one for one in v0["data"]}
        bare = by_id.pop("bare")
        assert "max_context_length" not in bare
        for one in by_id.values():
            fits(one, V0_MODEL)
            assert (await server.good("GET", f"/api/v0/models/{one['id']}")).json == one
        told = {name: (one["type"], one["state"], one["publisher"], one["capabilities"]) for name, one in by_id.items()}
        assert told == {
            "org/clever": ("llm", "loaded", "org", ["tool_use"]),
            "sees": ("vlm", "not-loaded", "local", []),
            "vectors": ("embeddings", "not-loaded", "local", []),
        }
        loaded = by_id["org/clever"]
        assert (loaded["arch"], loaded["compatibility_type"], loaded["max_context_length"]) == ("llama", "gguf", 8192)
        v1 = {one["key"]: one for one in (await server.good("GET", "/api/v1/models")).json["models"]}
        assert v1.keys() == {*by_id, "bare"}
        for name in by_id:
            fits(v1[name], V1_MODEL)
            fits(v1[name]["quantization"], {"name": str, "bits_per_weight": int})
        assert v1["org/clever"]["capabilities"] == {
            "vision": False,
            "trained_for_tool_use": True,
            "reasoning": {"allowed_options": ["off", "on"], "default": "on"},
        }
        length = loaded["loaded_context_length"]
        assert v1["org/clever"]["loaded_instances"] == [{"id": "org/clever", "config": {"context_length": length}}]
        assert v1["sees"]["capabilities"] == {"vision": True, "trained_for_tool_use": False}
        assert v1["vectors"]["type"] == "embedding"
        assert not v1["vectors"].keys() & {"architecture", "capabilities", "description"}
        only = (await server.good("GET", "/worker/sees/api/v1/models")).json["models"]
        assert [one["key"] for one in only] == ["sees"]
        assert (await server.good("HEAD", "/api/v1/models")).body == b""


async def test_models_of_a_configuration(open_server: OpenServer, configured: Configure, tmp_path: Path):
    """Headers are read where the command names the file; what the configuration hides is hidden here."""
    path = write_model(tmp_path / "seen.gguf", tokenizer__chat_template="{{ tools }}")
    command = f"x-server --port ${{PORT}} -m {path}"
    shown, hidden = {"cmd": command, "name": "Seen", "description": "says"}, {"cmd": command, "unlisted": True}
    async with open_server(config=configured({"seen": shown, "off": hidden})) as server:
        listed = (await server.good("GET", "/api/v1/models")).json["models"]
        assert [(one["key"], one["display_name"], one["description"]) for one in listed] == [("seen", "Seen", "says")]
        assert listed[0]["architecture"] == "llama"
        assert listed[0]["capabilities"]["trained_for_tool_use"]


# ---- version 0: OpenAI's answers with more ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_completions_have_statistics(open_server: OpenServer, fake_model: Path, path: str):
    async with open_server(models=[known(fake_model, "alpha")]) as server:
        body = {**ASK, "prompt": "hi", "max_tokens": -1, "ttl": 60}
        plain, whole = [(await server.good("POST", f"{root}/{path}", body)).json for root in ("/v1", "/api/v0")]
        assert whole.keys() - plain.keys() == {"stats", "model_info", "runtime"}
        assert whole["choices"] == plain["choices"]
        streamed = await post(server, f"v0/{path}", {**body, "stream": True})
        assert streamed.header("content-type") == "text/event-stream"
        *records, done = [record.removeprefix("data: ") for record in streamed.events]
        assert done == "[DONE]"
        assert ["stats" in json.loads(record) for record in records] == [False] * (len(records) - 1) + [True]
        for last in (whole, json.loads(records[-1])):
            for name, shape in (("stats", V0_STATS), ("model_info", MODEL_INFO), ("runtime", RUNTIME)):
                fits(last[name], shape)
            assert last["stats"]["tokens_per_second"] > 0
            assert last["stats"]["stop_reason"] == "maxPredictedTokensReached"
            assert (last["model_info"]["arch"], last["runtime"]["name"][:4]) == ("llama", "fake")
        row = (await server.rows())[0]
        assert (row["model"], row["req_path"]) == ("alpha", f"/api/v0/{path}")


async def test_an_answer_that_ends_with_calls_says_so(open_server: OpenServer, fake_model: Path):
    script = [{"text": "Well.", "calls": [{"name": "f", "arguments": "{}", "id": "c1"}]}]
    clever = known(fake_model, "alpha", "--script", json.dumps(script))
    async with open_server(models=[clever]) as server:
        answer = await server.good("POST", "/api/v0/chat/completions", ASK)
        assert answer.json["stats"]["stop_reason"] == "toolCalls"


async def test_embeddings_are_openais(open_server: OpenServer, fake_model: Path):
    async with open_server(models=[known(fake_model, "vectors", architecture="bert")]) as server:
        body = {"model": "vectors", "input": ["a", "b"]}
        plain, ours = [
            (await server.good("POST", path, body)).json for path in ("/v1/embeddings", "/api/v0/embeddings")
        ]
        assert ours == plain


# ---- version 1: chats ------------------------------------------------------------------------------------------------


async def test_a_whole_chat_and_the_same_in_events(open_server: OpenServer):
    async with open_server() as server:
        first = (await server.good("POST", "/api/v1/chat", SAY)).json
        fits(first, CHAT)
        fits(first["stats"], STATS)
        assert first["output"] == [{"type": "message", "content": STORY}]
        assert first["stats"]["model_load_time_seconds"] > 0
        again = (await server.good("POST", "/api/v1/chat", {**SAY, "model": "al", "store": True})).json
        assert again["model_instance_id"] == "alpha"
        assert "model_load_time_seconds" not in again["stats"]
        told = events(await post(server, "v1/chat", {**SAY, "stream": True}))
        assert [one["type"] for one in told] == [
            "chat.start", "prompt_processing.start", "prompt_processing.end", "message.start",
            *["message.delta"] * 8, "message.end", "chat.end",
        ]  # fmt: skip
        assert "".join(one.get("content", "") for one in told) == STORY
        result = told[-1]["result"]
        fits(result, CHAT)
        fits(result["stats"], STATS)
        assert (result["output"], result["stats"]["total_output_tokens"]) == (first["output"], 8)
        await server.good("POST", "/api/v1/models/unload", {"instance_id": "alpha"})
        loads = [one for one in events(await post(server, "v1/chat", {**SAY, "stream": True})) if "load" in one["type"]]
        assert [one["type"] for one in loads] == ["model_load.start", "model_load.end"]
        assert loads[1]["load_time_seconds"] > 0


async def test_what_the_engine_is_asked(open_server: OpenServer, fake_model: Path):
    echo = known(fake_model, "alpha", "--script", '[{"echo": true}]')
    async with open_server(models=[structs.replace(echo, input_modalities=("text", "image"))]) as server:
        url = "data:image/png;base64,iVBORw0KGgo="
        parts = [{"type": "message", "content": "What is it?"}, {"type": "image", "data_url": url}]
        body = {
            **SAY, "input": parts, "system_prompt": "Be brief.", "temperature": 0.5, "top_p": 0.9, "top_k": 3,
            "min_p": 0.1, "repeat_penalty": 1.1, "max_output_tokens": 7, "reasoning": "low", "context_length": 9,
            "store": False, "integrations": [], "previous_response_id": None,
        }  # fmt: skip
        asked = json.loads((await server.good("POST", "/api/v1/chat", body)).json["output"][0]["content"])
        image = {"type": "image_url", "image_url": {"url": url}}
        assert asked == {
            "model": "alpha", "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "repeat_penalty": 1.1,
            "max_tokens": 7, "chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "low"},
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]},
            ],
        }  # fmt: skip
        off = await server.good("POST", "/api/v1/chat", {**SAY, "reasoning": "off"})
        assert json.loads(off.json["output"][0]["content"])["chat_template_kwargs"] == {"enable_thinking": False}


async def test_a_stream_that_fails_ends_with_what_was_said(open_server: OpenServer):
    async with open_server(fleet=FleetSettings(engine_args=("--error-record", "3"))) as server:
        *_, failed, closed, end = events(await post(server, "v1/chat", {**SAY, "stream": True}))
        fits(failed["error"], ERROR)
        assert (failed["type"], failed["error"]["type"], closed["type"]) == ("error", "internal_error", "message.end")
        assert end["result"]["output"][0]["content"] == STORY[: len(end["result"]["output"][0]["content"])]
        assert end["result"]["output"][0]["content"]
    async with open_server(fleet=FleetSettings(engine_args=("--fail-to-load",))) as server:
        for path, body in (("v1/chat", SAY), ("v0/chat/completions", ASK), ("v1/models/load", {"model": "alpha"})):
            status, error = await refusal(server, "POST", path, body)
            assert (status, error["code"]) == (500, "model_failed_to_start")


# ---- load, unload, download ------------------------------------------------------------------------------------------


async def test_load_and_unload(server: Appliance):
    body = {"model": "al", "context_length": 16384, "flash_attention": True, "num_experts": None}
    told = (await server.good("POST", "/api/v1/models/load", body | {"echo_load_config": True})).json
    assert told.pop("load_time_seconds") > 0
    length = told["load_config"]["context_length"]
    load_config = {"context_length": length}
    assert told == {"type": "llm", "instance_id": "alpha", "status": "loaded", "load_config": load_config}
    assert [one["id"] for one in (await entry(server, "alpha"))["loaded_instances"]] == ["alpha"]
    unloaded = await server.good("POST", "/api/v1/models/unload", {"instance_id": "alpha"})
    assert unloaded.json == {"instance_id": "alpha"}
    assert (await entry(server, "alpha"))["loaded_instances"] == []
    status, error = await refusal(server, "POST", "v1/models/unload", {"instance_id": "alpha"})
    assert (status, error["type"]) == (404, "model_not_found")


async def test_a_ttl_ends_the_process(server: Appliance):
    await server.good("POST", "/api/v0/chat/completions", {**ASK, "ttl": 0})
    await until(lambda: server.state("alpha"), lambda state: state == "unloaded")


REPO = "acme/tiny-GGUF"


async def test_a_download_is_a_job(served: Appliance, hub: FakeHub):
    hub.behave(rate=1 << 20)
    asked = {"model": f"https://huggingface.co/{REPO}", "quantization": "Q8_0"}
    begun = (await served.good("POST", "/api/v1/models/download", asked)).json
    fits(begun, JOB)
    assert begun["status"] == "downloading"
    assert 0 <= begun["downloaded_bytes"] < begun["total_size_bytes"]
    place = f"/api/v1/models/download/status/{begun['job_id']}"
    going = (await served.good("GET", place)).json
    fits(going, JOB)
    again = (await served.good("POST", "/api/v1/models/download", {"model": REPO})).json
    assert again["job_id"] == begun["job_id"], "one that is under way is not begun twice"

    async def job() -> dict:
        return (await served.good("GET", place)).json

    ended = await until(job, lambda told: told["status"] == "completed")
    fits(ended, JOB)
    assert ended["downloaded_bytes"] == ended["total_size_bytes"] == begun["total_size_bytes"]
    started, completed = (datetime.fromisoformat(ended[name]) for name in ("started_at", "completed_at"))
    assert abs((completed - started).total_seconds()) < 600
    for name in (f"{REPO}:Q8_0", f"hf.co/{REPO}:q8_0"):
        there = (await served.good("POST", "/api/v1/models/download", {"model": name})).json
        assert there == {"status": "already_downloaded"}
    assert (await entry(served, f"{REPO}:Q8_0"))["publisher"] == "acme"
    assert (await server_says(served)) == STORY


async def server_says(served: Appliance) -> str:
    answer = await served.good("POST", "/api/v1/chat", {**SAY, "model": f"{REPO}:Q8_0"})
    return answer.json["output"][0]["content"]


async def test_downloads_that_are_refused(served: Appliance, server: Appliance):
    for name, status, kind in (("acme/nothing", 404, "model_not_found"), ("llama3", 400, "invalid_request")):
        told, error = await refusal(served, "POST", "v1/models/download", {"model": name})
        assert (told, error["type"]) == (status, kind)
    told, error = await refusal(server, "POST", "v1/models/download", {"model": "acme/tiny"})
    assert (told, error["type"], error["code"]) == (403, "invalid_request", "forbidden")


# ---- mistakes --------------------------------------------------------------------------------------------------------


HUGE = "x" * 100_000
FILE = {"type": "image", "data_url": "/etc/passwd"}
REFUSED = [
    ("POST", "v1/chat", b"", 400, "invalid_request", None),
    ("POST", "v1/chat", b"{", 400, "invalid_request", None),
    ("POST", "v1/chat", b"\xff\xfe", 400, "invalid_request", None),
    ("POST", "v1/chat", [], 400, "invalid_request", None),
    ("POST", "v1/chat", None, 400, "invalid_request", None),
    ("POST", "v1/chat", {}, 400, "invalid_request", "model"),
    ("POST", "v1/chat", {"input": "x"}, 400, "invalid_request", "model"),
    ("POST", "v1/chat", {**SAY, "model": None}, 400, "invalid_request", "model"),
    ("POST", "v1/chat", {**SAY, "model": []}, 400, "invalid_request", "model"),
    ("POST", "v1/chat", {**SAY, "model": HUGE}, 404, "model_not_found", None),
    ("POST", "v1/chat", {"model": "alpha"}, 400, "invalid_request", "input"),
    ("POST", "v1/chat", {**SAY, "input": None}, 400, "invalid_request", "input"),
    ("POST", "v1/chat", {**SAY, "input": []}, 400, "invalid_request", "input"),
    ("POST", "v1/chat", {**SAY, "input": [{"type": "video"}]}, 400, "invalid_request", "input"),
    ("POST", "v1/chat", {**SAY, "input": [FILE]}, 400, "invalid_request", "input"),
    ("POST", "v1/chat", {**SAY, "temperature": "hot"}, 400, "invalid_request", "temperature"),
    ("POST", "v1/chat", {**SAY, "top_k": 1e400}, 400, "invalid_request", None),
    ("POST", "v1/chat", {**SAY, "stream": "yes"}, 400, "invalid_request", "stream"),
    ("POST", "v1/chat", {**SAY, "reasoning": "hard"}, 400, "invalid_request", "reasoning"),
    ("POST", "v1/chat", {**SAY, "ttl": -1}, 400, "invalid_request", "ttl"),
    ("POST", "v1/chat", {**SAY, "previous_response_id": "resp_1"}, 400, "invalid_request", "previous_response_id"),
    ("POST", "v1/chat", {**SAY, "integrations": ["mcp/x"]}, 400, "invalid_request", "integrations"),
    ("POST", "v1/chat", b'{"model":"alpha","input":' + b"[" * 100_000, 400, "invalid_request", None),
    ("POST", "v1/models/load", {"model": None}, 400, "invalid_request", "model"),
    ("POST", "v1/models/load", {"model": ""}, 404, "model_not_found", None),
    ("POST", "v1/models/load", {"model": HUGE}, 404, "model_not_found", None),
    ("POST", "v1/models/load", b"[" * 3_000_000, 413, "invalid_request", None),
    ("POST", "v1/models/unload", {}, 400, "invalid_request", "instance_id"),
    ("POST", "v1/models/unload", {"instance_id": 7}, 400, "invalid_request", "instance_id"),
    ("POST", "v1/models/unload", {"instance_id": HUGE}, 404, "model_not_found", None),
    ("POST", "v1/models/unload", {"instance_id": "alpha"}, 404, "model_not_found", None),
    ("GET", f"v1/models/download/status/{HUGE[:2000]}", None, 404, "job_not_found", None),
    ("DELETE", "v1/models", None, 404, "invalid_request", None),
    ("GET", "v1/models/load", None, 404, "invalid_request", None),
    ("GET", "v1/chat", None, 404, "invalid_request", None),
    ("GET", "v0/models/nope", None, 404, "not_found_error", None),
    ("POST", "v0/chat/completions", {"messages": []}, 400, "invalid_request_error", "model"),
    ("POST", "v0/chat/completions", {**ASK, "model": "nope"}, 404, "not_found_error", None),
    ("POST", "v0/chat/completions", {**ASK, "ttl": "x"}, 400, "invalid_request_error", "ttl"),
    ("POST", "v0/completions", b"7", 400, "invalid_request_error", None),
    ("POST", "v0/embeddings", {"model": "alpha", "input": "x"}, 501, "not_supported_error", None),
]


async def test_mistakes_are_the_clients_and_told_in_words(server: Appliance):
    for method, path, body, status, kind, param in REFUSED:
        told, error = await refusal(server, method, path, body)
        assert (told, error["type"], error.get("param")) == (status, kind, param), (path[:50], str(body)[:80], error)
        assert len(str(error["message"])) > 10
        assert len(str(error["message"])) < 1000


# ---- who may ask -----------------------------------------------------------------------------------------------------


async def test_keys_and_windows(open_server: OpenServer):
    """Which routes windows may ask `test_guard.py` has as well."""
    everything = [
        ("GET", "v0/models", None), ("GET", "v1/models", None), ("POST", "v1/chat", SAY),
        ("POST", "v0/chat/completions", ASK), ("POST", "v1/models/load", {"model": "alpha"}),
        ("POST", "v1/models/unload", {"instance_id": "alpha"}), ("POST", "v1/models/download", {"model": "a/b"}),
        ("GET", "v1/models/download/status/job_1", None),
    ]  # fmt: skip
    window = ("Origin", "vscode-webview://a1")
    async with open_server(api_keys=("k",)) as server:
        for method, path, body in everything:
            status, error = await refusal(server, method, path, body)
            assert (status, error["code"]) == (401, "invalid_api_key")
        assert (await post(server, "v1/chat", SAY, ("Authorization", "Bearer k"))).status == 200
    async with open_server() as server:
        for at, (method, path, body) in enumerate(everything):
            answer = await server.ask(method, f"/api/{path}", body, [window])
            assert answer.status == (200 if at < 4 else 403)
            assert (answer.header("access-control-allow-origin") is not None) == (at < 4)
            evil = await server.ask(method, f"/api/{path}", body, [("Origin", "https://evil.example")])
            assert (evil.status, evil.json.keys()) == (403, {"error"})
        asks = [window, ("Access-Control-Request-Method", "POST")]
        assert (await server.ask("OPTIONS", "/api/v1/chat", None, asks)).status == 200


async def test_a_server_for_one_model_has_none_of_these_routes(open_server: OpenServer):
    """They are the model's there, as any path is that the program knows nothing of."""
    async with open_server(single="alpha") as server:
        await server.fleet.load(server.catalog.snapshot.require("alpha"))
        for method, path, body in (("GET", "v1/models", None), ("POST", "v1/chat", SAY), ("GET", "v0/models", None)):
            ours, unknown = [await server.ask(method, place, body) for place in (f"/api/{path}", "/api/unknown")]
            assert (ours.status, ours.json) == (unknown.status, unknown.json)
            assert ours.status == 404
