"""Every parser, with damaged inputs: none raises what it should not, takes long, or takes memory.

``--fuzz N`` gives each parser N inputs, the same ones each time.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from damage import corpus, damaged, examine, fuzz
from parsers import PARSERS

FEW = 2_000
DEEP = 1_000_000
SHARES = 4
"""Runs of one parser, which go to different processes."""


@pytest.mark.parametrize("part", range(SHARES))
@pytest.mark.parametrize("name", PARSERS)
def test_damaged_inputs(name: str, part: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    parser, chance = PARSERS[name], random.Random(f"{name} {part}")
    asked = request.config.getoption("--fuzz") or (DEEP if request.config.getoption("--deep") else FEW)
    inputs = max(round(asked * parser.share) // SHARES, 1)
    accepted = fuzz(parser, (damaged(parser, chance) for _ in range(inputs)), tmp_path / f"{name}-{part}")
    print(f"{name}: {inputs} inputs, {accepted} accepted")
    assert inputs < 100 or accepted >= inputs * parser.least, "most of the damage must leave something to be read"


@pytest.mark.parametrize(("name", "data"), [(name, data) for name in PARSERS for data in corpus(name)])
def test_what_once_failed(name: str, data: bytes) -> None:
    examine(PARSERS[name], data)


@pytest.mark.parametrize("name", PARSERS)
def test_the_seeds_are_good(name: str) -> None:
    for seed in PARSERS[name].seeds:
        assert examine(PARSERS[name], seed), seed
