"""Which boxes of a pool have one model under a name, and which have only the name in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from appliance.core.models.holders import Holder


def groups_of(holders: Iterable[Holder]) -> list[list[Holder]]:
    """Return the boxes of each model, in the order of ``holders``."""
    found: dict[str, list[Holder]] = {}
    for one in holders:
        found.setdefault(one.identity or f"/{one.box}", []).append(one)
    return list(found.values())


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
