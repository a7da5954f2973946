"""The secrets of a configuration's text, and marks in their place: ``(secret 1)``.

Marks stand for the keys of clients and peers, the environment of models, MCP servers, the settings of plugins,
headers for traces, what follows ``--api-key`` in a command, and the macros that any of these use. Comments are shown
as they are. A text in which a secret cannot be found for certain is not shown at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from appliance.core.config.decode import ANY
from appliance.core.config.nodes import LineIndex, MappingNode, Node, ScalarNode, SequenceNode
from appliance.core.config.splices import spans
from appliance.core.config.yaml import AS_WRITTEN, parse
from appliance.errors import UsageError

MARK = "(secret "
"""The beginning of every mark."""
_PLACES = (
    ("apiKeys",),
    ("peers", ANY, "apiKey"),
    ("models", ANY, "env"),
    ("mcp_servers",),
    ("tracing", "headers"),
    ("plugins", ANY, "settings"),
)
_WITH_KEYS = ("mcp_servers", "plugins", "tracing")
"""In these a mapping's keys are names. Anywhere else a mapping is a mistake, and its keys may be secrets as well."""
_IN_COMMAND = re.compile(r"(--api-key[\"'\\\s=,]+)([^\s\"'\\,\]}]+)")
_REFERENCE = re.compile(r"\$\{([\w-]+)\}", re.ASCII)
_NO_SECRET = re.compile(r"\s*|(?:\$\{[\w.-]+\})+", re.ASCII)
"""Nothing, or only macros: what is behind these is a secret instead."""
_MARKS = re.compile(r"\(secret \d+\)")
_FIX = "edit it on the machine, as with 'llama-appliance config edit'"


class MaskedText(Struct, frozen=True):
    """A text with marks. ``hidden`` has the text behind each of them."""

    text: str
    hidden: Mapping[str, str]

    def revealed(self, text: str) -> str:
        """Return another text with these secrets in the place of its marks.

        Raises UsageError for a mark at a place where its secret would be shown.
        """
        whole = _MARKS.sub(lambda mark: self.hidden.get(mark[0], mark[0]), text)
        if len(masked(whole).hidden) != text.count(MARK):
            raise UsageError(
                f"a mark of a secret, as '{MARK}1)', can only stay where it is, and once; put it back there"
            )
        return whole


def masked(text: str) -> MaskedText:
    """Put marks into a text. Raises UsageError where it is not certain that they hide every secret."""
    root = _root(text)
    if root is None or MARK in text:
        why = f"it contains the words '{MARK}'" if root is not None else "it is not YAML that can be read"
        raise UsageError(f"the configuration's text cannot be shown over HTTP, because {why}; {_FIX}")
    places, (_, scalars) = LineIndex("", text), spans(text)
    by_place = {places.at(span.start): span for span in scalars.values()}
    found = {by_place[node.at].start: by_place[node.at] for node in _secrets(root, text) if node.at in by_place}
    hidden: dict[str, str] = {}

    def mark(secret: str) -> str:
        name = f"{MARK}{len(hidden) + 1})"
        hidden[name] = secret
        return name

    pieces, behind = list[str](), 0
    for start, span in sorted(found.items()):
        pieces += [text[behind:start], mark(text[start : span.end])]
        behind = span.end
    shown = _IN_COMMAND.sub(
        lambda key: key[0] if key[2].startswith(("$", MARK.strip())) else key[1] + mark(key[2]),
        "".join(pieces) + text[behind:],
    )
    after = _root(shown)
    seen = after is None or any(node.text not in hidden for node in _secrets(after, shown))
    if seen or _MARKS.sub(lambda mark: hidden[mark[0]], shown) != text:
        raise UsageError(f"the configuration has a key that cannot be hidden over HTTP as it is written; {_FIX}")
    return MaskedText(shown, hidden)


def _root(text: str) -> MappingNode | None:
    """The root of a text without mistakes; an empty text is an empty one."""
    root, problems = parse(text, "", AS_WRITTEN)
    if any(problem.level == "error" for problem in problems):
        return None
    return root if isinstance(root, MappingNode) else MappingNode((), LineIndex("", text).at(0))


def _secrets(root: MappingNode, text: str) -> list[ScalarNode]:
    """The values to be hidden. The macros that they use are followed, also those of macros."""
    waiting = [
        scalar
        for place in _PLACES
        for node in _below(root, place)
        for scalar in _scalars(node, keys=place[0] not in _WITH_KEYS)
    ]
    named = {name for key in _IN_COMMAND.finditer(text) for name in _REFERENCE.findall(key[2])}
    found: list[ScalarNode] = []
    seen: set[str] = set()
    while waiting or named:
        while waiting:
            scalar = waiting.pop()
            named.update(_REFERENCE.findall(scalar.text))
            if not _NO_SECRET.fullmatch(scalar.text):
                found.append(scalar)
        named -= seen
        seen |= named
        for name in named:
            places = (("macros", name), ("models", ANY, "macros", name))
            waiting += [scalar for place in places for node in _below(root, place) for scalar in _scalars(node)]
        named.clear()
    return found


def _below(node: Node, place: tuple[str, ...]) -> Iterator[Node]:
    if not place:
        yield node
    elif isinstance(node, MappingNode):
        for entry in node.entries:
            if place[0] in (ANY, entry.key.text):
                yield from _below(entry.value, place[1:])


def _scalars(node: Node, *, keys: bool = False) -> Iterator[ScalarNode]:
    match node:
        case ScalarNode():
            yield node
        case SequenceNode():
            for item in node.items:
                yield from _scalars(item, keys=keys)
        case MappingNode():
            for entry in node.entries:
                yield from [entry.key] if keys else []
                yield from _scalars(entry.value, keys=keys)
