"""Remarks on a pool for its people, from what its boxes tell: what no box alone would find wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from appliance.core.models.holders import Holder, told_apart
from appliance.core.settings import is_loopback
from appliance.features.pool.core.shapes import PoolBox
from appliance.wire import Trouble

MOST_NAMES = 5  # names of models in one remark


def listens_here_alone(listen: str) -> bool:
    """Return whether an API with this URL is for programs of its own machine. Empty: it listens in files alone."""
    return is_loopback(urlsplit(listen).hostname or "localhost")


def keyless_problems(boxes: Sequence[PoolBox]) -> Iterator[Trouble]:
    """A key guards the models of all boxes only if every box wants one: each box lets its clients ask all others."""
    keyed = ", ".join(box.name for box in boxes if box.keyless is False)
    for box in boxes if keyed else ():
        if box.keyless:
            who = "every program on its machine" if listens_here_alone(box.listen) else "every client that reaches it"
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
