"""How many tokens a request to a model may have before it is loaded, by the command that would start it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from appliance.core.llama.flags import normalise
from appliance.core.models.gguf import GgufInfo
from appliance.core.whole_numbers import whole_number

_FLAGS = ("--ctx-size", "-c")


def said_context(argv: Sequence[str]) -> int:
    """Return the tokens of the last ``--ctx-size`` with a number, in a command of any program; 0: the model's own."""
    values = [whole_number(value.strip()) for flag, value in pairwise(argv) if normalise(flag) in _FLAGS]
    return next((value for value in reversed(values) if value is not None), 0)


def asked_context(info: GgufInfo | None, argv: Sequence[str]) -> int:
    """Return the tokens that a command asks for, at most those the model was trained for; 0: unknown.

    Without the option it is what the model was trained for, as in llama-server. The plan at the start may set less.
    """
    trained = (info.context_length if info is not None else None) or 0
    if not trained:
        return 0  # a list of 1,000 models whose files are elsewhere reads no command
    return min(said_context(argv) or trained, trained)
