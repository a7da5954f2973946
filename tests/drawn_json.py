"""JSON values as Hypothesis draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

Drawn = st.SearchStrategy[Any]
TEXT = st.text(max_size=8)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)


def json_values(keys: Sequence[str] | Drawn = TEXT, *, text: Drawn = TEXT, leaves: int = 12) -> Drawn:
    """Of any kind and depth; ``text`` may also draw leaves of other kinds."""
    names = st.sampled_from(keys) if isinstance(keys, Sequence) else keys
    return st.recursive(
        st.none() | st.booleans() | NUMBERS | text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
        max_leaves=leaves,
    )
