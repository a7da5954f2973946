"""Nodes as plain values, and their places, for tests of the configuration's text."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.core.config.nodes import Mapping, Node, Problem, Scalar, Sequence
from appliance.core.config.yaml import parse


def plain(node: Node | None) -> object:
    match node:
        case None:
            return None
        case Scalar():
            return node.value
        case Sequence():
            return [plain(item) for item in node.items]
        case Mapping():
            return {entry.key.text: plain(entry.value) for entry in node.entries}


def walk(node: Node) -> Iterator[Node]:
    """The node, its keys and everything in it."""
    yield node
    if isinstance(node, Sequence):
        for item in node.items:
            yield from walk(item)
    if isinstance(node, Mapping):
        for entry in node.entries:
            yield entry.key
            yield from walk(entry.value)


def mapping(text: str, file: str = "c.yaml") -> Mapping:
    """The root of a text without mistakes."""
    root, problems = parse(text, file)
    assert not problems, problems
    assert isinstance(root, Mapping)
    return root


def told(problems: list[Problem]) -> list[str]:
    """Each problem as ``line:column level path``."""
    return [
        f"{p.at.line}:{p.at.column} {p.level} {p.path}".strip() if p.at else f"{p.level} {p.path}" for p in problems
    ]
