"""The command line in this process, and as one of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import Command, Outcome

from appliance import __main__ as main
from appliance.cli.app import run
from appliance.core.settings import KEY_VARIABLE, URL_VARIABLE
from appliance.engines.found import ENGINE_VARIABLE
from appliance.settings import AppSettings, Later, Program


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (URL_VARIABLE, KEY_VARIABLE, ENGINE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of llama-server, no folders of the user's."""
    for name in list(os.environ):
        if name.startswith(("LLAMA_ARG_", "LLAMA_API_KEY", "AIP_", "HF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Carry out a command line; a server that it would start is recorded, not started."""

    def parse(*argv: str) -> Outcome:
        started: list[Program] = []

        def start(program: Program) -> int:
            if not isinstance(program, AppSettings | Later):
                return main.start(program)
            started.append(program)
            return 0

        status = run(argv, start)
        captured = capfd.readouterr()
        return Outcome(status=status, out=captured.out, err=captured.err, program=started[0] if started else None)

    return parse


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A file that may be named as a model."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path
