"""The owner of a server's place in a pool, and a cache of the hub for it."""

from __future__ import annotations

from pathlib import Path

from http_harness import Appliance

from appliance.features.pool.feature import PoolParts
from appliance.features.pool.seat import PoolSeat

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SNAPSHOT = f"models--acme--tiny-GGUF/snapshots/{COMMIT}"


def seat_of(server: Appliance) -> PoolSeat:
    return next(part.seat for part in server.opened.parts if isinstance(part, PoolParts))


def write_cached(cache: Path, content: bytes, sha256: str) -> Path:
    """Make a cache in which this content has the name of a hash, true or not."""
    entry = cache / SNAPSHOT / "tiny-Q8_0.gguf"
    repo = entry.parents[2]
    for folder in (repo / "blobs", entry.parent, repo / "refs"):
        folder.mkdir(parents=True)
    (repo / "blobs" / sha256).write_bytes(content)
    entry.symlink_to(Path("../../blobs") / sha256)
    (repo / "refs" / "main").write_text(COMMIT)
    return entry
