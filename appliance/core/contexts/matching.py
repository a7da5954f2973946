"""Which kept context has the most of a prompt."""

from __future__ import annotations

from collections.abc import Iterable

from appliance.core.contexts.blocks import Prefix
from appliance.core.contexts.kept import KeptContext, worth


def prefix_in(context: KeptContext) -> Prefix:
    """Return the prompt that the context was made of."""
    return Prefix(tuple(map(bytes.fromhex, context.chain)), context.ends)


def reusable(context: KeptContext, prefix: Prefix) -> int:
    """Return how many of the context's tokens are also the prompt's, more or less."""
    own = prefix_in(context)
    shared = own.shared(prefix)
    if own.size and shared == own.size < prefix.size:
        return context.tokens
    return context.prompt * shared // own.size if own.size else 0


def best(
    contexts: Iterable[KeptContext], prefix: Prefix, held: int, least: int, seconds_a_byte: float
) -> KeptContext | None:
    """Return the context that saves most; None where none saves ``least`` tokens, or more time than it takes.

    ``held`` are the tokens of the prompt that its slot has already.
    """
    found = [(reusable(each, prefix) - held, each) for each in contexts]
    gains = [
        (gain, each.used, each)
        for gain, each in found
        if gain >= least and worth(gain, each.token_seconds, each.size, seconds_a_byte)
    ]
    return max(gains, key=lambda gain: gain[:2])[2] if gains else None


def replaced(contexts: Iterable[KeptContext], prefix: Prefix) -> list[KeptContext]:
    """Return the contexts that have nothing beyond a newer one of this prompt."""
    return [each for each in contexts if 0 < (own := prefix_in(each)).size == own.shared(prefix)]
