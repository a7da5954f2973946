"""Kept contexts for tests, made as an engine and its owner make them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from appliance.core.contexts.kept import KeptContext
from appliance.store.kept_contexts import ContextPlace, KeptContexts, open_kept_contexts

DATA = b"what a model has read " * 100


def context(data: bytes = DATA, *, model: str = "m", key: str = "k") -> KeptContext:
    return KeptContext(
        name=secrets.token_hex(16), key=key, model=model, chain=(b"0",), ends=(3,), prompt=5, tokens=5, size=len(data),
        token_seconds=0.1,
    )  # fmt: skip


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[KeptContexts]:
    async with open_kept_contexts("disk", {"disk": ContextPlace(folder, in_memory=False)}) as kept:
        assert kept is not None
        yield kept


async def kept_one(kept: KeptContexts, data: bytes = DATA, *, model: str = "m") -> KeptContext:
    """Keep one, as an engine and its owner do it."""
    assert await kept.make_room(len(data))
    new = context(data, model=model)
    kept.part(new.name).write_bytes(data)
    assert await kept.keep(new)
    return next(each for each in kept.entries() if each.name == new.name)
