"""What ``engines`` makes of its words before anything is looked at, and the decisions behind its verbs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from gguf_files import write_model

from appliance.catalog.catalog import Catalog
from appliance.cli.options import ModelOptions
from appliance.cli.remote import find_server
from appliance.core.config.types import Config, StoreConfig
from appliance.errors import ModelNotFound
from appliance.features.engines.core.choice import Ranked
from appliance.features.engines.core.listing import cpu_device
from appliance.features.engines.core.standing import Seat, Standing
from appliance.features.engines.verbs.commands import engines, working
from appliance.features.engines.verbs.update import TriedRow, models_to_try, most_used
from appliance.store.activity import open_activity
from appliance.wire import Row


def ranked(build: str, standing: Standing) -> Ranked:
    seat = Seat(build=build, backend="cpu", digest=build, place=0, devices=(cpu_device("", 0),))
    return Ranked(seat=seat, standing=standing, why="")


@pytest.mark.parametrize("verb", sorted(engines.commands))
def test_every_verb_explains_itself_with_an_example(verb: str) -> None:
    told = CliRunner().invoke(engines, [verb, "--help"])
    assert told.exit_code == 0
    assert f"llama-appliance engines {verb}" in told.output
    command = engines.commands[verb]
    assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_the_model_that_answered_most_is_tried_first_and_of_equals_the_latest() -> None:
    rows = [
        TriedRow(*one) for one in (("a",), ("b",), ("c", 500), ("b",), ("c", 500), ("c", 404), ("d",))
    ]  # newest first
    assert most_used(rows) == ["b", "a", "d"]
    assert most_used([]) == []


def test_what_works_is_what_is_proven_or_else_what_was_not_found_to_fail() -> None:
    assert working([ranked("a", "proven"), ranked("b", "untried"), ranked("c", "failed")]) == ["a"]
    assert working([ranked("b", "untried"), ranked("c", "damaged"), ranked("d", "probation")]) == ["b", "d"]
    assert working([ranked("c", "failed")]) == []


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
