"""Cases that resemble each other and take long: one of them runs always, and the others with ``--all``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_of(cases: Iterable[Any]) -> list[Any]:
    """Return arguments of `pytest.mark.parametrize`: the first case, and the others marked ``slow``."""
    first, *others = cases
    return [first, *(pytest.param(case, marks=pytest.mark.slow) for case in others)]
