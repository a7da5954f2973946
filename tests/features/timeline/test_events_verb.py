"""``events``: what it prints for people and for programs, what it follows, and a time that it cannot read."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from command_line import Command
from serving import Serve, followed

from appliance.core.settings import FleetSettings

ONE = FleetSettings(models_max=1, stop_timeout=2.0)
SHOWN = [
    "loading   alpha is loaded: .*",
    r"loaded    alpha was ready after [\d.]+ s .*",
    r"evicted   alpha went for beta: 1 model may run at once, least recently used, idle \d s",
    "loading   beta .*",
    "loaded    beta .*",
]


def events(cli: Command, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cli.good("events", "--json", *words).splitlines()]


def test_people_and_programs_get_the_same(command: Command, serve: Serve) -> None:
    cli = command.at(serve(fleet=ONE).url)
    assert "nothing has happened yet" in cli.good("events")
    cli.good("load", "alpha")
    cli.good("load", "beta")
    shown = cli.good("events").splitlines()
    for line, pattern in zip(shown, SHOWN, strict=True):
        assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d  {pattern}", line)
    told = events(cli, "--since", "1h")
    assert [entry["why"] for entry in told] == [line[31:] for line in shown]
    assert events(cli, "--model", "alpha", "--kind", "evicted", "--kind", "loaded") == told[1:3]
    assert "nothing of that kind has happened" in cli.good("events", "--since", "2100-01-01T00:00:00Z")


def test_a_time_that_cannot_be_read_is_told(command: Command) -> None:
    assert "--since yesterday: expected 30m" in command.bad("events", "--since", "yesterday")


def test_what_is_followed_comes_at_once(command: Command, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_APPLIANCE_URL", serve().url)
    command.good("load", "alpha")
    before = events(command, "--model", "alpha")
    with followed("events", "--follow", "--json", "--model", "alpha") as lines:
        assert [json.loads(next(lines)) for _ in before] == before
        command.good("load", "beta")
        command.good("unload", "alpha")
        assert json.loads(next(lines))["kind"] == "unloaded"
