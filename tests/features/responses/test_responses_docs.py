"""What docs/dialects.md says of the Responses API is what the code does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args, get_type_hints

from appliance.features.responses.core.members import ITEMS, MEMBERS, PARTS, TOOLS

DOCS = Path(__file__).parents[3] / "docs" / "dialects.md"


def table(head: str, rows: Iterable[tuple[str, str, str]]) -> list[str]:
    return [f"| {head} | what becomes of it | |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]


def grouped(facts: Mapping[str, tuple[str, str]]) -> list[tuple[str, str, str]]:
    """One row for those of which the same is said."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, fact in facts.items():
        names.setdefault(fact, []).append(f"`{name}`")
    return [(" ".join(each), *fact) for fact, each in names.items()]


TABLES = [
    table("member", grouped({name: (each.treatment, each.words) for name, each in MEMBERS.items()})),
    table("input item", grouped(ITEMS)),
    table("part of a message", grouped(PARTS)),
    table("tool", [*grouped(TOOLS), ("every other type", "ignored", "")]),
]


def test_the_tables_are_those_of_the_code():
    section = DOCS.read_text("utf-8").partition("## OpenAI's Responses")[2].partition("\n## ")[0].splitlines()
    told = [line for line in section if line.startswith("|")]
    assert told == [line for each in TABLES for line in each], "\n".join("\n".join(each) for each in TABLES)


def test_every_member_and_item_of_openais_client_is_there():
    from openai.types.responses import ResponseInputItemParam
    from openai.types.responses.input_token_count_params import InputTokenCountParams
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    known = {*get_type_hints(ResponseCreateParamsBase), *get_type_hints(InputTokenCountParams), "stream"}
    assert known == set(MEMBERS) - {"client_metadata"}  # of Codex alone
    items = {get_args(word)[0] for kind in get_args(ResponseInputItemParam) for word in types_of(kind)}
    assert items == set(ITEMS)


def types_of(kind: type) -> list[object]:
    """The ``type`` of a typed dictionary: a literal, which may be required or null."""
    found = get_type_hints(kind).get("type")
    while found is not None and not isinstance(get_args(found)[0], str):
        found = get_args(found)[0]
    return [] if found is None else [found]
