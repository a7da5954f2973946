"""What a model writes, as the page shows it: `tests/web/answers.md`, `tests/web/scenarios/written.mjs`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from page_fixtures import Play, ServeFake

WEB = Path(__file__).resolve().parents[1] / "web"


@pytest.mark.needs("node", "page-packages")
@pytest.mark.parametrize("seed", ["1", "2"])
def test_answers_become_what_is_expected_whole_and_in_pieces(seed: str) -> None:
    command = ["node", str(WEB / "answers.mjs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=os.environ | {"SEED": seed})
    assert done.returncode == 0, done.stdout + done.stderr
