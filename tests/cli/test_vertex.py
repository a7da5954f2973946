"""llama-server in a container of Vertex AI, which tells it by ``AIP_*`` how to listen."""

from __future__ import annotations

import pytest
from command_line import Command

from appliance.core.settings import HttpSettings
from appliance.settings import AppSettings

pytestmark = pytest.mark.usefixtures("plain_environment")


def parsed(command: Command, *argv: str) -> HttpSettings:
    outcome = command("llama-server", *argv)
    assert isinstance(outcome.program, AppSettings), outcome.err
    return outcome.program.http


@pytest.mark.parametrize("model", [(), ("-m", "x.gguf")])
def test_the_environment_says_where(command: Command, monkeypatch: pytest.MonkeyPatch, model: tuple[str, ...]) -> None:
    plain = parsed(command, *model, "--port", "5")
    assert (plain.listen, plain.predict, plain.health) == ((("127.0.0.1", 5),), None, None)
    monkeypatch.setenv("AIP_MODE", "PREDICTION")
    monkeypatch.setenv("AIP_HTTP_PORT", "7")
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "v1/models/m:predict")
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/v1/models/m")
    http = parsed(command, *model, "--port", "5", "--host", "0.0.0.0")
    assert (http.listen, http.predict, http.health) == ((("0.0.0.0", 7),), "/v1/models/m:predict", "/v1/models/m")


def test_defaults_are_llama_servers(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIP_MODE", "PREDICTION")
    http = parsed(command, "--port", "5")
    assert (http.listen, http.predict, http.health) == ((("127.0.0.1", 8080),), "/predict", None)
    monkeypatch.setenv("AIP_HTTP_PORT", "x")
    assert "AIP_HTTP_PORT=x: a port is a number" in command("llama-server").err
