"""Verbs without a server on this machine's files, and what ``engines`` makes of its words."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from command_line import Command
from gguf_files import write_model
from hollow_models import dense, gemma, write_hollow

from appliance import __version__
from appliance.catalog.catalog import Catalog
from appliance.cli.options import ModelOptions
from appliance.cli.remote import find_server
from appliance.core.config.types import Config, StoreConfig
from appliance.core.records.activity import Row
from appliance.errors import ModelNotFound
from appliance.features.engines.verbs.commands import engines
from appliance.features.engines.verbs.update import models_to_try, most_used
from appliance.store.activity import open_activity


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
    assert "service" not in shown.err
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


@pytest.mark.parametrize("verb", sorted(engines.commands))
def test_every_verb_explains_itself_with_an_example(verb: str) -> None:
    told = CliRunner().invoke(engines, [verb, "--help"])
    assert told.exit_code == 0
    assert f"llama-appliance engines {verb}" in told.output
    command = engines.commands[verb]
    assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_the_model_that_answered_most_is_tried_first_and_of_equals_the_latest() -> None:
    answered = (("a", 200), ("b", 200), ("c", 500), ("b", 200), ("c", 500), ("c", 400), ("d", 200))  # newest first
    now = datetime.now(UTC)
    rows = [Row(timestamp=now, model=m, req_path="/x", resp_status_code=s, duration_ms=1) for m, s in answered]
    assert most_used(rows) == ["b", "a", "d"]
    assert most_used([]) == []


async def test_the_most_used_model_is_looked_up_in_the_activity_log_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("XDG_DATA_HOME", "WIN_PD_OVERRIDE_LOCAL_APPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "data"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "data" / "llama-appliance" / "models"
    folder.mkdir(parents=True)
    write_model(folder / "mine-Q8_0.gguf")
    (mine,) = [model.id for model in Catalog(ModelOptions(no_starter=True, stores=False).sources()).scan().models]
    async with open_activity(tmp_path / "log.db", 1000) as activity:
        for name in (mine, "starter", mine, "gone", "gone", "gone"):
            row = Row(timestamp=datetime.now(UTC), model=name, req_path="/x", resp_status_code=200, duration_ms=1)
            activity.add(row)
    nobody = find_server("http://127.0.0.1:9")
    config = Config(store=StoreConfig(path=str(tmp_path / "log.db")))
    assert [model.id for model in await models_to_try(nobody, config, None)] == [mine, "starter"]
    assert [model.id for model in await models_to_try(nobody, None, None)] == ["starter"]
    assert [model.id for model in await models_to_try(nobody, config, mine)] == [mine]
    with pytest.raises(ModelNotFound):
        await models_to_try(nobody, None, "nobody's")
