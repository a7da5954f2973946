"""A download survives being killed, again and again: nothing is fetched twice, and nothing wrong gets a name."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest
from gguf_files import write_model
from homes import Home
from hub_process import FakeHub, fake_hub
from program import Server
from waiting import wait

REPO = "acme/large-GGUF"
NAME = "large-Q8_0.gguf"
RARE = 10
"""Kills of the program for each one of a download."""
CHUNK = 1 << 20
"""What a kill costs at most of what is written, and as much again of what is not."""
IN_SOCKETS = 11 << 20
"""What Linux's largest socket buffers hold, sent by the hub and not yet read by the program."""


def large_model(path: Path, size: int) -> str:
    """A model of this size whose bytes repeat nowhere; its sha256."""
    write_model(path, weights=size // 4)
    source = random.Random(size)
    with path.open("r+b") as file:
        file.seek(4096)
        while (left := path.stat().st_size - file.tell()) > 0:
            file.write(source.randbytes(min(left, 1 << 24)))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def kill_after(hub: FakeHub, count: int, home: Home) -> None:
    """Begin to pull, and end the program without warning once the hub has sent so many bytes more."""
    wanted = hub.sent() + count
    with Server(("pull", REPO), home.folder, home.env) as pull:
        wait(lambda: not (hub.sent() < wanted and pull.process.poll() is None), within=60)
        pull.process.kill()


def begun(folder: Path) -> int:
    """Bytes that the ended run has written."""
    part = next((folder / "cache").rglob("*.part"), None)
    return part.stat().st_size if part else 0


def check_blobs(folder: Path, sha256: str) -> None:
    """Whatever has its final name is whole."""
    for path in (folder / "cache" / "models--acme--large-GGUF" / "blobs").glob("*"):
        if ".part" not in path.name:
            assert path.name == sha256
            with path.open("rb") as file:
                assert hashlib.file_digest(file, "sha256").hexdigest() == sha256


@pytest.mark.slow
def test_kills_cost_at_most_a_chunk_each(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    kills = max(request.config.getoption("--kills") // RARE, 50 if request.config.getoption("--deep") else 6)
    size, rate = (1 << 30, 100_000_000) if kills > 20 else (64 << 20, 40_000_000)
    seed = int.from_bytes(os.urandom(4))
    choice = random.Random(seed)
    sha256 = large_model(tmp_path / "hub" / REPO / NAME, size)
    with fake_hub(tmp_path / "hub") as hub:
        home = Home(tmp_path, {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "cache")})
        hub.behave(rate=rate)
        written: list[int] = []
        for _ in range(kills):
            kill_after(hub, choice.randrange(1, 2 * size // kills), home)
            check_blobs(tmp_path, sha256)
            written.append(begun(tmp_path))
        hub.behave()
        home.good("pull", REPO, timeout=300)
        sent = [entry for entry in hub.requests("cdn") if entry["sent"]]
    check_blobs(tmp_path, sha256)
    path = next((tmp_path / "cache").rglob(NAME))
    assert path.stat().st_size == (tmp_path / "hub" / REPO / NAME).stat().st_size
    starts = [int(entry["range"][6:-1]) if entry["range"] else 0 for entry in sent]
    until = 0
    for start, entry in zip(starts, sent, strict=True):
        assert until - start <= 2 * CHUNK + IN_SOCKETS, (seed, start, until)
        assert start <= until, (seed, start, until)
        until = start + entry["sent"]
    for size_then in written:  # of what a run had written, the next one asks for a chunk again at most
        following = [start for start in starts if start <= size_then]
        assert size_then - max(following) <= CHUNK or size_then in (0, path.stat().st_size), (seed, size_then, starts)
    twice = sum(entry["sent"] for entry in sent) - path.stat().st_size
    print(f"{kills} kills, {path.stat().st_size} bytes, {len(sent)} connections, {twice} bytes sent twice, seed {seed}")
    assert f"{REPO}:Q8_0" in {model["id"] for model in home.json("ls", "--no-starter")["models"]}
