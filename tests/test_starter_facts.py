"""What the starter model was taught about the program is true of the program."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path

import click
import pytest

from appliance.catalog.catalog import STARTER_ID
from appliance.catalog.sources import STARTER
from appliance.cli.app import command_line
from appliance.core.settings import DEFAULT_MODELS_MAX, HttpSettings
from appliance.feature import verb_ground
from appliance.features import FEATURES

CLI = command_line(verb_ground(FEATURES))
FOLDER = Path(__file__).parents[1] / "starter-model"


FACTS: dict[str, str] = runpy.run_path(str(FOLDER / "product.py"))["facts"]()
COMMANDS = sorted(value for value in FACTS.values() if value.startswith("llama-appliance "))


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_one(line: str) -> None:
    _, *words = shlex.split(line)
    if words == ["--help"]:
        return
    verb, *rest = words
    assert verb in CLI.verbs
    command = CLI.get_command(click.Context(CLI), verb)
    flags = {flag for parameter in command.params for flag in parameter.opts} | {"--help"}
    arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
    for word in rest:
        if word.startswith("-"):
            assert word in flags, word
    assert not rest or rest[0].startswith("-") or arguments, f"{verb} takes no argument"


def test_flags_addresses_and_numbers() -> None:
    serve = CLI.get_command(click.Context(CLI), "serve")
    flags = {flag for parameter in serve.params for flag in parameter.opts}
    for name in ("LISTEN_FLAG", "API_KEY_FLAG", "MODELS_DIR_FLAG", "MODELS_MAX_FLAG"):
        assert FACTS[name].split()[0] in flags
    ((host, port),) = HttpSettings().listen
    assert FACTS["ADDRESS"] == FACTS["ANTHROPIC_BASE_URL"] == f"http://{host}:{port}"
    assert FACTS["OPENAI_BASE_URL"] == f"{FACTS['ADDRESS']}/v1"
    assert FACTS["MODELS_MAX"] == {4: "four"}[DEFAULT_MODELS_MAX]
    assert FACTS["MODEL_ID"] == STARTER_ID
    assert FACTS["MODEL_FILE"] == STARTER.name
    assert (FOLDER.parent / FACTS["SERVE_FROM_CLONE"].split()[1]).is_file()
    assert FACTS["LICENSE"] in (FOLDER.parent / "LICENSE").read_text("utf-8")
