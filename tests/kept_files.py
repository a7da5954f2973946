"""Kept contexts for tests, made as an engine and its owner make them."""

from __future__ import annotations

import secrets
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from appliance.features.contexts.core.kept import KeptContext
from appliance.features.contexts.files import ContextPlace, KeptContexts, open_kept_contexts
from appliance.features.contexts.owner import Contexts
from appliance.fleet.owner import Fleet

DATA = b"what a model has read " * 100


def context(data: bytes = DATA, *, model: str = "m", key: str = "k") -> KeptContext:
    return KeptContext(
        name=secrets.token_hex(16), key=key, model=model, chain=(b"0",), ends=(3,), prompt=5, tokens=5, size=len(data),
        token_seconds=0.1,
    )  # fmt: skip


def opened(folder: Path) -> AbstractAsyncContextManager[KeptContexts | None]:
    return open_kept_contexts("disk", {"disk": ContextPlace(folder, in_memory=False)})


async def kept_one(kept: KeptContexts, data: bytes = DATA, *, model: str = "m") -> KeptContext:
    """Keep one, as an engine and its owner do it."""
    assert await kept.make_room(len(data))
    new = context(data, model=model)
    kept.part(new.name).write_bytes(data)
    assert await kept.keep(new)
    return next(each for each in kept.entries() if each.name == new.name)


def kept_of(fleet: Fleet) -> KeptContexts:
    """Return the contexts that a program keeps."""
    assert isinstance(fleet.hold, Contexts)
    assert fleet.hold.store is not None
    return fleet.hold.store
