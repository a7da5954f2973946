"""Which boxes of a pool have one model under a name, and which have only the name in common.

Two boxes have the same model if what they tell of it is equal. A box that tells nothing has a model of its own: nobody
knows another one that may go on with its answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct


class Holder(Struct, frozen=True):
    """A box that has a model of some name. ``identity`` is as in `peers.link.read_identities`."""

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


def names_apart(boxes: Mapping[str, Mapping[str, str | None]]) -> dict[str, list[list[Holder]]]:
    """Return the names that mean several models, with the boxes of each. ``boxes``: what each box tells, by name.

    A box that is still working out what its models are says nothing yet.
    """
    holders: dict[str, list[Holder]] = {}
    for box, models in boxes.items():
        for name, identity in models.items():
            if identity != "":
                holders.setdefault(name, []).append(Holder(box, identity))
    found = {name: groups_of(found) for name, found in sorted(holders.items())}
    return {name: groups for name, groups in found.items() if len(groups) > 1}
