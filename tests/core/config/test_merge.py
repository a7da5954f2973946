"""Several documents as one: laws for what cannot clash, a table for what can."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_values import mapping, plain, told

from appliance.core.config.load import merge
from appliance.core.config.nodes import MappingNode, Problem

KEYS = st.text("abcdefgh", min_size=1, max_size=3)
VALUES = st.recursive(
    st.integers(-999, 999) | st.text("xyz 1:'", max_size=4) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=4)


def merged(*texts: str) -> tuple[MappingNode, list[Problem]]:
    return merge([mapping(text, f"{number}.yaml") for number, text in enumerate(texts, 1)])


def as_text(document: dict[str, object]) -> str:
    return json.dumps(document)


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_disjoint_documents_are_put_together_in_order(
    one: dict[str, object], two: dict[str, object], three: dict[str, object]
) -> None:
    documents = [{f"{n}{key}": value for key, value in each.items()} for n, each in enumerate((one, two, three))]
    root, problems = merged(*map(as_text, documents))
    expected = documents[0] | documents[1] | documents[2]
    assert problems == []
    assert plain(root) == expected
    assert list(expected) == [entry.key.text for entry in root.entries]


@given(st.dictionaries(KEYS, st.integers(-999, 999) | st.text("xyz", max_size=4), max_size=5))
def test_the_same_said_twice_is_said_once(document: dict[str, object]) -> None:
    root, problems = merged(as_text(document), as_text(document))
    assert (plain(root), problems) == (document, [])


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_order_of_joining_does_not_matter(
    one: dict[str, object], two: dict[str, object], three: dict[str, object]
) -> None:
    documents = [mapping(as_text(each), f"{n}.json") for n, each in enumerate((one, two, three))]
    all_at_once, problems = merge(documents)
    if not problems:
        first_two, _ = merge(documents[:2])
        assert merge([first_two, documents[2]])[0] == all_at_once


def test_no_document_is_an_empty_mapping() -> None:
    root, problems = merge([])
    assert (root.entries, problems) == ((), [])


JOINED: list[tuple[str, str, object]] = [
    ("a: {b: {c: 1}}", "a: {b: {d: 2}}", {"a": {"b": {"c": 1, "d": 2}}}),
    ("a: [1, 2]", "a: [2, 3]", {"a": [1, 2, 2, 3]}),
    ("a: 5", "a: 5", {"a": 5}),
    ("a: x", "a: 'x'", {"a": "x"}),
    ("a:", "a: {b: 1}", {"a": {"b": 1}}),
    ("a: [1]", "a: ~", {"a": [1]}),
    ("a:", "a:", {"a": None}),
    ("models: {a: {}}", "models: {b: {}}", {"models": {"a": {}, "b": {}}}),
    ("macros: {x: 1}", "macros: {y: 2, x: 1}", {"macros": {"x": 1, "y": 2}}),
    ("apiKeys: [a]", "apiKeys: [a]", {"apiKeys": ["a", "a"]}),
    (
        "routing: {router: {settings: {groups: {g: {}}}}}",
        "routing: {router: {use: group, settings: {groups: {h: {}}}}}",
        {"routing": {"router": {"settings": {"groups": {"g": {}, "h": {}}}, "use": "group"}}},
    ),
    ("hooks: {models: {m: 1}}", "hooks: {models: {m: 1}}", {"hooks": {"models": {"m": 1}}}),
]


@pytest.mark.parametrize(("base", "other", "expected"), JOINED)
def test_joined(base: str, other: str, expected: object) -> None:
    root, problems = merged(base, other)
    assert problems == []
    assert plain(root) == expected


CLASHES = [
    ("a: 1", "a: 2", "1:4 error a"),
    ("a: 5", "a: '5'", "1:4 error a"),
    ("a: 10", "a: 0xA", "1:4 error a"),
    ("a: {b: {c: 1}}", "a: {b: {c: 2}}", "1:12 error a.b.c"),
    ("a: 1", "a: [1]", "1:4 error a"),
    ("a: {}", "a: []", "1:4 error a"),
    ("a: {}", "a: x", "1:4 error a"),
    *[
        (f"{key}: {{x: {{}}}}", f"{key}: {{x: {{}}}}", f"1:{len(key) + 4} error {key}.x")
        for key in ("models", "groups", "profiles", "selectors", "peers", "matrix")
    ],
    ("models: {m: }", "models: {m: }", "1:10 error models.m"),
    ("matrix: {sets: {a: x}}", "matrix: {sets: {b: y}}", "1:10 error matrix.sets"),
    *[
        (
            f"routing: {{router: {{settings: {{{key}: {{x: 1}}}}}}}}",
            f"routing:\n router:\n  settings:\n   {key}:\n    x: 1",
            f"5:5 error routing.router.settings.{key}.x",
        )
        for key in ("groups", "matrix")
    ],
]


@pytest.mark.parametrize(("base", "other", "where"), CLASHES)
def test_clash_names_both_places_and_the_path(base: str, other: str, where: str) -> None:
    root, problems = merged(base, other)
    assert told(problems) == [where]
    assert problems[0].at is not None
    assert problems[0].at.file == "2.yaml"
    assert "1.yaml:1:" in problems[0].message
    assert plain(root) == plain(mapping(base))


def test_all_clashes_are_told() -> None:
    _, problems = merged("a: 1\nb: {c: 1}\nmodels: {m: 1}", "a: 2\nb: {c: 2}", "a: 3\nmodels: {m: 1}")
    assert [(p.at.file, p.path) for p in problems if p.at] == [
        ("2.yaml", "a"),
        ("2.yaml", "b.c"),
        ("3.yaml", "a"),
        ("3.yaml", "models.m"),
    ]


def test_nodes_keep_the_place_of_their_file() -> None:
    root, _ = merged("a: {x: 1}", "a: {y: 2}\nb: 3")
    assert [entry.key.at.file for entry in root.entries] == ["1.yaml", "2.yaml"]
    assert [str(entry.value.at) for entry in root.get("a").entries] == ["1.yaml:1:8", "2.yaml:1:8"]
