"""Requests of earlier llama-server releases: images in the text, no token at all, how full the cache is."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadRequest
from appliance.features.older.rules import (
    cache_lines,
    has_images,
    is_older,
    lacks_cache,
    silenced,
    silenced_records,
    wants_no_words,
    with_images,
)

CAT, DOG = {"data": "Y2F0", "id": 12}, {"data": "ZG9n", "id": 3}


def placed(route: str = "/completion", **members: object) -> dict[str, object]:
    return json.loads(with_images(route, json.dumps(members).encode(), "<MARK>"))


def test_images_go_where_the_text_says_in_its_order() -> None:
    asked = placed(prompt="A [img-3] B [img-12][img-3]", image_data=[CAT, DOG], n_predict=5)
    assert asked == {
        "prompt": {"prompt_string": "A <MARK> B <MARK><MARK>", "multimodal_data": ["ZG9n", "Y2F0", "ZG9n"]},
        "n_predict": 5,
    }
    several = placed(prompt=["[img-12]", "none", [1, 2], {"prompt_string": "x"}], image_data=[CAT])
    pictured = {"prompt_string": "<MARK>", "multimodal_data": ["Y2F0"]}
    assert several == {"prompt": [pictured, "none", [1, 2], {"prompt_string": "x"}]}
    assert placed("/embedding", content="[img-12]", image_data=[CAT]) == {"content": pictured}
    assert placed("/embeddings", input="[img-12]", content="x", image_data=[CAT]) == {"input": pictured, "content": "x"}


def test_a_request_without_images_is_left_as_it_is() -> None:
    pictured, plain = {"prompt": "[img-12]", "image_data": [CAT]}, {"prompt": "[img-12]", "image_data": []}
    assert [has_images("/completion", json.dumps(body).encode()) for body in (pictured, plain)] == [True, False]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"prompt": "[img-1]", "image_data": [CAT]}, r"the text has \[img-1\], and image_data has no image 1"),
        ({"prompt": "x", "image_data": [CAT]}, r"nothing in 'prompt' says where image 12 goes: write \[img-12\]"),
        ({"image_data": [CAT]}, "nothing in 'prompt' says where image 12 goes"),
        ({"prompt": [1, "[img-12]"], "image_data": [CAT]}, "partly tokens"),
        ({"prompt": "x", "image_data": [{"data": 5, "id": 1}]}, r"it looks like \[\{\"data\""),
        ({"prompt": "x", "image_data": "a"}, "image_data cannot be read"),
    ],
)
def test_images_that_cannot_be_placed_are_named(members: dict[str, object], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        has_images("/completion", json.dumps(members).encode())


@given(st.text(), st.sampled_from(["/completion", "/v1/completions", "/embedding"]))
def test_a_body_without_images_keeps_its_bytes(text: str, route: str) -> None:
    for body in (json.dumps({"prompt": text}).encode(), b'{"image_data": [], "prompt": "[img-1]"}', text.encode()):
        assert with_images(route, body, "<MARK>") is body
    chat = json.dumps({"prompt": text, "image_data": [CAT]}).encode()
    assert with_images("/v1/completions", chat, "<MARK>") is chat


@given(
    st.lists(st.integers(0, 99), unique=True, min_size=1, max_size=5),
    st.lists(st.text(alphabet="ab[]img-"), min_size=6),
)
def test_every_place_gets_its_image_and_the_text_around_it_stays(ids: list[int], texts: list[str]) -> None:
    texts = [re.sub(r"\[img-", "[im", text) for text in texts]
    prompt = texts[0] + "".join(f"[img-{number}]{text}" for number, text in zip(ids, texts[1:], strict=False))
    asked = placed(prompt=prompt, image_data=[{"data": str(number), "id": number} for number in ids])
    new = asked["prompt"]
    assert new["multimodal_data"] == [str(number) for number in ids]
    assert new["prompt_string"] == re.sub(r"\[img-\d+\]", "<MARK>", prompt)


@pytest.mark.parametrize(
    ("route", "body", "silent"),
    [
        ("/completion", b'{"prompt": "x", "n_predict": 0}', True),
        ("/completions", b'{"max_tokens":0.0}', True),
        ("/completion", b'{"n_predict":4,"max_tokens":0}', False),
        ("/completion", b'{"n_predict":0,"max_tokens":4}', True),
        ("/completion", b'{"n_predict":-1}', False),
        ("/completion", b'{"prompt":"\\"n_predict\\": 0"}', False),
        ("/completion", b'{"n_predict": 0', False),
        ("/v1/completions", b'{"n_predict": 0}', False),
    ],
)
def test_a_request_that_wants_no_token(route: str, body: bytes, silent: bool) -> None:
    assert wants_no_words(route, body) is silent
    assert is_older(route, body) or not silent


ANSWER = (
    b'{"index":0,"content":" a","tokens":[7],"tokens_predicted":1,"stop":true,"timings":{"prompt_n":3,"predicted_n":1}}'
)
SILENT = (
    b'{"index":0,"content":"","tokens":[],"tokens_predicted":0,"stop":true,"timings":{"prompt_n":3,"predicted_n":0}}'
)


def test_the_one_token_is_taken_out_of_answers_and_streams() -> None:
    assert silenced(ANSWER) == SILENT
    assert silenced(b"[%b,%b]" % (ANSWER, ANSWER)) == b"[%b,%b]" % (SILENT, SILENT)
    assert silenced(b'{"content":"a","timings/predicted_n":1}') == b'{"content":"","timings/predicted_n":0}'
    assert silenced(b"no json") == b"no json"
    token = b'data: {"index":0,"content":" a","tokens":[7],"stop":false}\n\n'
    progress = b'data: {"content":"","stop":false,"prompt_progress":{"total":3}}\n\n'
    error = b'data: {"error":{"code":500}}\n\n'
    assert silenced_records(progress + token + b"data: " + ANSWER + b"\n\n") == progress + b"data: " + SILENT + b"\n\n"
    assert silenced_records(token) == b""
    assert silenced_records(b": ping\n\n" + error) == b": ping\n\n" + error


SLOTS = b'[{"id":0,"n_ctx":100,"n_prompt_tokens":30},{"id":1,"n_ctx":100}]'


@pytest.mark.parametrize(
    ("argv", "ratio"),
    [
        ("llama-server --model m", "0.3"),
        ("llama-server --parallel 2", "0.15"),
        ("llama-server -np 2 -kvu", "0.3"),
        ("llama-server -np 2 -kvu -no-kvu", "0.15"),
        ("llama-server -np -1", "0.3"),
        ("python -P /venv/appliance/features/embedded/__main__.py --kv-unified-per-slot 100", "0.15"),
    ],
)
def test_the_cache_is_counted_over_the_context_that_the_slots_have(argv: str, ratio: str) -> None:
    lines = cache_lines(SLOTS, argv.split()).decode().splitlines()
    assert [line for line in lines if line[0] != "#"] == [
        f"llamacpp:kv_cache_usage_ratio {ratio}",
        "llamacpp:kv_cache_tokens 30",
    ]
    assert [line.split()[1:3] for line in lines if line.startswith("# TYPE")] == [
        ["TYPE", "llamacpp:kv_cache_usage_ratio"],
        ["TYPE", "llamacpp:kv_cache_tokens"],
    ]


def test_only_where_the_lines_are_missing() -> None:
    assert lacks_cache(b"# x\nllamacpp:n_decode_total 1\n")
    assert not lacks_cache(b"# x\nllamacpp:kv_cache_usage_ratio 0\n")
    assert not lacks_cache(b"# another server\nrequests 1\n")
    assert cache_lines(b'{"error":{}}', ()) == cache_lines(b"[]", ()) == b""
    assert b"kv_cache_tokens 0\n" in cache_lines(b'[{"n_ctx":0}]', ("--no-slots", "--slots"))
    assert cache_lines(b'[{"n_ctx":0}]', ("llama-server", "--metrics", "--no-slots")) == b"", "one that sleeps"
