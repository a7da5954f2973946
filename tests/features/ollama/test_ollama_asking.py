"""Ollama's requests in llama-server's words, chats that are too long, and the file of derived models."""

from __future__ import annotations

import base64
import json
import logging
import math
import string
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.bodies import keep_alive
from appliance.core.models.names import meanings
from appliance.features.ollama.core import asking, shortening
from appliance.features.ollama.core.asking import PLAIN, DerivedPreset, OllamaRefusal
from appliance.features.ollama.core.models import Derived
from appliance.features.ollama.known import read_derived, write_derived

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
WAV = base64.b64encode(b"RIFF\0\0\0\0WAVEfmt ").decode()
MEMBERS = st.dictionaries(
    st.sampled_from(
        ["model", "name", "stream", "options", "keep_alive", "format", "think", "messages", "prompt", "suffix",
         "images", "logprobs", "top_logprobs", "tools", "raw", "system", "template", "context", "Model", "STREAM"]
    ),
    json_values(),
)  # fmt: skip


def chat(messages: object = None, preset: DerivedPreset = PLAIN, *, thinks: bool = False, **members: object) -> dict:
    said = [{"role": "user", "content": "hi"}] if messages is None else messages
    asked = asking.read_asked(json.dumps({"model": "m", "messages": said, **members}).encode())
    return json.loads(asking.chat_body(asked, "m", preset, thinks=thinks))


def prompt(body=asking.prompt_body, preset: DerivedPreset = PLAIN, **members: object) -> dict:
    asked = asking.read_asked(json.dumps({"model": "m", **members}).encode())
    more = {"thinks": False} if body is asking.prompt_body else {}
    return json.loads(body(asked, "m", preset, **more))


def refused(**members: object) -> tuple[int, str]:
    with pytest.raises(OllamaRefusal) as caught:
        chat(**members)
    return caught.value.status, caught.value.text


@given(st.text(min_size=1, max_size=60))
def test_the_shown_name_of_a_model_means_the_model(model_id: str):
    assert model_id in meanings(asking.shown_name(model_id))
    assert meanings(model_id)[0] == model_id
    assert asking.shown_name(asking.shown_name(model_id)) == asking.shown_name(model_id)


def test_what_a_name_may_mean():
    assert asking.shown_name("llama3") == "llama3:latest"
    assert asking.shown_name("localhost:5000/repo") == "localhost:5000/repo:latest"
    assert meanings("hf.co/org/repo:Q8_0") == ("hf.co/org/repo:Q8_0", "org/repo:Q8_0")
    assert "llama3" in meanings("registry.ollama.ai/library/llama3:latest")
    assert meanings("llama3:local") == ("llama3:local", "llama3")
    assert asking.is_cloud("gpt-oss:120b-cloud")
    assert not asking.is_cloud("my-cloud")


PART = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=20)


@given(st.none() | PART, st.none() | PART, PART, st.none() | PART)
def test_names_that_follow_the_rules_are_expressible(host: str | None, space: str | None, model: str, tag: str | None):
    name = "/".join(part for part in (host, space, model) if part) + (f":{tag}" if tag else "")
    assert asking.is_expressible(name)
    for wrong in (f"{name}/", f"/{name}", f"{name}:", f"{name} x", f"{name}::a", "a/b/c/d", "", ".a", "a" * 81):
        assert not asking.is_expressible(wrong)


KEPT = [(None, None), (0, 0), (1.5, 1.5), (-1, math.inf), ("5m", 300), ("1h30m", 5400), ("300ms", 0.3)]
KEPT += [("-1m", math.inf), ("0", 0), ("-0", 0), (".5s", 0.5)]


@pytest.mark.parametrize(("given", "seconds"), KEPT)
def test_how_long_a_model_is_kept(given: object, seconds: float | None):
    assert asking.keep_alive_of(given) == (pytest.approx(seconds) if seconds is not None else None)


@pytest.mark.parametrize("given", ["-1", "5", "", "5 m", "m", "1d", "five", True, [], {}, "1e3s", "٣s"])
def test_durations_that_are_refused(given: object):
    with pytest.raises(OllamaRefusal) as caught:
        asking.keep_alive_of(given)
    assert caught.value.status == 400


def test_a_header_may_hold_a_number_or_a_duration():
    assert keep_alive.seconds_in(" 30 ") == 30
    assert keep_alive.seconds_in("-1") == math.inf
    assert keep_alive.seconds_in("5m") == 300
    assert keep_alive.seconds_in(" ") is None
    for wrong in ("nan", "inf", "1e400", "soon"):
        with pytest.raises(ValueError, match=r"keep_alive|duration"):
            keep_alive.seconds_in(wrong)


def test_options_are_renamed_and_unknown_ones_left_out():
    known = {"num_predict": 7.9, "temperature": 0, "num_ctx": 8192, "stop": "x", "mirostat": 2}
    sent = chat(options={**known, "tfs_z": 1, "top_k": None})
    assert sent["max_tokens"] == 7
    assert (sent["temperature"], sent["stop"], sent["mirostat"]) == (0, ["x"], 2)
    assert not {"num_ctx", "num_predict", "tfs_z", "top_k"} & sent.keys()
    assert "max_tokens" not in chat(options={"num_predict": -1})
    assert asking.context_of({"num_ctx": 8192.0}) == 8192
    assert asking.context_of({"num_ctx": None}) is None


def test_without_options_the_models_own_sampling_applies():
    assert chat().keys() == {"model", "messages", "stream", "stream_options"}


WRONG = {"num_predict": ("7", "integer"), "top_k": (True, "integer"), "temperature": ("hot", "float32")}
WRONG |= {"stop": ([1], "array"), "use_mmap": (1, "boolean"), "num_ctx": ([], "integer")}


@pytest.mark.parametrize("name", WRONG)
def test_an_option_of_a_wrong_type(name: str):
    value, kind = WRONG[name]
    assert refused(options={name: value}) == (500, f'option "{name}" must be of type {kind}')


def test_a_derived_models_parameters_come_before_the_requests():
    before = ({"role": "user", "content": "a"},)
    preset = DerivedPreset(system="be brief", parameters={"temperature": 1, "top_k": 3}, messages=before)
    sent = chat(preset=preset, options={"temperature": 0})
    assert (sent["temperature"], sent["top_k"]) == (0, 3)
    assert [one["content"] for one in sent["messages"]] == ["be brief", "a", "hi"]
    own = chat([{"role": "system", "content": "mine"}], preset=DerivedPreset(system="not this"))
    assert [one["content"] for one in own["messages"]] == ["mine"]


def test_pictures_and_sounds_become_parts():
    images = [PNG, f"data:image/png;base64,{PNG}", WAV]
    [message] = chat([{"role": "User", "content": "what is it", "images": images}])["messages"]
    text, first, second, sound = message["content"]
    assert message["role"] == "user"
    assert text == {"type": "text", "text": "what is it"}
    assert first == second == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    assert sound["input_audio"]["format"] == "wav"


@pytest.mark.parametrize("images", [["not base64!"], [1], "x", [f"{PNG}="], ["äöü="]])
def test_pictures_that_are_none(images: object):
    assert refused(messages=[{"role": "user", "content": "", "images": images}])[0] == 400


def test_results_of_tools_find_their_calls():
    calls = [{"function": {"name": name, "arguments": {"x": 1}}} for name in ("a", "b", "a")]
    of = ({"tool_name": "b"}, {}, {"tool_name": "a"}, {"tool_call_id": "mine"})
    results = [{"role": "tool", "content": "x", **whose} for whose in of]
    sent = chat([{"role": "assistant", "content": None, "thinking": "hm", "tool_calls": calls}, *results])["messages"]
    ids = [call["id"] for call in sent[0]["tool_calls"]]
    assert len(set(ids)) == 3
    assert [one.get("tool_call_id") for one in sent[1:]] == [ids[1], ids[0], ids[2], "mine"]
    assert json.loads(sent[0]["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
    assert (sent[0]["content"], sent[0]["reasoning_content"]) == ("", "hm")


def test_arguments_may_be_text_already():
    call = {"id": "c", "function": {"name": "f", "arguments": '{"x":1}'}}
    [sent] = chat([{"role": "assistant", "tool_calls": [call]}])["messages"]
    assert sent["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}]


def test_formats():
    assert chat(format="json")["response_format"] == {"type": "json_object"}
    schema = {"type": "object"}
    assert chat(format=schema)["response_format"]["json_schema"] == {"name": "schema", "schema": schema}
    assert "response_format" not in chat(format="")
    status, text = refused(format="xml")
    assert (status, text[:15]) == (500, "invalid format:")


def test_thinking():
    assert "chat_template_kwargs" not in chat()
    assert chat(thinks=True)["chat_template_kwargs"] == {"enable_thinking": True}
    assert chat(thinks=True, think=False)["chat_template_kwargs"] == {"enable_thinking": False}
    assert chat(think="high")["chat_template_kwargs"] == {"enable_thinking": True, "reasoning_effort": "high"}
    assert "chat_template_kwargs" not in chat(think=False)
    assert refused(think="much")[0] == 400
    assert refused(think=1)[0] == 400


def test_log_probabilities():
    sent = chat(logprobs=True, top_logprobs=2)
    assert (sent["logprobs"], sent["top_logprobs"]) == (True, 2)
    assert prompt(asking.raw_body, prompt="x", logprobs=True, top_logprobs=2)["logprobs"] == 2
    assert prompt(asking.infill_body, prompt="x", suffix="y", logprobs=True)["n_probs"] == 1
    assert refused(top_logprobs=21) == (400, "top_logprobs must be between 0 and 20")


def test_prompts():
    sent = prompt(prompt="hi", system="be brief", images=[PNG], stream=False)
    assert [one["role"] for one in sent["messages"]] == ["system", "user"]
    assert sent["stream"] is False
    raw = prompt(asking.raw_body, prompt="as it is", options={"num_predict": 3})
    assert (raw["prompt"], raw["max_tokens"]) == ("as it is", 3)
    infill = prompt(asking.infill_body, prompt="a", suffix="b", options={"num_predict": 3})
    assert (infill["input_prefix"], infill["input_suffix"], infill["n_predict"]) == ("a", "b", 3)


NEVER = [
    (asking.raw_body, {"system": "y"}, 400), (asking.raw_body, {"images": [PNG]}, 501),
    (asking.prompt_body, {"context": [1]}, 501), (asking.prompt_body, {"template": "{{ .Prompt }}"}, 501),
]  # fmt: skip


@pytest.mark.parametrize(("body", "members", "status"), NEVER)
def test_what_a_prompt_may_not_have(body: object, members: dict, status: int):
    with pytest.raises(OllamaRefusal) as caught:
        prompt(body, prompt="x", **members)
    assert caught.value.status == status


@pytest.mark.parametrize("body", [b"", b" \n", b"[]", b"{", b'"x"', b"\xff", b"[" * 5000])
def test_bodies_that_are_none(body: bytes):
    with pytest.raises(OllamaRefusal) as caught:
        asking.read_asked(body)
    assert caught.value.status == 400


def translations(members: dict) -> list[bytes]:
    asked = asking.read_asked(json.dumps(members).encode())
    given = isinstance(asked.members.get("messages"), list)
    chats = [asking.chat_body(asked, "m", PLAIN, thinks=True)] if given else []
    return [*chats, asking.prompt_body(asked, "m", PLAIN, thinks=False), asking.infill_body(asked, "m", PLAIN)]


@given(MEMBERS)
def test_any_request_is_translated_or_refused_with_a_text(members: dict):
    refusal, bodies = None, []
    try:
        bodies = translations(members)
    except OllamaRefusal as caught:
        refusal = caught
    assert refusal is None or (refusal.status in (400, 500, 501) and refusal.text and "\n" not in refusal.text)
    assert all(json.loads(body)["model"] == "m" for body in bodies)


def test_members_are_found_in_any_case():
    asked = asking.read_asked(b'{"Model":"m","STREAM":false}')
    assert (asked.name, asked.streams) == ("m", False)
    assert asking.read_asked(b'{"name":"n"}').name == "n"


PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 100_000}"}}
CONTENT = st.text(max_size=30) | st.just([{"type": "text", "text": "see"}, PICTURE])
MESSAGES = st.lists(
    st.builds(lambda role, content: {"role": role, "content": content}, st.sampled_from(["system", "user"]), CONTENT),
    min_size=1,
    max_size=8,
)


def long_chat(messages: list[dict]) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "stream": True}).encode()


@given(MESSAGES, st.integers(0, 10))
def test_the_oldest_go_first(messages: list[dict], count: int):
    kept = shortening.chat_messages(shortening.without_oldest(long_chat(messages), count))
    may_go = [place for place, message in enumerate(messages[:-1]) if message["role"] != "system"]
    gone = set(may_go[:count])
    assert kept == [message for place, message in enumerate(messages) if place not in gone]
    assert json.loads(shortening.without_oldest(long_chat(messages), count))["stream"] is True


@given(MESSAGES)
def test_bytes_bound_tokens_and_pictures_count_by_their_number(messages: list[dict]):
    body = long_chat(messages)
    texts = sum(len(str(message["content"]).encode()) for message in messages if isinstance(message["content"], str))
    seen = sum(isinstance(message["content"], list) for message in messages)
    assert shortening.pictures(body) == seen
    least = texts + seen * shortening.IMAGE_TOKENS
    assert shortening.may_be_too_long(body, max(0, least - 1))
    assert not shortening.may_be_too_long(body, least + 100 * len(messages) + 4 * texts)


@given(MESSAGES)
def test_only_texts_are_rendered(messages: list[dict]):
    sent = json.loads(shortening.template_body(long_chat(messages)))
    assert sent.keys() == {"model", "messages"}
    assert [message["content"] for message in sent["messages"]] == [
        message["content"] if isinstance(message["content"], str) else "see" for message in messages
    ]


DERIVED = st.dictionaries(st.text(max_size=5), json_values(), max_size=3)
MODELS = st.lists(
    st.builds(
        Derived, name=st.text(min_size=1, max_size=8), base=st.text(max_size=8), made_at=st.just(1.5),
        preset=st.builds(
            DerivedPreset, system=st.text(max_size=8), parameters=DERIVED,
            messages=st.lists(DERIVED, max_size=2).map(tuple),
        ),
    ),
    max_size=4,
)  # fmt: skip


@given(MODELS)
def test_what_is_written_is_read(models: list[Derived]):
    by_name = {model.name.casefold(): model for model in models}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "there" / "derived.json"
        assert read_derived(file) == {}
        write_derived(file, by_name)
        assert read_derived(file) == by_name


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version":2,"models":[]}', b'{"version":1,"models":[{"name":1}]}', b"\xff"]
)
def test_a_damaged_file_is_set_aside(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "derived.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert read_derived(path) == {}
    assert (tmp_path / "derived.json.unreadable").read_bytes() == content
    assert len(caplog.messages) == 1
    write_derived(path, {"a": Derived(name="a", base="b")})
    assert json.loads(path.read_bytes())["models"][0]["base"] == "b"
