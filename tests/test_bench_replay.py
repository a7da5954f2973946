"""The replay benchmark itself, on a small stream: every byte, not how fast."""

from __future__ import annotations

from replay import cut, finished, read, speed


async def test_a_stream_that_is_cut_is_the_same() -> None:
    generation, said = finished(1 << 20)
    assert await read(generation, 0) == said
    assert await speed(generation, 1) > 0
    assert all([await cut(generation, said, 100, seed) for seed in range(3)])


async def test_another_stream_is_not() -> None:
    generation, _ = finished(1 << 16)
    _, other = finished(1 << 16, seed=2)
    assert not await cut(generation, other, 10, 0)
