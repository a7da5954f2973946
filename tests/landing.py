"""What a landing runs beside README's second command: ``--landing COMMIT`` with the hash of the commit.

A fresh machine runs the tests that are not slow and need nothing more. A landing adds the others that are not slow, and
of the slow ones one of each file, since slow tests of a file resemble each other: they are a family. The hash draws it.
Equal commits draw equal tests, so that a failure can be repeated; the next commit draws others. ``--all`` runs all, and
also what repeats a step of `.ci/run` or needs what only ``.ci/run --all`` makes: ``slow(only_all=True)``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")
COLLECTED = pytest.StashKey[set[str]]()
"""The names of all test functions, FILE::NAME, also of those that a run leaves out."""


def draw(commit: str, family: str, cases: Sequence[T]) -> T:
    """Return one of the cases. Families draw independently of each other, and so do commits."""
    number = hashlib.sha256(f"{commit} {family}".encode()).digest()
    return cases[int.from_bytes(number) % len(cases)]


def left_out(items: Iterable[pytest.Item], commit: str) -> list[pytest.Item]:
    """Return the tests that a landing does not run here."""
    families: dict[str, list[pytest.Item]] = {}
    out: list[pytest.Item] = []
    for item in items:
        slow = item.get_closest_marker("slow")
        if slow and not slow.kwargs.get("only_all"):
            families.setdefault(item.nodeid.partition("::")[0], []).append(item)
        elif slow or not (item.get_closest_marker("needs") or item.get_closest_marker("frozen")):
            out.append(item)
    for file, family in families.items():
        drawn = draw(commit, file, family)
        out += [item for item in family if item is not drawn]
    return out
