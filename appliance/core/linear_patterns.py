"""Regular expressions of the configuration, matched in time that grows with the text's length and no faster.

Google's RE2 matches them, the engine of llama-swap's files. Python's own tries one way after the other: with some
expressions it takes hours for forty letters, and nobody else is served meanwhile.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

MAX_PATTERN = 1000
"""Characters of one expression."""


class BadPattern(ValueError):
    """The engine does not know an expression; the text says why."""


class _Pattern(Protocol):
    def search(self, text: str, /) -> object | None: ...


def is_found(pattern: str, text: str) -> bool:
    """Return whether ``pattern`` matches somewhere in ``text``. Raises BadPattern."""
    return _compiled(pattern).search(text) is not None


def check_pattern(pattern: str) -> None:
    """Raises BadPattern."""
    _compiled(pattern)


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> _Pattern:
    import re2  # not at the top: only configurations with expressions of their own, and /upstream/, need it

    if len(pattern) > MAX_PATTERN:
        raise BadPattern(f"it is longer than {MAX_PATTERN} characters")
    engine: Any = re2  # its types are not written down
    options = engine.Options()
    options.log_errors = False
    try:
        return engine.compile(pattern, options)
    except engine.error as error:
        raise BadPattern(error.args[0].decode(errors="replace")) from None
