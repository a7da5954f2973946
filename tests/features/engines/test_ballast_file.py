"""The measuring model on disk: no room taken, read by a real engine, as slow as a model of its size is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import trio
from engine_runs import PROCESSOR

from appliance.core.engine import EMBEDDED
from appliance.features import embedded
from appliance.features.engines.core.trials import ALIGNMENT, LAYERS, header, size_of, tensors, weights_size
from appliance.features.engines.found import find_engine
from appliance.features.engines.proving import device_args, write_ballast
from appliance.features.engines.trial import open_trial
from appliance.platform.children import open_children


def test_its_header_is_aligned_and_names_every_tensor_once() -> None:
    head, shapes = header(), tensors()
    assert len(head) % ALIGNMENT == 0
    assert len(shapes) == 2 + 9 * LAYERS
    assert all(head.count(name.encode()) == 1 for name in shapes)
    assert all(size_of(shape) % ALIGNMENT == 0 for shape in shapes.values())
    assert 200e6 < weights_size() < 300e6


def test_it_is_written_once_and_takes_no_room_and_one_that_is_not_whole_is_written_again(tmp_path: Path) -> None:
    path = write_ballast(tmp_path)
    written = path.stat()
    assert written.st_size == len(header()) + weights_size()
    if sys.platform == "linux":
        assert written.st_blocks * 512 < 1 << 20
    old, theirs = tmp_path / "ballast-0-5x2048.gguf", tmp_path / "model.gguf"
    old.write_bytes(b"GGUF")
    theirs.write_bytes(b"GGUF")
    assert write_ballast(tmp_path) == path
    assert path.stat().st_ino == written.st_ino
    assert sorted(tmp_path.iterdir()) == [path, theirs], "those of other versions go"
    os.truncate(path, 1000)
    write_ballast(tmp_path)
    assert path.stat().st_size == written.st_size


@pytest.mark.skipif(not embedded.available(), reason="the embedded engine is not installed here")
async def test_a_real_engine_computes_with_it(tmp_path: Path) -> None:
    question = {"prompt": list(range(8)), "n_predict": 2, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    with trio.fail_after(60):
        async with (
            open_children() as children,
            open_trial(
                find_engine(EMBEDDED), device_args(PROCESSOR), write_ballast(tmp_path), children, seconds=30
            ) as trial,
        ):
            answer = await trial.ask("/completion", question, seconds=30)
            assert b'"tokens_predicted":2' in answer.replace(b" ", b"")
            assert not [line for line in trial.lines() if "nan" in line.lower().split()]
