"""Every parser, with damaged inputs: none raises what it should not, takes long, or takes memory.

``--fuzz N`` gives each parser N inputs, the same ones each time.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

import pytest
from damage import corpus, damaged, examine, fuzz
from hostile_files import any_tar, any_zip
from memory import peak, read_file_apart
from parsers import PARSERS
from slow import one_of

from appliance.core.archives import BadArchive
from appliance.store.unpacking import read_member, unpack

FEWEST, FEW, DEEP = 200, 2_000, 1_000_000
SHARES = one_of(range(4))
"""Runs of one parser, which go to different processes."""
LIE = 1000
"""One archive that lies takes as long as so many inputs."""
MOST_UNPACKING, MOST_READING = 110 << 20, 600 << 20
"""Bytes of memory, see docs/reliability.md."""


@pytest.fixture
def asked(request: pytest.FixtureRequest) -> int:
    option = request.config.getoption
    return option("--fuzz") or (DEEP if option("--deep") else FEW if option("--all") else FEWEST)


@pytest.mark.parametrize("part", SHARES)
@pytest.mark.parametrize("name", PARSERS)
def test_damaged_inputs(name: str, part: int, asked: int, tmp_path: Path) -> None:
    parser, chance = PARSERS[name], random.Random(f"{name} {part}")
    inputs = max(round(asked * parser.share) // len(SHARES), 1)
    accepted = fuzz(parser, (damaged(parser, chance) for _ in range(inputs)), tmp_path / f"{name}-{part}")
    print(f"{name}: {inputs} inputs, {accepted} accepted")
    assert inputs < 100 or accepted >= inputs * parser.least, "most of the damage must leave something to be read"


@pytest.mark.slow
@pytest.mark.parametrize("part", SHARES)
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archives_that_lie(kind: str, part: int, asked: int, tmp_path: Path) -> None:
    """Small archives that would become large: unpacked here, and read as exports by the process that is for that."""
    chance = random.Random(f"{kind} {part}")
    for number in range(max(asked // LIE, 2)):
        data = (any_zip if kind == "zip" else any_tar)(chance)
        archive = tmp_path / f"lie.{kind}"
        archive.write_bytes(data)
        before = peak(anew=True)
        with suppress(BadArchive):
            read_member(archive, "engine.json", 1 << 16)
        with suppress(BadArchive):
            unpack(archive, tmp_path / "into")
        rmtree(tmp_path / "into", ignore_errors=True)
        assert peak() - before < MOST_UNPACKING, (number, archive)
        if kind == "zip":
            verdict, _, most = read_file_apart("import", data)
            assert most < MOST_READING, (number, archive, verdict)


@pytest.mark.parametrize(("name", "data"), [(name, data) for name in PARSERS for data in corpus(name)])
def test_what_once_failed(name: str, data: bytes) -> None:
    examine(PARSERS[name], data)


@pytest.mark.parametrize("name", PARSERS)
def test_the_seeds_are_good(name: str) -> None:
    for seed in PARSERS[name].seeds:
        assert examine(PARSERS[name], seed), seed
