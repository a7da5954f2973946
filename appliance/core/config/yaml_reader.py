"""Text to YAML events or tokens: quickly where the text is as people write it, else by the library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from appliance.core.config.yaml_events import Event, Token
from appliance.core.config.yaml_quick import quick_events, quick_tokens


def events(text: str) -> Iterator[Event]:
    """The parser's events of one text; those of streams and documents may be missing where there is one document.

    Raises `NotYaml`, possibly after some events.
    """
    quick = quick_events(text)
    if quick is not None:
        return iter(quick)
    # The library is two megabytes and a hundredth of a second, and most files do without.
    from appliance.core.config import yaml_library

    return yaml_library.events(text)


def tokens(text: str) -> Iterable[Token]:
    """Scalars and brackets; text can have right tokens and yet be no document. Raises `NotYaml`."""
    quick = quick_tokens(text)
    if quick is not None:
        return quick
    from appliance.core.config import yaml_library  # as above

    return yaml_library.tokens(text)
