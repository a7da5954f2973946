"""How many tokens a request to a model may have before it is loaded, by the command that would start it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from appliance.core.models.gguf import GgufInfo

_FLAGS = ("--ctx-size", "-c")


def asked_context(info: GgufInfo | None, argv: Sequence[str]) -> int:
    """Return the tokens that the last ``--ctx-size`` asks for, at most those the model was trained for; 0: unknown.

    Without the option it is what the model was trained for, as in llama-server. The plan at the start may set less.
    """
    trained = (info.context_length if info is not None else None) or 0
    values = (value for flag, value in pairwise(argv) if flag in _FLAGS and value.isdecimal())
    asked = [int(value) for value in values][-1:] or [0]
    return min(asked[0] or trained, trained)
