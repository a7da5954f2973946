"""What plugins share, and what holds for every plugin that ships."""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import pytest
from bundled import NAMES, PLUGINS, module

from appliance.plugins import Event, Refused, chat
from appliance.plugins.options import options
from appliance.plugins.testing import streamed

IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@dataclass(frozen=True, kw_only=True)
class Settings:
    names: list[str] | None = None
    count: int = 3
    way: Literal["up", "down"] = "up"
    anything: object = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError("'count' must be 1 or more")


def test_settings_with_defaults() -> None:
    assert options({}, Settings) == Settings()
    given = {"names": ["a"], "count": 1, "way": "down", "anything": {"x": [1]}}
    assert options(given, Settings) == Settings(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cuont": 1}, "unknown setting 'cuont'; did you mean 'count'"),
        ({"zzz": 1}, "unknown setting 'zzz'; there are names, count, way, anything"),
        ({"count": "1"}, r"Expected `int`, got `str` - at `\$.count`"),
        ({"count": 0}, "'count' must be 1 or more"),
        ({"way": "left"}, r"'left' - at `\$.way`"),
        ({"names": [1]}, r"at `\$.names\[0\]`"),
    ],
)
def test_wrong_settings_are_told_by_name(given: dict, message: str) -> None:
    with pytest.raises(Refused, match=message):
        options(given, Settings)


@pytest.mark.parametrize(
    ("content", "text", "changed"),
    [
        ("hi", "hi", "new"),
        (None, "", "new"),
        (
            [{"type": "text", "text": "a"}, IMAGE, {"type": "text", "text": "b"}],
            "a\nb",
            [{"type": "text", "text": "new"}, IMAGE],
        ),
    ],
)
def test_the_text_of_a_message(content: object, text: str, changed: object) -> None:
    message = {"role": "user", "content": content}
    assert chat.text_of(message) == text
    chat.set_text(message, "new")
    assert message["content"] == changed


def test_the_last_message_of_the_user() -> None:
    first, last = {"role": "user", "content": "1"}, {"role": "user", "content": "2"}
    assert chat.last_user({"messages": [first, last, {"role": "assistant", "content": "3"}]}) is last


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": [{"text": "x"}]}, {"choices": "x"}])
def test_an_answer_without_a_message(body: dict) -> None:
    assert chat.answer_text(body) == ""


def test_a_stream_is_read_and_answered_in_its_own_shape() -> None:
    events = streamed("Good ", "day")
    said = chat.Streamed()
    for event in events:
        said.add(event)
    assert (said.text, said.finish_reason, said.tool_calls) == ("Good day", "stop", False)
    other = chat.saying(said, events, "Bad night")
    again = chat.Streamed()
    for event in other:
        again.add(event)
    assert (again.text, again.finish_reason) == ("Bad night", "stop")
    assert {event.data["id"] for event in other if event.data} == {"chatcmpl-test"}
    assert other[-1].data is None


def test_usage_stays_behind_the_end() -> None:
    *events, done = streamed("x")
    usage = Event(data={"choices": [], "usage": {"total_tokens": 1}})
    assert chat.after_end([*events, usage, done]) == [usage, done]
    assert chat.after_end([]) == [done]


def test_a_member_goes_to_the_record_that_ends_the_answer() -> None:
    marked = chat.with_member(streamed("x"), "note", 1)
    assert [bool(chat.finished(event)) for event in marked] == [
        bool(event.data and "note" in event.data) for event in marked
    ]
    assert sum(bool(chat.finished(event)) for event in marked) == 1


def test_other_choices_are_not_mixed_in() -> None:
    said = chat.Streamed()
    for index, text in ((0, "a"), (1, "b"), (0, "c")):
        said.add(Event(data={"choices": [{"index": index, "delta": {"content": text}}]}))
    assert said.text == "ac"


SETTINGS = {"json": "fitting", "parallel": "settings", "rag": "settings", "summarize": "agent"}
PER_FILE = [pytest.param(path, id=str(path.relative_to(PLUGINS))) for path in sorted(PLUGINS.glob("*/*.py"))]


def test_all_are_known() -> None:
    assert sorted(path.parent.name for path in PLUGINS.glob("*/agent.py")) == sorted(NAMES)


@pytest.mark.parametrize("path", PER_FILE)
def test_a_plugin_imports_its_interface_and_the_standard_library(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            allowed = name.startswith("appliance.plugins")
            assert allowed or name.partition(".")[0] in sys.stdlib_module_names, name


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_has_every_setting_and_its_default(name: str) -> None:
    kind = module(name, SETTINGS[name]).Settings
    defaults = {field.name: getattr(kind(), field.name) for field in fields(kind)}
    readme = (PLUGINS / name / "README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^|]*)` \|", readme, re.MULTILINE))
    told = {key: json.loads(value) for key, value in rows.items()}
    assert told == json.loads(json.dumps(defaults))


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_has_settings_that_exist(name: str) -> None:
    config = json.loads((PLUGINS / name / "config.json").read_text("utf-8"))
    known = {field.name for field in fields(module(name, SETTINGS[name]).Settings)}
    assert config["settings"].keys() <= known
    assert config["description"]
