"""The kinds of request that have a prompt, by their paths; and the end of a stream of any kind."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache

_VERSION = re.compile(r"/v1?(?=/)")
_LAST_RECORD = re.compile(
    rb"(?m:^)data: ?(?:\[DONE\]|[^\n]*(?:"
    rb"\"type\": ?\"(?:message_stop|response\.(?:completed|incomplete|failed))\"|\"stop\": ?true)[^\n]*)[\r\n]*\Z"
)


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


def is_over(tail: bytes) -> bool:
    """Return whether a stream that ends with these bytes has told everything. A record cut at its begin is not seen.

    Only the last record counts: llama.cpp stops each of several answers on its own. A quote inside of a text has a
    backslash before it, so no text of a model looks like one of these members.
    """
    return tail.endswith((b"\n\n", b"\n\r\n")) and _LAST_RECORD.search(tail) is not None
