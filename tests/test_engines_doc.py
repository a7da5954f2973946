"""docs/engines.md tells of every verb of ``engines``, and of no option, standing or route that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import click

from appliance.cli.engines import engines
from appliance.cli.serve import serve
from appliance.core.engines.choice import Standing
from appliance.core.engines.update import SPEED_KEPT
from appliance.engines.found import FOLDER_VARIABLE

DOC = (Path(__file__).parents[1] / "docs" / "engines.md").read_text("utf-8")
ROUTES = (Path(__file__).parents[1] / "appliance" / "http" / "control" / "engine_routes.py").read_text("utf-8")


def test_every_verb_is_there() -> None:
    for verb in engines.commands:
        assert f"`engines {verb}" in DOC, verb


def test_every_option_exists() -> None:
    commands = [*engines.commands.values(), serve]
    known = {flag for command in commands for parameter in command.params for flag in parameter.opts}
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", DOC):
        assert flag in known or flag == "--help", flag


def test_every_option_of_a_verb_that_changes_something_is_told_of() -> None:
    for verb in ("install", "update", "use", "remove"):
        for parameter in engines.commands[verb].params:
            if isinstance(parameter, click.Option) and parameter.opts[-1] not in ("--api-key", "--config-dir"):
                assert any(flag in DOC for flag in parameter.opts), (verb, parameter.opts)


def test_standings_routes_and_figures_are_the_programs() -> None:
    for standing in get_args(Standing):
        assert f"| `{standing}` |" in DOC
    for route in re.findall(r'add_url_rule\("([^"]+)"', ROUTES):
        assert route in DOC, route
    assert f"{SPEED_KEPT * 100:.0f} %" in DOC
    assert FOLDER_VARIABLE in DOC
