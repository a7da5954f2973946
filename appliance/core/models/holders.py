"""Other servers that have a model of one name, which may be the same model or several.

Two servers have the same model if what they tell of it is equal. A server that tells nothing has a model of its own:
nobody knows another one that may go on with its answers.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class Holder(Struct, frozen=True):
    """A box that has a model of some name. ``identity`` is as in `core.models.identity`; None: it does not tell."""

    box: str
    identity: str | None


def groups_of(holders: Iterable[Holder]) -> list[list[Holder]]:
    """Return the boxes of each model, in the order of ``holders``."""
    found: dict[str, list[Holder]] = {}
    for one in holders:
        found.setdefault(one.identity or f"/{one.box}", []).append(one)
    return list(found.values())


def told_apart(model: str, groups: Iterable[Iterable[Holder]]) -> str:
    """Return, for people, how to ask for each of several models of one name."""
    boxes = [[one.box for one in group] for group in groups]
    who = " and on ".join(", ".join(group) for group in boxes)
    names = " or ".join(f"'{group[0]}/{model}'" for group in boxes)
    return f"it is not the same model on {who}; ask for {names}"
