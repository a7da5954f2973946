"""The measuring model on disk: no room taken, read by a real engine, as slow as a model of its size is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import trio
from engine_runs import PROCESSOR

from appliance.core.engines.trials import LAYERS, file_name, weights_size
from appliance.engines import embedded
from appliance.engines.found import EMBEDDED, find_engine
from appliance.engines.proving import device_args, write_ballast
from appliance.engines.trial import open_trial
from appliance.platform.children import open_children

SMALLEST = 1 << 20


def test_it_is_written_once_and_takes_no_room(tmp_path: Path) -> None:
    first = write_ballast(tmp_path)
    written = first.path.stat()
    assert written.st_size > weights_size(1)
    if sys.platform == "linux":
        assert written.st_blocks * 512 < 1 << 20
    assert write_ballast(tmp_path) == first
    assert first.path.stat().st_ino == written.st_ino


def test_a_file_that_is_not_whole_is_written_again_and_other_versions_go(tmp_path: Path) -> None:
    ballast = write_ballast(tmp_path)
    os.truncate(ballast.path, 1000)
    old = tmp_path / "ballast-0-5x2048.gguf"
    old.write_bytes(b"GGUF")
    theirs = tmp_path / "model.gguf"
    theirs.write_bytes(b"GGUF")
    write_ballast(tmp_path)
    assert ballast.path.stat().st_size > weights_size(1)
    assert not old.exists()
    assert theirs.exists()
    assert [path.name for path in tmp_path.glob("*.new")] == []


def test_a_device_with_little_memory_gets_a_smaller_one(tmp_path: Path) -> None:
    small = write_ballast(tmp_path, SMALLEST)
    assert small.path.name == file_name(1)
    assert small.part == 1 / LAYERS
    whole = write_ballast(tmp_path, 1 << 40)
    assert small.path.exists(), "both are of this version"
    assert whole.part >= small.part


@pytest.mark.skipif(not embedded.available(), reason="the embedded engine is not installed here")
async def test_a_real_engine_computes_with_it(tmp_path: Path) -> None:
    small = write_ballast(tmp_path, SMALLEST)
    question = {"prompt": list(range(64)), "n_predict": 4, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    with trio.fail_after(60):
        async with (
            open_children() as children,
            open_trial(find_engine(EMBEDDED), device_args(PROCESSOR), small.path, children, seconds=30) as trial,
        ):
            answer = await trial.ask("/completion", question, seconds=30)
            assert b'"tokens_predicted":4' in answer.replace(b" ", b"")
            assert not [line for line in trial.lines() if "nan" in line.lower().split()]
