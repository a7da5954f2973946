"""What the seed's README says of requests and answers, asked of the installed program with real engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import StartServer, answer, http
from test_lifetimes import post

SMALL = ("-c", "1024")


def test_prompts_of_every_form(single: StartServer) -> None:
    server = single(*SMALL, "-np", "2")
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


def test_fields_of_a_completion(single: StartServer) -> None:
    server = single(*SMALL)
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


def test_slots_are_saved_restored_and_erased(single: StartServer, tmp_path: Path) -> None:
    server = single(*SMALL, "--slot-save-path", str(tmp_path))
    used = answer(server, "/completion", prompt="Once upon a time", n_predict=1, id_slot=0)
    saved = answer(server, "/slots/0?action=save", filename="one.bin")
    assert saved["n_saved"] >= used["tokens_evaluated"]
    assert saved["n_written"] == (tmp_path / "one.bin").stat().st_size
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
    [bare] = answer(single(*SMALL, "--embeddings", "--pooling", "none"), "/embeddings", content="Hello there")
    assert len(bare["embedding"]) > 1, "a vector for each token"


def test_no_free_slot_is_told(single: StartServer) -> None:
    server = single(*SMALL, "-np", "1", "--context-shift")
    assert http(server, "GET", "/slots?fail_on_no_slot=1").status == 200
    with post(server, {"prompt": "Once", "n_predict": -1, "ignore_eos": True, "stream": True}) as client:
        assert client.recv(64).startswith(b"HTTP/1.1 200")
        assert http(server, "GET", "/slots?fail_on_no_slot=1").status == 503
        assert http(server, "GET", "/slots").json()[0]["is_processing"] is True
