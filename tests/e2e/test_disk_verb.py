"""``disk`` and ``rm``: what takes room, and what a removal frees, said before it and after."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from gguf_files import write_model
from hub_process import FakeHub, fake_hub
from links import needs_links
from program import Server, StartServer

REPO = "acme/tiny-GGUF"
EIGHT, SIXTEEN = f"{REPO}:Q8_0", f"{REPO}:F16"
SIZE = 1 << 20
Verb = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub(tmp_path: Path) -> Generator[FakeHub]:
    """Two models with the same contents."""
    file = write_model(tmp_path / "hub" / REPO / "tiny-Q8_0.gguf", weights=SIZE // 4)
    shutil.copyfile(file, file.with_name("tiny-F16.gguf"))
    with fake_hub(tmp_path / "hub") as running:
        yield running


@pytest.fixture
def server(serve_fake: StartServer, hub: FakeHub, tmp_path: Path) -> Server:
    return serve_fake(MODEL_ENDPOINT=hub.url, HF_HUB_CACHE=str(tmp_path / "cache"))


@needs_links
def test_what_a_removal_frees_is_said_before_and_after(server: Server, verb: Verb) -> None:
    def cli(*words: str) -> str:
        done = verb(*words, "--url", server.url)
        assert done.returncode == 0, done.stderr
        return done.stdout or done.stderr

    for model in (EIGHT, SIXTEEN):
        cli("pull", model)
    lines = [line.split() for line in cli("disk").splitlines()]
    assert [line[0] for line in lines if line and line[0].isupper()] == ["DISK", "FOLDER", "MODEL"]
    assert next(line for line in lines if line[:1] == ["cache"])[2] in ("MB", "kB")
    frees = {one["model"]: one["frees"] for one in json.loads(cli("disk", "--json"))["models"]}
    assert max(frees[EIGHT], frees[SIXTEEN]) < SIZE, "the other one needs the contents"
    assert f"removing {EIGHT} would free" in cli("rm", EIGHT, "--dry-run")
    assert json.loads(cli("rm", EIGHT, "--dry-run", "--json")) == {"model": EIGHT, "frees": frees[EIGHT]}
    assert json.loads(cli("rm", EIGHT, "--json"))["size"] == frees[EIGHT]
    foretold = json.loads(cli("rm", SIXTEEN, "--dry-run", "--json"))["frees"]
    assert foretold >= SIZE
    assert json.loads(cli("rm", SIXTEEN, "--json"))["size"] == foretold
    gone = verb("rm", SIXTEEN, "--url", server.url)
    assert gone.returncode == 2
    assert SIXTEEN in gone.stderr


def test_without_a_server_the_same_is_said(
    hub: FakeHub, verb: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    assert verb("pull", EIGHT, "--parallel", "1").returncode == 0
    foretold = json.loads(verb("rm", EIGHT, "--own", "--dry-run", "--json").stdout)
    assert (foretold["model"], foretold["frees"] >= SIZE) == (EIGHT, True)
    assert list((tmp_path / "cache").rglob("tiny-Q8_0.gguf"))
    assert json.loads(verb("rm", EIGHT, "--own", "--json").stdout)["size"] == foretold["frees"]
    assert not list((tmp_path / "cache").rglob("tiny-Q8_0.gguf"))
