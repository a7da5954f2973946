"""Verbs without a server: ``ls``, ``load --dry-run`` and ``version`` on this machine's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Command
from hollow_models import dense, gemma, write_hollow

from appliance import __version__


@pytest.fixture
def cli(command: Command, tmp_path: Path) -> Command:
    """Verbs that look into a folder with three models and two files that are none."""
    models = tmp_path / "models"
    models.mkdir()
    write_hollow(models / "small-F16.gguf", dense(layers=2))
    write_hollow(models / "windowed-Q8_0.gguf", gemma("gemma3", weights="Q8_0"))
    write_hollow(models / "vast-F16.gguf", dense(layers=500, width=8192, forward=65536, head=512))
    (models / "broken.gguf").write_bytes(b"GGUF and then nothing")
    (models / "[red]odd.gguf").write_bytes(b"not a model")
    return Command(command.capfd, last=("--models-dir", str(models), "--no-stores"))


def test_ls_says_which_models_fit_and_what_is_wrong(cli: Command, tmp_path: Path) -> None:
    shown = cli("ls")
    header, *rows = shown.out.splitlines()
    assert " ".join(header.split()) == "ID ARCHITECTURE PARAMETERS QUANT SIZE CONTEXT FIT SOURCE STATE LAST USED"
    names = ["[red]odd", "broken", "small-F16", "starter", "vast-F16", "windowed-Q8_0"]
    assert [row.split()[0] for row in rows] == names
    assert [any(word in row for row in rows) for word in (" fits ", " will not fit ")] == [True, True]
    assert "broken cannot be used: " in shown.err
    assert str(tmp_path / "models") in shown.err
    assert "\x1b" not in shown.out + shown.err
    models = {model["id"]: model for model in cli.json("ls")["models"]}
    assert [id for id, model in models.items() if model["error"]] == ["[red]odd", "broken"]
    small, vast = (models[name]["fit"] for name in ("small-F16", "vast-F16"))
    assert (small["verdict"], small["slot_context"]) == ("fits", 8192)
    assert small["memory"]["ram"]["cache"] == 2 * 32768 * 2 * 256 * 2
    assert small["room"]["ram"] > small["reserve"] > 0
    assert vast["verdict"] == "no"
    assert "a smaller quantisation" in vast["why"]


def test_a_dry_run_says_what_goes_where_or_which_model_was_meant(cli: Command) -> None:
    found = cli.good("load", "windowed-Q8_0", "--dry-run")
    assert found.startswith("windowed-Q8_0: fits: ")
    for words in (
        "WEIGHTS",
        "context 32768 tokens, 2 slots of up to 16384",
        "flags: --ctx-size 32768 --parallel 2 --kv-unified --kv-unified-per-slot 16384",
    ):
        assert words in found
    told = cli.bad("load", "smal-F16", "--dry-run")
    assert "there is no model 'smal-F16'" in told
    assert "small-F16" in told
    will_not_fit = cli("load", "vast-F16", "--dry-run", "--json")
    assert (will_not_fit.status, json.loads(will_not_fit.out)["verdict"]) == (1, "no")


def test_version(command: Command, engine: str) -> None:
    facts = command.json("version", "--engine", engine)
    assert facts["version"] == __version__
    assert facts["engine"]["command"]
