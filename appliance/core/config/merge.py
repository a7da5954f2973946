"""Several configuration files as one.

Mappings are joined key by key, lists one behind the other, and a value may be said twice if it is the same. Below the
places in `_NAMES` a key is the name of a thing, and one thing is described in one file.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.core.config.nodes import Entry, Mapping, Node, Position, Problem, Scalar
from appliance.core.config.nodes import Sequence as List

_NAMES = frozenset(
    {
        ("models",),
        ("groups",),
        ("profiles",),
        ("selectors",),
        ("peers",),
        ("matrix",),
        ("routing", "router", "settings", "groups"),
        ("routing", "router", "settings", "matrix"),
    }
)


def merge(documents: Sequence[Mapping]) -> tuple[Mapping, list[Problem]]:
    """The first document with the others joined to it in order; at a contradiction the earlier value stays.

    Every node keeps the place of its own file. A problem's place is in the later file; its message names the earlier.
    """
    if not documents:
        return Mapping((), Position("", 1, 1)), []
    problems: list[Problem] = []
    merged = documents[0]
    for document in documents[1:]:
        merged = _mappings(merged, document, (), problems)
    return merged, problems


def _mappings(base: Mapping, other: Mapping, path: tuple[str, ...], problems: list[Problem]) -> Mapping:
    entries = {entry.key.text: entry for entry in base.entries}
    for entry in other.entries:
        name = entry.key.text
        known = entries.get(name)
        if known is None:
            entries[name] = entry
        elif path in _NAMES:
            where = f"'{name}' is already in {known.key.at}"
            _report(problems, f"{where}; describe it in one file, or rename one", (*path, name), entry.key.at)
        else:
            entries[name] = Entry(known.key, _nodes(known.value, entry.value, (*path, name), problems))
    return Mapping(tuple(entries.values()), base.at)


def _nodes(base: Node, other: Node, path: tuple[str, ...], problems: list[Problem]) -> Node:
    match base, other:
        case (Scalar(value=None), _):
            return other
        case (_, Scalar(value=None)):
            return base
        case (Mapping(), Mapping()):
            return _mappings(base, other, path, problems)
        case (List(), List()):
            return List((*base.items, *other.items), base.at)
        case (Scalar(), Scalar()):
            if base.text != other.text or type(base.value) is not type(other.value):
                _report(problems, f"this differs from the value in {base.at}; keep one of them", path, other.at)
        case _:
            why = f"this is {_shown(other)}, but {_shown(base)} in {base.at}; write both in the same form"
            _report(problems, why, path, other.at)
    return base


def _report(problems: list[Problem], message: str, path: tuple[str, ...], at: Position) -> None:
    problems.append(Problem(message=message, path=".".join(path), at=at))


def _shown(node: Node) -> str:
    match node:
        case Scalar():
            return "a single value"
        case Mapping():
            return "a mapping"
        case List():
            return "a list"
