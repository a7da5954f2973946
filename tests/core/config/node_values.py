"""Nodes as plain values, and their places, for tests of the configuration's text."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.core.config.nodes import MappingNode, Node, Problem, ScalarNode, SequenceNode
from appliance.core.config.yaml import parse


def plain(node: Node | None) -> object:
    match node:
        case None:
            return None
        case ScalarNode():
            return node.value
        case SequenceNode():
            return [plain(item) for item in node.items]
        case MappingNode():
            return {entry.key.text: plain(entry.value) for entry in node.entries}


def walk(node: Node) -> Iterator[Node]:
    """The node, its keys and everything in it."""
    yield node
    if isinstance(node, SequenceNode):
        for item in node.items:
            yield from walk(item)
    if isinstance(node, MappingNode):
        for entry in node.entries:
            yield entry.key
            yield from walk(entry.value)


def mapping(text: str, file: str = "c.yaml") -> MappingNode:
    """The root of a text without mistakes."""
    root, problems = parse(text, file)
    assert not [each for each in problems if each.level == "error"], problems
    assert isinstance(root, MappingNode)
    return root


def told(problems: list[Problem]) -> list[str]:
    """Each problem as ``line:column level path``."""
    return [
        f"{p.at.line}:{p.at.column} {p.level} {p.path}".strip() if p.at else f"{p.level} {p.path}" for p in problems
    ]
