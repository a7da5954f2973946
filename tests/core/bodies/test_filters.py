"""What a configuration's filters do to a request, in which order, and how long that takes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_edit import delete_path, set_path
from speed_cases import timed

from appliance.core.bodies.filters import compile_edits, is_protected, stripped_paths
from appliance.core.config.additions import Json
from appliance.core.config.types import Filters, PeerFilters

CHAT = b'{"model": "llama", "temperature": 0.70, "messages": [{"role":"user","content":"hi"}], "stream":true}'


def applied(
    body: str,
    strip: str = "",
    params: dict[str, Json] | None = None,
    by_id: dict[str, dict[str, Json]] | None = None,
    *,
    use_model_name: str = "",
    requested: str = "llama",
    model: str | None = None,
) -> str:
    filters = Filters(strip_params=strip, set_params=params or {}, set_params_by_id=by_id or {})
    return compile_edits(filters, use_model_name).apply(body.encode(), requested, model=model).decode()


def test_the_order_is_name_strip_set_and_set_by_id():
    body = '{"model":"fast","a":1,"b":2,"c":3}'
    result = applied(
        body,
        "c, a",
        {"b": "set", "a": "set", "d": "set"},
        {"fast": {"d": "by id"}, "llama": {"d": "other"}},
        use_model_name="real",
        requested="fast",
    )
    assert result == '{"model":"real","b":"set","a":"set","d":"by id"}'


def test_setting_by_id_goes_by_the_name_the_client_asked_for():
    by_id: dict[str, dict[str, Json]] = {"llama:high": {"effort": "high"}, "llama": {"effort": "low"}}
    for requested, effort in (("llama:high", '"high"'), ("llama", '"low"')):
        assert applied("{}", by_id=by_id, requested=requested) == f'{{"effort":{effort}}}'
    assert applied("{}", by_id=by_id, requested="another") == "{}"


@pytest.mark.parametrize(
    "path", ["model", ":model", r"\model", r"mod\el", "model.x", r"\m\o\d\e\l.0", ":model.-1", "model*", "mod?l", "m*"]
)
def test_no_spelling_of_the_model_is_stripped_or_set(path: str):
    body = '{"mod\\u0065l":"llama","x":1}'
    assert applied(body, path) == body
    assert applied(body, params={path: "other"}) == body
    assert applied(body, by_id={"llama": {path: "other"}}) == body


@pytest.mark.parametrize("path", ["models", "a.model", r"model\.x", "Model", "model "])
def test_names_that_only_look_like_the_model_are_parameters(path: str):
    assert not is_protected(path)
    assert applied('{"model":"llama"}', params={path: 1}) != '{"model":"llama"}'


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("", []),
        ("model", []),
        ("top_k, temperature ,top_k", ["temperature", "top_k"]),
        ("b,a,model,:model", ["a", "b"]),
        ("a.b,\ta", ["a", "a.b"]),
    ],
)
def test_the_list_of_stripped_paths(text: str, paths: list[str]):
    assert stripped_paths(text) == paths


@pytest.mark.parametrize(
    ("use_model_name", "model", "sent"),
    [("", None, "llama"), ("real", None, "real"), ("", "bare", "bare"), ("real", "bare", "real")],
)
def test_the_name_that_is_sent(use_model_name: str, model: str | None, sent: str):
    edits = compile_edits(Filters(), use_model_name)
    assert json.loads(edits.apply(CHAT, "llama", model=model))["model"] == sent
    assert edits.apply(CHAT, "llama", model=model) == CHAT.replace(b'"llama"', json.dumps(sent).encode())
    assert (edits.sent_model(model) or "llama") == sent
    assert edits.touches("llama", model=model) is (sent != "llama")


def test_a_name_is_written_as_json():
    assert applied('{"model":"a"}', use_model_name='q"\\é') == '{"model":"q\\"\\\\é"}'
    assert applied('{"model":"a"}', use_model_name="\ud800") == '{"model":"\\ud800"}'


def test_values_are_written_as_json():
    values: dict[str, Json] = {"a": None, "b": [1, 2.5, True], "c": {"d": "é"}, "e": "\ud800", "f": 10**30}
    expected = '{"a":null,"b":[1,2.5,true],"c":{"d":"é"},"e":"\\ud800","f":1000000000000000000000000000000}'
    assert applied("{}", params=values) == expected


@pytest.mark.parametrize(
    ("filters", "touched"),
    [
        (Filters(), set[str]()),
        (Filters(strip_params="model, ,"), set[str]()),
        (Filters(strip_params="a"), {"llama", "alias"}),
        (Filters(set_params={"a": None}), {"llama", "alias"}),
        (Filters(set_params={"model": "x", "a..b": 1}), set[str]()),
        (Filters(set_params_by_id={"alias": {"a": 1}, "llama": {}}), {"alias"}),
        (PeerFilters(strip_params="a"), {"llama", "alias"}),
    ],
)
def test_a_body_that_nothing_touches_is_known_beforehand(filters: Filters | PeerFilters, touched: set[str]):
    edits = compile_edits(filters)
    assert {name for name in ("llama", "alias") if edits.touches(name)} == touched
    for name in {"llama", "alias"} - touched:
        assert edits.apply(CHAT, name) is CHAT


@pytest.mark.parametrize("body", ['{"a":1', '{"a":1}}', '{"a" 1}', "[1", "{'a':1}"])
def test_broken_json_is_left_to_the_model_to_refuse(body: str):
    assert applied(body, "a", {"b": 1}, use_model_name="real") == body


NAMES = st.sampled_from(["a", "b", "c", "model", "a.b", "a.0", "b.c.d", r"a\.b", "m*", "..", "x y"])
SETS = st.dictionaries(NAMES, st.none() | st.integers() | st.text() | st.lists(st.integers()), max_size=4)
BODIES = st.dictionaries(
    st.sampled_from("abcdm"),
    st.integers() | st.lists(st.integers()) | st.dictionaries(st.sampled_from("bcd"), st.text()),
)


@given(BODIES, st.lists(NAMES, max_size=4), SETS, SETS, st.sampled_from(["", "real"]))
def test_all_at_once_is_the_same_as_each_edit_alone(
    body: dict[str, object], strips: list[str], params: dict[str, Json], by_id: dict[str, Json], use_model_name: str
):
    raw = json.dumps({"model": "llama"} | body).encode()
    step = set_path(raw, "model", json.dumps(use_model_name).encode()) if use_model_name else raw
    for path in stripped_paths(",".join(strips)):
        step = delete_path(step, path)
    for values in (params, by_id):
        for path in sorted(values):
            if not is_protected(path):
                step = set_path(
                    step, path, json.dumps(values[path], separators=(",", ":"), ensure_ascii=False).encode()
                )
    filters = Filters(strip_params=",".join(strips), set_params=params, set_params_by_id={"llama": by_id})
    edits = compile_edits(filters, use_model_name)
    assert json.loads(edits.apply(raw, "llama")) == json.loads(step)
    assert json.loads(step)["model"] == (use_model_name or "llama")
    if not edits.touches("llama"):
        assert step == raw


def test_a_large_body_is_filtered_in_milliseconds():
    """A small one is timed in test_speed.py."""
    edits = compile_edits(Filters(strip_params="temperature, top_p", set_params={"top_k": 40, "a.b": False}), "real")
    turn = {"role": "user", "content": 'Lorem ipsum dolor sit amet, "consetetur" sadipscing\n' * 4}
    body = json.dumps({"model": "llama", "messages": [turn] * 4000, "temperature": 0.7}).encode()
    assert timed(lambda: edits.apply(body, "llama"), rounds=20).median < 15_000
