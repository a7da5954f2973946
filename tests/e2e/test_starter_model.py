"""The model of a fresh install answers new users' questions, and every answer ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from program import Server, one_engine

from appliance.catalog.sources import STARTER

FOLDER = Path(__file__).parents[2] / "starter-model"
LIMIT = 4 << 20


def ask(server: Server, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(FOLDER / script), "--base-url", f"http://127.0.0.1:{server.port}/v1", *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("questions", ["questions_blind.json", "questions_fresh.json"])
def test_questions_of_new_users(server: Server, questions: str) -> None:
    done = ask(server, "ask.py", "--questions", str(FOLDER / questions), "--floor", "22")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@one_engine
def test_every_answer_ends(server: Server) -> None:
    done = ask(server, "stress.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_small() -> None:
    assert STARTER.stat().st_size <= LIMIT
