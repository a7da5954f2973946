"""The kinds of request that have a prompt, by their paths."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache

_VERSION = re.compile(r"/v1?(?=/)")


class Family(Enum):
    """The kinds of request that have a prompt."""

    COMPLETION = auto()
    CHAT = auto()
    MESSAGES = auto()
    """Anthropic's."""
    RESPONSES = auto()


FAMILIES = {
    "/completion": Family.COMPLETION,
    "/completions": Family.COMPLETION,
    "/chat/completions": Family.CHAT,
    "/messages": Family.MESSAGES,
    "/responses": Family.RESPONSES,
}
"""Paths without their version."""


@lru_cache(maxsize=64)
def family_of(path: str) -> Family | None:
    """Return the kind of the requests to a path, with or without ``/v1``; None if nothing there has a prompt."""
    return FAMILIES.get(_VERSION.sub("", path, count=1) if path.startswith("/v") else path)
