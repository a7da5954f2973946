"""Bytes or text that come in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import AnyStr


def cut(whole: AnyStr, places: Iterable[int]) -> list[AnyStr]:
    """The whole in pieces, cut at places that may lie behind its end: they count from its beginning again."""
    edges = sorted({0, len(whole), *(place % (len(whole) + 1) for place in places)})
    return [whole[begin:end] for begin, end in pairwise(edges)]
