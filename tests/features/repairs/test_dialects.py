"""Requests of all kinds in four dialects: no word of a client's gets lost on its way to the engine without a note."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import PATHS, message_in, words_in
from corpus import bodies, table_of_dialects
from dialect_requests import REFUSED
from http_harness import OpenServer
from known_models import known
from msgspec import structs
from neutral import DIALECTS, PNG, WAV, WORD

from appliance.core.models.model import Model

ABLE = "{{ tools }}{{ messages }}<think></think>"
LACKS = ("reads no pictures", "reads no sound", "has no place for tools", "does not support thinking")
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "dialects.md"
NOTES = ("x-appliance-ignored", "x-appliance-repaired")


def places(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every text in a body, with the names and types on the way to it."""
    if isinstance(value, str):
        yield value, path
    elif isinstance(value, list):
        for each in value:
            yield from places(each, path)
    elif isinstance(value, dict):
        kind = value.get("type")
        for name, each in value.items():
            yield from places(each, (*path, *([kind] if isinstance(kind, str) else []), name))


def lost(body: bytes, got: str, notes: str) -> list[str]:
    """Return the words of a client that are neither in what the engine got, nor in a part that a note names."""
    found: list[str] = []
    for text, path in places(json.loads(body)):
        parts = [*WORD.findall(text), *(data for data in (PNG, WAV) if data in text)]
        found += [
            f"{part} at {path}"
            for part in parts
            if part not in got and not any(re.search(rf"\b{re.escape(name)}\b", notes) for name in path)
        ]
    return found


@pytest.mark.parametrize("can", [True, False], ids=["able", "unable"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_no_word_gets_lost(open_server: OpenServer, fake_model: Path, dialect: str, *, can: bool) -> None:
    wrong: dict[str, object] = {}
    refused: set[str] = set()
    async with open_server(models=[echo(fake_model, can=can)]) as server:
        for name, body in bodies(dialect).items():
            content = json.dumps({**body, "model": "echo"}).encode()
            answer = await server.ask("POST", PATHS[dialect], content)
            if 400 <= answer.status < 500:
                message = message_in(dialect, answer.body)
                if can or not any(each in message for each in LACKS):
                    refused.add(name)
                    wrong |= {} if name in REFUSED[dialect] else {name: (answer.status, message)}
            elif answer.status != 200:
                wrong[name] = answer.status, answer.body
            else:
                notes = ", ".join(value for note in NOTES if (value := answer.header(note)))
                if gone := lost(content, words_in(dialect, answer.body), notes):
                    wrong[name] = gone, notes
    assert not wrong
    assert refused == REFUSED[dialect]


def test_the_documentation_has_the_numbers() -> None:
    assert table_of_dialects() in DOCUMENT.read_text("utf-8")


def echo(file: Path, *, can: bool) -> Model:
    """A model whose answer is the request that its engine got. It can do everything, or nothing but talk."""
    template = ABLE if can else "{{ messages }}"
    made = known(file, "echo", "--script", json.dumps([{"echo": True}]), tokenizer__chat_template=template)
    return structs.replace(made, input_modalities=("text", "image", "audio") if can else ("text",))
