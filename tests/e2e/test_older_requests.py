"""What clients of earlier llama-server releases ask, of the installed program with real engines."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from pictures import png, write_projector
from program import Server, StartServer, answer, http
from prometheus_client.parser import text_string_to_metric_families
from slow import one_of
from waiting import wait

SMALL = ("-c", "1024")
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


def test_images_for_a_model_that_sees_none_are_refused(single: StartServer) -> None:
    image = {"data": base64.b64encode(png(1)).decode(), "id": 1}
    refused = http(single(*SMALL), "POST", "/completion", {"prompt": "[img-1]", "image_data": [image], **SURE})
    assert refused.status >= 400
    assert "does not support" in refused.json()["error"]["message"]


def test_no_token_is_said_where_none_is_wanted(single: StartServer) -> None:
    server = single(*SMALL)
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


def test_metrics_tell_how_full_the_cache_is(single: StartServer) -> None:
    server = single(*SMALL, "--metrics", "--parallel", "2")
    assert metrics(server)["llamacpp:kv_cache_tokens"] == 0
    said = answer(server, "/completion", prompt="Once upon a time", n_predict=0, id_slot=1)
    found = metrics(server)
    assert found["llamacpp:kv_cache_tokens"] == said["tokens_cached"] > 0
    assert found["llamacpp:kv_cache_usage_ratio"] == pytest.approx(said["tokens_cached"] / 1024, rel=1e-4)
    assert found["llamacpp:requests_processing"] == 0, "the engine's own are there"
    assert "llamacpp:kv_cache_tokens" not in metrics(single(*SMALL, "--metrics", "--no-slots"))


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
def test_a_schema_binds_the_answer_on_every_engine(single: StartServer, path: str) -> None:
    """The model is urged to say something that no schema allows."""
    server = single(*SMALL)
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


def test_the_same_with_an_option(single: StartServer) -> None:
    server = single(*SMALL, "--json-schema", json.dumps(SCHEMAS[1]))
    forbidden = answer(server, "/tokenize", content="!")["tokens"][-1]
    said = answer(server, "/completion", prompt="Hello", temperature=0, n_predict=3, logit_bias=[[forbidden, 1000]])
    assert said["content"][:1] in tuple("-0123456789")
