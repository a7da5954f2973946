"""Requests as editors, phones and tools of Ollama's world send them, and the fields without which each of them fails.

`ollama_requests.json` has them by client. They are written from what these clients' sources send and read, and are sent
to the installed program with real engines, one client after the other. Words for fields: ``text`` is not empty,
``string`` may be; ``count`` is at least 1, ``number`` may be 0; ``=x`` and ``~x`` are and contain x.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from program import Answer, Server, http

CLIENTS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "ollama_requests.json").read_text("utf-8")
)
MISSING = object()

IS = {
    "text": lambda value: isinstance(value, str) and value != "",
    "string": lambda value: isinstance(value, str),
    "tagged": lambda value: isinstance(value, str) and ":" in value,
    "version": lambda value: re.fullmatch(r"\d+(\.\d+)+", value) and tuple(map(int, value.split("."))) >= (0, 6, 4),
    "digest": lambda value: re.fullmatch(r"[0-9a-f]{64}", value),
    "time": lambda value: datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", value)).tzinfo is not None,
    "bool": lambda value: isinstance(value, bool),
    "count": lambda value: type(value) is int and value >= 1,
    "number": lambda value: type(value) is int and value >= 0,
    "nanoseconds": lambda value: type(value) is int and value > 100_000,
    "object": lambda value: isinstance(value, dict),
    "absent": lambda value: value is MISSING,
    "absent|list": lambda value: value is MISSING or isinstance(value, list),
}


def found(told: Any, path: str) -> list[Any]:
    """Every value at the path. Members of ``model_info`` have dots in their names."""
    if not path:
        return [told]
    if path.startswith("[]"):
        assert isinstance(told, list), path
        assert told, f"there is nothing in {path}"
        return [value for each in told for value in found(each, path[2:].removeprefix("."))]
    name, rest = (path, "") if path in told else re.fullmatch(r"([^.\[]+)\.?(.*)", path).groups()  # type: ignore[union-attr]
    return found(told[name], rest) if name in told else [MISSING]


def check(told: Any, fields: dict[str, Any]) -> None:
    for path, word in fields.items():
        for value in found(told, path):
            if not isinstance(word, str):
                assert value is word, (path, value)
            elif word[:1] == "=":
                assert value == word[1:], (path, value)
            elif word[:1] == "~":
                assert word[1:] in value, (path, value)
            else:
                assert IS[word](value), (path, word, value)


def header(answer: Answer, name: str) -> str:
    return next((value for key, value in answer.headers.items() if key.lower() == name), "")


@pytest.mark.parametrize("client", CLIENTS)
def test_what_a_client_asks_for_is_there(server: Server, client: str) -> None:
    for step in CLIENTS[client]:
        method, path = step["ask"].split()
        answer = http(server, method, path, step.get("body"), **step.get("headers", {}))
        statuses = step.get("status", 200)
        told = f"{step['ask']}: {answer.body[:500]!r}"
        assert answer.status in (statuses if isinstance(statuses, list) else [statuses]), told
        if "allows" in step:
            assert header(answer, "access-control-allow-origin") == step["allows"], told
        if "text" in step:
            assert answer.body.decode() == step["text"]
        if "has" in step:
            assert header(answer, "content-type").startswith("application/json"), told
            check(answer.json(), step["has"])
        if "each" in step:
            assert header(answer, "content-type") == "application/x-ndjson", told
            records = [json.loads(line) for line in answer.body.splitlines()]
            for record in records:
                check(record, step["each"])
            check(records[-1], step["last"])
