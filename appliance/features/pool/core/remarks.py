"""Models of one name on several boxes, and remarks for people on what no box alone would find wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from appliance.core.findings import Trouble
from appliance.core.models.holders import Holder, groups_of, told_apart
from appliance.core.settings import is_loopback
from appliance.features.pool.core.shapes import PoolBox

MOST_NAMES = 5  # names of models in one remark


def names_apart(boxes: Mapping[str, Mapping[str, str | None]]) -> dict[str, list[list[Holder]]]:
    """Return the names that mean several models, with the boxes of each. A box that is not sure yet says nothing."""
    holders: dict[str, list[Holder]] = {}
    for box, models in boxes.items():
        for name, identity in models.items():
            if identity != "":
                holders.setdefault(name, []).append(Holder(box, identity))
    found = {name: groups_of(found) for name, found in sorted(holders.items())}
    return {name: groups for name, groups in found.items() if len(groups) > 1}


def keyless_problems(boxes: Sequence[PoolBox]) -> Iterator[Trouble]:
    """A key guards the models of all boxes only if every box wants one: each box lets its clients ask all others."""
    keyed = ", ".join(box.name for box in boxes if box.keyless is False)
    for box in boxes if keyed else ():
        if box.keyless:
            is_local = is_loopback(urlsplit(box.listen).hostname or "localhost")  # without a URL it listens in files
            who = "every program on its machine" if is_local else "every client that reaches it"
            text = f"{box.name} asks for no key, so {who} may ask the models of {keyed}, which want one"
            yield Trouble(id="keyless", text=text, fix=f"start {box.name} with 'serve --api-key KEY'")


def apart_problems(apart: Mapping[str, Sequence[Sequence[Holder]]]) -> Iterator[Trouble]:
    """Names that mean several models, and boxes that do not tell what theirs are."""
    silent = {one.box for groups in apart.values() for group in groups for one in group if one.identity is None}
    names = {name: groups for name, groups in apart.items() if sum(g[0].identity is not None for g in groups) > 1}
    if names:
        more = f", and {len(names) - MOST_NAMES} more names" if len(names) > MOST_NAMES else ""
        told = "; ".join(f"'{name}': {told_apart(name, groups)}" for name, groups in [*names.items()][:MOST_NAMES])
        fix = "have the same file or command on all of them, or give one of them another name"
        yield Trouble(id="names", text=f"some names mean several models. {told}{more}", fix=fix)
    if silent:
        who = ", ".join(sorted(silent))
        text = f"{who} does not tell what its models are, so by a name that others have too it answers nobody else"
        yield Trouble(id="names-unknown", text=text, fix="upgrade llama-appliance there")
