"""``pool export`` with the facts of a pool, told by a real HTTP server."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from answering import answering
from command_line import Command

TABLE = {
    "models": [
        {"id": "own/model:Q4", "source": "cache", "path": "/m", "state": None},
        {"id": "broken", "source": "path", "path": "/b", "state": None, "error": "no GGUF file"},
        {"id": "b2/far", "source": "server", "path": None, "state": "loaded"},
    ],
    "models_dir": None,
}
BOX = {"port": 4280, "me": False, "up": True, "models": [{"id": "far", "state": "loaded", "busy": 0}]}
POOL = {
    "pool": "p1",
    "me": "b1",
    "boxes": [
        {**BOX, "name": "b1", "addresses": ["10.0.0.1"], "me": True, "models": []},
        {**BOX, "name": "b2", "addresses": ["fd00::2", "10.0.0.2"]},
        {**BOX, "name": "laptop", "addresses": ["10.0.0.3"], "dials_out": True},
    ],
}


def urls(folder: Path) -> list[str]:
    return [worker["url"] for worker in json.loads((folder / "smg-workers.json").read_text())["workers"]]


def test_each_box_that_can_be_reached_is_exported_with_its_models(command: Command, tmp_path: Path) -> None:
    with answering({"/api/pool": POOL, "/api/ls": TABLE}) as url:
        assert "laptop" in command.good(
            "pool", "export", "smg", "--url", url, "--port", "81", "--out", tmp_path / "new"
        )
        command.good("pool", "export", "compose", "--url", url, "--out", tmp_path)
        assert command("pool", "export", "kubernetes", "--url", url).out.count("replicas: 2") == 1
    assert urls(tmp_path / "new") == ["http://10.0.0.1:81/worker/own%2Fmodel%3AQ4", "http://[fd00::2]:81/worker/far"]
    assert (tmp_path / "new/smg.sh").stat().st_mode & 0o111
    assert list(yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"]) == ["b1", "b2"]


def test_outside_of_a_pool_it_is_this_machine_alone(command: Command, tmp_path: Path) -> None:
    for pool in (None, {"pool": None}):
        with answering({"/api/pool": pool, "/api/ls": TABLE}) as url:
            command.good("pool", "export", "smg", "--url", url, "--address", "ai.example", "--out", tmp_path)
        assert urls(tmp_path) == ["http://ai.example:8080/worker/own%2Fmodel%3AQ4"]


def test_without_a_model_there_is_nothing_that_smg_could_ask(command: Command, tmp_path: Path) -> None:
    with answering({"/api/ls": {"models": [], "models_dir": None}}) as url:
        told = command.bad("pool", "export", "smg", "--url", url, "--out", tmp_path / "new")
    assert "llama-appliance pull" in told
    assert not (tmp_path / "new").exists()
