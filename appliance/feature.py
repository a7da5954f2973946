"""A feature: the one shape that all of them fill in.

The kernel serves models: it owns processes, connections and the way of a request. Everything else is a feature, a
folder below `appliance.features` with its tests in ``tests/features``. A feature imports the kernel and itself, and the
kernel imports no feature: it is given the list of them (`appliance.features.FEATURES`), and takes each part at the seam
where it is used. A feature can be deleted: without its folder and its lines in the list the program does all the rest.

Each room of the kernel says at its seam what may sign in there: `Verb` on the command line, a blueprint of Quart or an
`EdgeRoute` among the program's own routes. This shape only collects the parts, and each part is a function that imports
what it makes, so that a list of thirty features costs the start nothing: listing them imports their ``feature.py``
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from appliance.cli.verbs import KERNEL_VERBS, Verb

if TYPE_CHECKING:
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import EdgeRoute, Kernel


class Feature(Struct, frozen=True, kw_only=True):
    """The parts of one feature; it has those that are given.

    ``name`` is that of its folder. ``verbs`` are its commands. ``routes`` makes the blueprint of its own routes, once
    for a server, when the first route on Quart is asked for. ``edges`` make routes that are answered without Quart, at
    the start: they import what is large when they are asked.
    """

    name: str
    verbs: tuple[Verb, ...] = ()
    routes: Callable[[Kernel], Routes] | None = None
    edges: tuple[Callable[[Kernel], EdgeRoute], ...] = ()


def all_verbs(features: Iterable[Feature]) -> tuple[Verb, ...]:
    """Return the verbs of the kernel and of these features."""
    return (*KERNEL_VERBS, *(verb for feature in features for verb in feature.verbs))
