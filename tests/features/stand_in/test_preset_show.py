"""``config show --models-preset``: where each value of a preset comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Command
from gguf_files import write_model

from appliance.cli.app import run
from appliance.feature import verb_ground
from appliance.features import FEATURES
from appliance.features.stand_in.feature import STAND_IN

INI = """\
[*]
c = 512
ngl = 9
temp = 0.5
[one]
hf-repo = org/none:q8_0
c = 77
alias = x
[D]
temp = 3
"""


@pytest.fixture(autouse=True)
def preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plain_environment: None) -> Path:
    monkeypatch.setenv("LLAMA_ARG_BATCH", "8")
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "3")
    write_model(tmp_path / "models" / "D" / "a.gguf")
    path = tmp_path / "p.ini"
    path.write_text(INI)
    return path


def options(tree: Any, model: str) -> dict[str, tuple[str, str, str]]:
    told = tree["models"][model]["options"]
    return {one["option"]: (one["said"]["value"], one["said"]["layer"], one["said"]["origin"]) for one in told}


def test_every_value_names_who_gave_it(command: Command, preset: Path, tmp_path: Path) -> None:
    words = ("config", "show", "--models-preset", preset, "--json", "--", "--models-dir", "models", "--temp", "1")
    tree = json.loads(command.good(*words))
    assert options(tree, "one") == {
        "temperature": ("1", "command line", "--temp"),
        "alias": ("x", "section", f"{preset}:8"),
        "batch-size": ("8", "environment", "LLAMA_ARG_BATCH"),
        "ctx-size": ("77", "section", f"{preset}:7"),
        "hf-repo": ("org/none:q8_0", "section", f"{preset}:6"),
        "n-gpu-layers": ("9", "[*]", f"{preset}:3"),
    }
    assert options(tree, "D")["model"] == (str(tmp_path / "models" / "D" / "a.gguf"), "files", "models dir")
    assert options(tree, "D")["ctx-size"] == ("512", "[*]", f"{preset}:2")
    (size,) = [one for one in tree["models"]["one"]["options"] if one["option"] == "ctx-size"]
    assert [(said["value"], said["layer"]) for said in size["instead_of"]] == [("512", "[*]"), ("3", "environment")]
    (warmth,) = [one for one in tree["models"]["D"]["options"] if one["option"] == "temperature"]
    assert [(said["value"], said["layer"]) for said in warmth["instead_of"]] == [("3", "section"), ("0.5", "[*]")]
    assert tree["models"]["one"]["fetch"] == ["org/none:Q8_0"]


def test_people_get_a_table(command: Command, preset: Path) -> None:
    outcome = command("config", "show", "--models-preset", str(preset))
    lines = outcome.out.splitlines()
    assert "one: org/none:Q8_0 is downloaded on the first request" in lines
    (size,) = [line.split() for line in lines if line.startswith("  ctx-size") and " 77 " in line]
    assert size[:3] == ["ctx-size", "77", "section"]
    assert "D: cannot be used: its preset [D] does not say which file it is" in outcome.out


@pytest.mark.parametrize("words", [("serve",), ("config", "show")])
def test_a_program_without_the_feature_says_so(
    words: tuple[str, ...], preset: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    others = verb_ground([feature for feature in FEATURES if feature is not STAND_IN])
    assert run((*words, "--models-preset", str(preset)), lambda _: 0, others) == 2
    assert "--models-preset: this program has no presets of llama-server" in capfd.readouterr().err
