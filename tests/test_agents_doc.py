"""docs/agents.md tells the truth about routes, keys, states and reasons."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from msgspec import structs

from appliance.agents.record import RunResult, RunStatus
from appliance.cli.agent import run_agent
from appliance.core.config.types import RunsConfig
from appliance.core.runs import FailReason, FinishReason, RunState
from appliance.http.control.run_request import KEYS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "agents.md").read_text("utf-8")


def rows(after: str) -> str:
    """The first table behind some words."""
    return re.split(r"\n\n", PAGE.split(after, 1)[1].split("\n|", 1)[1])[0]


def test_every_key_of_a_run_is_there_and_no_other() -> None:
    cells = [row.split("|")[0 if at == 0 else 1] for at, row in enumerate(rows("## Asking for one").split("\n"))]
    told = set(re.findall(r"`([a-z_]+)`", "".join(cells)))
    assert told == set(KEYS)


def test_states_and_reasons_are_there() -> None:
    table = rows("whatever the reason")
    assert set(re.findall(r"^\| `([a-z_]+)`", table, re.MULTILINE)) == set(get_args(FailReason))
    for word in (*get_args(RunState), *get_args(FinishReason)):
        assert f"`{word}`" in PAGE, word


def test_fields_of_answers_are_there() -> None:
    for field in {*RunStatus.__struct_fields__, *RunResult.__struct_fields__} - {"id", "model"}:
        assert f"`{field}`" in PAGE, field


def test_routes_are_there() -> None:
    source = (ROOT / "appliance" / "http" / "control" / "run_routes.py").read_text("utf-8")
    found = re.findall(r'add_url_rule\("([^"]+)"', source)
    assert len(found) >= 9
    for path in found:
        written = path.replace("<run_id>", "ID").replace("<path:model>", "MODEL")
        assert written in PAGE, written


def test_settings_and_flags_exist() -> None:
    names = {info.encode_name for info in structs.fields(RunsConfig)}
    assert set(re.findall(r"`runs\.([A-Za-z]+)`", PAGE)) <= names
    flags = {flag for option in run_agent.params for flag in option.opts}
    used = re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)
    assert set(used) <= flags
