"""The documents tell the truth about names, routes, errors, flags and limits."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from appliance.cli.app import VERBS, cli
from appliance.cli.llama_front import FRONT
from appliance.cli.llama_models import REMOTE
from appliance.cli.llama_server import ANSWERED_BY_ENGINE
from appliance.errors import ApplianceError
from appliance.http import errors as http_errors
from appliance.http.way import resumable, routes

ROOT = Path(__file__).parents[1]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
WHERE = (ROOT / "docs" / "where-to-change.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
COMMANDS = (ROOT / "docs" / "command-line.md").read_text("utf-8")
HTTP = (ROOT / "docs" / "http.md").read_text("utf-8")
STAND_IN = (ROOT / "docs" / "llama-server.md").read_text("utf-8")


def leaves(cls: type[ApplianceError]) -> list[type[ApplianceError]]:
    return [leaf for sub in cls.__subclasses__() for leaf in leaves(sub)] or [cls]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 90
    for link in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (ROOT / link).exists(), link


def test_architecture_is_short_and_its_names_exist() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 150
    paths = r"`((?:appliance|tests|llama-builds|starter-model|packaging|plugins|installer|docs)/[\w./-]*)`"
    for name in re.findall(paths, ARCHITECTURE + WHERE):
        assert (ROOT / name).exists(), name
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "appliance").rglob("*.py"))
    for name in ("open_appliance", "open_fleet", "RequestHead", "Grant", "Refuse", "Exchange", "Sink", "Visit"):
        assert name in ARCHITECTURE
        assert re.search(rf"\b(def|class) {name}\b", source), name


@pytest.mark.parametrize(
    "folder", sorted(p.name for p in (ROOT / "appliance").iterdir() if (p / "__init__.py").exists())
)
def test_every_room_says_what_it_does_and_refuses(folder: str) -> None:
    assert f"appliance/{folder}/" in ARCHITECTURE
    assert "Refuses" in (ROOT / "appliance" / folder / "__init__.py").read_text("utf-8")


def test_every_model_route_is_documented() -> None:
    for path in (*routes._POST, *routes._ASK, *routes._LISTS):
        assert f"`{path}" in HTTP, path


def test_every_route_of_the_server_is_documented() -> None:
    sources = [path.read_text("utf-8") for path in sorted((ROOT / "appliance" / "http").rglob("*.py"))]
    found = [path for source in sources for path in re.findall(r'add_url_rule\(\s*"(/[^"<]*)', source)]
    assert len(found) >= 30
    for path in (*found, resumable.STREAM, resumable.LOOKUP, resumable.SOCKET):
        assert path.rstrip("/") in HTTP, path


def test_every_error_is_documented_with_its_status() -> None:
    for cls in leaves(ApplianceError):
        status, _ = next(http_errors.TABLE[c] for c in cls.__mro__ if c in http_errors.TABLE)
        rows = [line for line in HTTP.splitlines() if line.startswith(f"| {status} |")]
        assert rows, status
        assert f"`{cls.reason}`" in rows[0], cls


def test_every_verb_is_documented_and_explains_itself() -> None:
    for verb in VERBS:
        assert f"`{verb}" in COMMANDS, verb
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        assert command.help or verb == "llama-server"


def test_flags_in_the_documents_exist() -> None:
    commands = [cli.get_command(click.Context(cli), verb) for verb in VERBS]
    commands += [part for command in commands if isinstance(command, click.Group) for part in command.commands.values()]
    parameters = [parameter for command in commands if command is not None for parameter in command.params]
    known = {flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)}
    from appliance.core import llama_flags

    bootstrap = (ROOT / "bootstrap.py").read_text("utf-8") + (ROOT / "llama-builds" / "build.py").read_text("utf-8")
    suites = (ROOT / "tests" / "upstream_suite" / "run.py").read_text("utf-8")
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z_-]+", STAND_IN):
        assert llama_flags.lookup(flag) or flag in bootstrap or f'"{flag}"' in suites, flag
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", README + COMMANDS + HTTP):
        assert flag in known or llama_flags.lookup(flag) or flag in bootstrap or flag == "--help", flag


def test_every_option_that_the_stand_in_acts_on_is_documented() -> None:
    for flag in (*FRONT, *REMOTE, *ANSWERED_BY_ENGINE):
        assert f"`{flag}`" in STAND_IN, flag
