"""``ls`` and ``load --dry-run``: how models fit, as a user sees it, without a server."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
from hollow_models import dense, gemma, write_hollow

COMMAND = Path(sysconfig.get_path("scripts")) / "llama-appliance"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    models.mkdir()
    write_hollow(models / "small-F16.gguf", dense(layers=2))
    write_hollow(models / "windowed-Q8_0.gguf", gemma("gemma3", weights="Q8_0"))
    write_hollow(models / "vast-F16.gguf", dense(layers=500, width=8192, forward=65536, head=512))
    return models


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "HF_"))}
    env = kept | {"HOME": str(folder.parent), "XDG_DATA_HOME": str(folder.parent), "LLAMA_CACHE": str(folder.parent)}
    line = [COMMAND, *words, "--models-dir", str(folder), "--no-stores"]
    return subprocess.run(line, capture_output=True, text=True, env=env, timeout=60, check=False)


def test_ls_says_which_models_fit(folder: Path):
    header, *rows = ran(folder, "ls").stdout.splitlines()
    assert "FIT" in header
    assert [any(word in row for row in rows) for word in (" fits ", " will not fit ")] == [True, True]
    models = {model["id"]: model["fit"] for model in json.loads(ran(folder, "ls", "--json").stdout)["models"]}
    small = models["small-F16"]
    assert small["verdict"] == "fits"
    assert small["memory"]["ram"]["cache"] == 2 * 32768 * 2 * 256 * 2
    assert small["slot_context"] == 8192
    assert small["room"]["ram"] > small["reserve"] > 0
    assert models["vast-F16"]["verdict"] == "no"
    assert "a smaller quantisation" in models["vast-F16"]["why"]


def test_a_dry_run_says_what_goes_where(folder: Path):
    found = ran(folder, "load", "windowed-Q8_0", "--dry-run")
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("windowed-Q8_0: fits: ")
    assert "WEIGHTS" in found.stdout
    assert "context 32768 tokens, 2 slots of up to 16384" in found.stdout
    flags = "--ctx-size 32768 --parallel 2 --kv-unified --kv-unified-per-slot 16384"
    assert f"flags: {flags}" in found.stdout


def test_a_dry_run_of_no_model_says_which_was_meant(folder: Path):
    found = ran(folder, "load", "smal-F16", "--dry-run")
    assert found.returncode == 2
    assert "there is no model 'smal-F16'" in found.stderr
    assert "small-F16" in found.stderr
    will_not_fit = ran(folder, "load", "vast-F16", "--dry-run", "--json")
    assert (will_not_fit.returncode, json.loads(will_not_fit.stdout)["verdict"]) == (1, "no")
