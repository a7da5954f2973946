"""What the seed's README and earlier clients ask, asked of the installed program with real engines."""

from __future__ import annotations

import base64
import json
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from pictures import png, write_projector
from program import Server, StartServer, answer, http
from prometheus_client.parser import text_string_to_metric_families
from slow import one_of
from test_lifetimes import post
from waiting import wait

from appliance.engines.named import ENGINE_VARIABLE

SMALL = ("-c", "1024")


@pytest.fixture(scope="module")
def server(engine: str, starter_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """``llama-server`` with two slots, which it saves in its working folder; for all tests that need no more."""
    folder = tmp_path_factory.mktemp("saved")
    more = ("-np", "2", "--metrics", "--context-shift", "--slot-save-path", str(folder))
    argv = ("llama-server", "-m", str(starter_model), "-t", "1", "--port", "0", *SMALL, *more)
    with Server(argv, folder, {ENGINE_VARIABLE: engine}) as running:
        running.wait_listening().wait_healthy()
        yield running


def test_prompts_of_every_form(server: Server) -> None:
    said = {"n_predict": 2, "temperature": 0}
    tokens = answer(server, "/tokenize", content="Hello")["tokens"]
    assert answer(server, "/tokenize", content="Hello", add_special=True)["tokens"][-len(tokens) :] == tokens
    for prompt in ("Hello", tokens, [*tokens, " there", *tokens]):
        assert answer(server, "/completion", prompt=prompt, **said)["tokens_predicted"] == 2
    several = answer(server, "/completion", prompt=["Hello", tokens, [*tokens, "x"]], **said)
    assert sorted(each["index"] for each in several) == [0, 1, 2]
    first = answer(server, "/completion", prompt="Once upon a time", id_slot=1, cache_prompt=True, **said)
    assert first["id_slot"] == 1
    again = answer(server, "/completion", prompt="Once upon a time", id_slot=1, cache_prompt=True, **said)
    assert again["timings"]["cache_n"] > 0
    anew = answer(server, "/completion", prompt="Once upon a time", id_slot=1, cache_prompt=False, **said)
    assert anew["timings"]["cache_n"] == 0
    assert answer(server, "/tokenize", content="\u2603", with_pieces=True)["tokens"][-1]["piece"]


SENT = {
    "temperature": 0.5, "dynatemp_range": 0.25, "dynatemp_exponent": 2.0, "top_k": 9, "top_p": 0.5, "min_p": 0.25,
    "typical_p": 0.75, "repeat_penalty": 1.5, "repeat_last_n": 8, "presence_penalty": 0.5, "frequency_penalty": 0.25,
    "dry_multiplier": 0.5, "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": 16, "xtc_probability": 0.25,
    "xtc_threshold": 0.5, "mirostat": 0, "mirostat_tau": 4.0, "mirostat_eta": 0.5, "seed": 7, "ignore_eos": True,
    "min_keep": 2, "n_keep": 3, "n_probs": 2, "samplers": ["top_k", "temperature"], "n_predict": 3,
    "dry_sequence_breakers": ["#"], "lora": [], "timings_per_token": True,
}  # fmt: skip


def test_fields_of_a_completion(server: Server) -> None:
    bias = answer(server, "/tokenize", content="!")["tokens"][-1]
    biases = [[bias, -1.0], ["the", False]]
    more = {"logit_bias": biases, "n_indent": 1, "t_max_predict_ms": 60000, "return_tokens": True}
    said = answer(server, "/completion", prompt="Hello", **SENT, **more)
    for name, value in SENT.items():
        assert said["generation_settings"][name] == (pytest.approx(value) if isinstance(value, float) else value), name
    assert len(said["generation_settings"]["logit_bias"]) >= 2
    assert len(said["tokens"]) == len(said["completion_probabilities"]) == said["tokens_predicted"] == 3
    assert all(len(each["top_logprobs"]) == 2 for each in said["completion_probabilities"])
    assert (said["stop_type"], said["truncated"], said["prompt"][-5:]) == ("limit", False, "Hello")
    assert said["timings"]["predicted_n"] == 3
    assert {"content", "stop", "model", "tokens_cached", "tokens_evaluated"} <= set(said)
    after = answer(server, "/completion", prompt="Hello", n_predict=2, n_probs=2, post_sampling_probs=True)
    assert "top_probs" in after["completion_probabilities"][0]
    whole = answer(server, "/completion", prompt="Hello", n_predict=8, temperature=0)["content"]
    stop = whole[2:5]
    cut = answer(server, "/completion", prompt="Hello", n_predict=8, temperature=0, stop=[stop])
    assert (cut["content"], cut["stop_type"], cut["stopping_word"]) == (whole[: whole.index(stop)], "word", stop)
    wanted = ["stop", "generation_settings/n_predict", "no"]
    fields = answer(server, "/completion", prompt="Hello", n_predict=1, response_fields=wanted)
    assert fields == {"stop": True, "generation_settings/n_predict": 1}
    bad = http(server, "POST", "/completion", {"prompt": "Hello", "grammar": "root ::= ("})
    assert (bad.status, bad.json()["error"]["type"]) == (400, "invalid_request_error")
    streamed = {"prompt": "Hello", "n_predict": 3, "stream": True, "ignore_eos": True}
    stream = http(server, "POST", "/completion", streamed)
    records = [json.loads(line.removeprefix("data: ")) for line in stream.body.decode().splitlines() if line]
    assert [record["stop"] for record in records] == [False] * (len(records) - 1) + [True]
    chat = {"messages": [{"role": "user", "content": "Hello"}], "mirostat": 1, "max_tokens": 2}
    assert answer(server, "/v1/chat/completions", **chat, top_k=5, min_p=0.1)["usage"]["completion_tokens"] == 2
    pictured = answer(server, "/v1/completions", prompt="Hello", max_tokens=2, mirostat=1, n_probs=1)
    assert pictured["usage"]["completion_tokens"] == 2


def test_slots_are_saved_restored_and_erased(server: Server) -> None:
    used = answer(server, "/completion", prompt="Once upon a time", n_predict=1, id_slot=0)
    saved = answer(server, "/slots/0?action=save", filename="one.bin")
    assert saved["n_saved"] >= used["tokens_evaluated"]
    assert saved["n_written"] == (server.cwd / "one.bin").stat().st_size
    assert saved["timings"]["save_ms"] >= 0
    assert answer(server, "/slots/0?action=erase")["n_erased"] > 0
    assert answer(server, "/slots/1?action=restore", filename="one.bin")["n_restored"] == saved["n_saved"]
    for target, body in (("/slots/0?action=save", {"filename": "../a.bin"}), ("/slots/0?action=x", {"filename": "a"})):
        refused = http(server, "POST", target, body)
        assert (refused.status, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    [first, *_] = http(server, "GET", "/slots").json()
    assert {"id", "n_ctx", "is_processing", "params", "next_token"} <= set(first)


def test_embeddings_with_and_without_pooling(single: StartServer) -> None:
    server = single(*SMALL, "--embedding", "--pooling", "mean")
    [one] = answer(server, "/embedding", content="Hello")
    assert [len(vector) for vector in one["embedding"]] == [192]
    found = answer(server, "/v1/embeddings", input=["Hello", "there"], encoding_format="base64")
    assert [type(each["embedding"]) for each in found["data"]] == [str, str]
    server = single(*SMALL, "--embeddings", "--pooling", "none", "--metrics", "--no-slots")
    [bare] = answer(server, "/embeddings", content="Hello there")
    assert len(bare["embedding"]) > 1, "a vector for each token"
    assert "llamacpp:kv_cache_tokens" not in metrics(server), "slots tell it"


def test_no_free_slot_is_told(server: Server) -> None:
    assert http(server, "GET", "/slots?fail_on_no_slot=1").status == 200
    endless = {"prompt": "Once", "n_predict": -1, "ignore_eos": True, "stream": True}
    with post(server, endless) as one, post(server, endless) as other:
        for client in (one, other):
            assert client.recv(64).startswith(b"HTTP/1.1 200")
        assert http(server, "GET", "/slots?fail_on_no_slot=1").status == 503
        assert http(server, "GET", "/slots").json()[0]["is_processing"] is True


STARTER_WIDTH = 192
"""Numbers in a vector of the starter model, which a projector has to give it."""
SURE = {"temperature": 0, "n_predict": 4, "cache_prompt": False}


def test_images_in_the_text_are_seen_as_in_the_new_form(single: StartServer, tmp_path: Path) -> None:
    """The engine's answer to the old form is its answer to the new one, picture for picture."""
    projector = write_projector(tmp_path / "mmproj.gguf", STARTER_WIDTH)
    server = single(*SMALL, "--mmproj", str(projector), "--embeddings", "--pooling", "mean", "-ub", "512")
    marker = http(server, "GET", "/props").json()["media_marker"]
    one, two = (base64.b64encode(png(seed)).decode() for seed in (1, 2))
    images = [{"data": one, "id": 12}, {"data": two, "id": 3}]
    old = answer(server, "/completion", prompt="A [img-12] and [img-3]", image_data=images, **SURE)
    pictured = {"prompt_string": f"A {marker} and {marker}", "multimodal_data": [one, two]}
    new = answer(server, "/completion", prompt=pictured, **SURE)
    assert (old["content"], old["tokens_evaluated"]) == (new["content"], new["tokens_evaluated"])
    without = answer(server, "/completion", prompt="A [img-12] and [img-3]", **SURE)
    assert old["tokens_evaluated"] > without["tokens_evaluated"] + 100, "64 tokens for each picture"
    vectors = [
        answer(server, "/embedding", content="[img-12] x", image_data=images[:1]),
        answer(server, "/embedding", content={"prompt_string": f"{marker} x", "multimodal_data": [one]}),
        answer(server, "/embedding", content="[img-12] x", image_data=[{"data": two, "id": 12}]),
    ]
    assert vectors[0] == vectors[1]
    assert vectors[0] != vectors[2], "the other picture is another vector"
    refused = http(server, "POST", "/completion", {"prompt": "[img-1]", "image_data": images, **SURE})
    assert (refused.status, refused.json()["error"]["param"]) == (400, "image_data")


def test_images_for_a_model_that_sees_none_are_refused(server: Server) -> None:
    image = {"data": base64.b64encode(png(1)).decode(), "id": 1}
    refused = http(server, "POST", "/completion", {"prompt": "[img-1]", "image_data": [image], **SURE})
    assert refused.status >= 400
    assert "does not support" in refused.json()["error"]["message"]


def test_no_token_is_said_where_none_is_wanted(server: Server) -> None:
    prompt = "Once upon a time there was"
    whole = answer(server, "/completion", prompt=prompt, n_predict=0, n_probs=2, return_tokens=True, id_slot=0)
    assert (whole["content"], whole["tokens"], whole["tokens_predicted"]) == ("", [], 0)
    assert (whole["completion_probabilities"], whole["stop_type"], whole["timings"]["predicted_n"]) == ([], "limit", 0)
    again = answer(server, "/completion", prompt=prompt, n_predict=1, id_slot=0)
    assert again["timings"]["prompt_n"] == 1, "the prompt is in the cache"
    several = answer(server, "/completion", prompt=["Once", "upon"], n_predict=0, response_fields=["content"])
    assert several == [{"content": ""}, {"content": ""}]
    stream = http(server, "POST", "/completion", {"prompt": prompt, "n_predict": 0, "stream": True})
    [last] = [json.loads(line.removeprefix("data: ")) for line in stream.body.decode().splitlines() if line]
    assert (last["stop"], last["content"], last["tokens_predicted"]) == (True, "", 0)
    refused = http(server, "POST", "/completion", {"n_predict": 0})
    assert refused.status == 400, "an engine's refusal passes as it is"


def metrics(server: Server, query: str = "") -> dict[str, float]:
    text = http(server, "GET", f"/metrics{query}").body.decode()
    return {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}


def test_metrics_tell_how_full_the_cache_is(server: Server) -> None:
    for slot in (0, 1):
        answer(server, f"/slots/{slot}?action=erase")
    assert metrics(server)["llamacpp:kv_cache_tokens"] == 0
    said = answer(server, "/completion", prompt="Once upon a time", n_predict=0, id_slot=1)
    found = metrics(server)
    assert found["llamacpp:kv_cache_tokens"] == said["tokens_cached"] > 0
    assert found["llamacpp:kv_cache_usage_ratio"] == pytest.approx(said["tokens_cached"] / 1024, rel=1e-4)
    assert found["llamacpp:requests_processing"] == 0, "the engine's own are there"


def test_asking_how_full_the_cache_is_wakes_nobody(single: StartServer) -> None:
    server = single(*SMALL, "--metrics", "--sleep-idle-seconds", "1")
    answer(server, "/completion", prompt="Once upon a time", n_predict=2)
    wait(lambda: http(server, "GET", "/props").json()["is_sleeping"], within=30)
    assert metrics(server)["llamacpp:kv_cache_tokens"] == 0
    assert http(server, "GET", "/props").json()["is_sleeping"]


SCHEMAS: Sequence[dict[str, object]] = (
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"type": "object", "properties": {"a": {"type": "string", "format": "uri"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "if": {}, "then": {}},
    {"type": "integer", "minimum": 5, "maximum": 7},
    {"enum": ["yes", "no"]},
)


@pytest.mark.parametrize("path", one_of(["/completion", "/v1/completions"]))
def test_a_schema_binds_the_answer_on_every_engine(server: Server, path: str) -> None:
    """The model is urged to say something that no schema allows."""
    forbidden = answer(server, "/tokenize", content="!")["tokens"][-1]
    urged = {"prompt": "Hello", "temperature": 0, "n_predict": 3, "max_tokens": 3, "logit_bias": [[forbidden, 1000]]}
    free = answer(server, path, **urged)
    assert (free.get("content") or free["choices"][0]["text"]).startswith("!")
    for schema in SCHEMAS:
        said = answer(server, path, **urged, json_schema=schema)
        text = said["content"] if "content" in said else said["choices"][0]["text"]
        assert text.lstrip()[:1] in tuple('[{"-0123456789'), (schema, text)
    for wrong in ({"type": "wrong"}, {"$ref": "#/nowhere"}, 5):
        refused = http(server, "POST", path, {**urged, "json_schema": wrong})
        assert refused.status == 400, (wrong, refused.body)


def test_a_schema_binds_a_chat_without_jinja(single: StartServer) -> None:
    server = single(*SMALL, "--no-jinja", "--chat-template", "chatml")
    forbidden = answer(server, "/tokenize", content="!")["tokens"][-1]
    urged = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 3}
    urged |= {"logit_bias": [[forbidden, 1000]]}
    for form in (
        {"type": "json_object", "schema": SCHEMAS[0]},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS[1]}},
    ):
        said = answer(server, "/v1/chat/completions", **urged, response_format=form)
        assert "!" not in said["choices"][0]["message"]["content"], form
    wrong = {"type": "json_object", "schema": {"type": "hiccup"}}
    assert http(server, "POST", "/v1/chat/completions", {**urged, "response_format": wrong}).status == 400


@pytest.mark.slow
def test_the_same_with_an_option(single: StartServer) -> None:
    server = single(*SMALL, "--json-schema", json.dumps(SCHEMAS[1]))
    forbidden = answer(server, "/tokenize", content="!")["tokens"][-1]
    said = answer(server, "/completion", prompt="Hello", temperature=0, n_predict=3, logit_bias=[[forbidden, 1000]])
    assert said["content"][:1] in tuple("-0123456789")
