"""Text of a configuration file to nodes with places.

Anchors, aliases and ``<<`` merges are gone afterwards: what they stand for is in their place, and keeps the place of
its own text. `core.config.scalars` has the dialect of plain scalars; keys are text whatever they look like.

``${env.NAME}`` in a value or a key is replaced by the variable, also under unknown keys and in ``#`` lines of block
texts; in YAML's own comments it is not looked at. The value is part of one text, whatever it consists of, and a bare
text has the type that it then looks like. (llama-swap puts values into the file before it is YAML, with backslashes in
front of quotes and backslashes, which then appear twice outside of double quotes.)
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping

from msgspec import Struct
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
)

from appliance.core.config.libyaml import NotYaml, events
from appliance.core.config.nodes import (
    KeyValue,
    LineIndex,
    MappingNode,
    Node,
    Position,
    Problem,
    ScalarNode,
    SequenceNode,
)
from appliance.core.config.scalars import WrongTag, tagged, typed

MAX_DEPTH = 100
"""Levels of lists and mappings within each other, aliases written out. The stages behind this one walk down them."""
MAX_NODES = 200_000
"""Values in one file with every alias written out: a few lines of nested aliases can stand for billions."""
_CORE = "tag:yaml.org,2002:"
_MERGE = f"{_CORE}merge"
_MACRO = re.compile(r"\$\{env\.([a-zA-Z_][a-zA-Z0-9_]*)\}")
_LOOKS_LIKE_ONE = re.compile(r"\$\{env\.[^}\s]*\}?")
_PAIR = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
_LETTERS = range(0x3400, 0x4DC0)
"""No YAML has another meaning for them."""
NO_ENV: Mapping[str, str] = {}


class _AsWritten(Mapping[str, str]):
    def __getitem__(self, name: str) -> str:
        return f"${{env.{name}}}"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


AS_WRITTEN: Mapping[str, str] = _AsWritten()
"""Leaves every environment macro as it is written, for a text that is compared and not used."""


def parse(text: str, file: str, env: Mapping[str, str] = NO_ENV) -> tuple[Node | None, list[Problem]]:
    """The root mapping, or None for a file without content (empty, comments, ``null``) or without a usable root.

    The node has everything that can be read in spite of errors, so that later steps can find more of them. ``file`` is
    only a name for the places. A variable that is not in ``env`` is an error, and its macro stays.
    """
    text = text.removeprefix("\ufeff")
    builder = _Builder(text, file, env)
    try:
        root = builder.document()
    except NotYaml as error:
        builder.report(error.message, error.offset)
        return None, builder.problems
    if root is not None and not isinstance(root, MappingNode):
        what = "a list" if isinstance(root, SequenceNode) else "a single value"
        builder.report(f"the file is {what}, not a mapping: it must consist of lines like 'key: value'", root.at)
        return None, builder.problems
    return root, builder.problems


# An alias shares the node of its anchor. It costs nothing here, but the later stages walk it every time: ten lines of
# ten aliases each stand for ten thousand million values. So an anchored node knows the size and the height that it
# has with all its aliases written out, and each alias of it is counted with these.
class _Anchored(Struct):
    node: Node | None = None
    """None while it is being read."""
    size: int = 0
    height: int = 0


# JSON writes a character beyond U+FFFF as the escapes of two halves, \ud83d\ude00, and libyaml refuses each of them. So
# they become one escape of YAML's, \U0001f600, which is two characters shorter: places behind it are moved back.
#
# The text is not YAML as long as it has macros: between brackets, their braces begin a mapping. So YAML reads letters
# instead of "${env." and "}", as many, so that nothing moves. The values are put into what it has read, and no value
# can change the structure of the file.
class _Builder:
    """Makes nodes of events. A `NotYaml` of its own is a mistake behind which nothing can be read."""

    def __init__(self, text: str, file: str, env: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self._lines = LineIndex(file, text)
        self._pairs = [pair.start() - 2 * number for number, pair in enumerate(_PAIR.finditer(text))]
        self._text = text = _PAIR.sub(_whole_escape, text) if self._pairs else text
        self._env = env
        self._refused: set[str] = set()
        """Variables that cannot be used; each is reported once."""
        self._hidden: re.Pattern[str] | None = None
        """A macro as YAML reads it; None for a text without any."""
        if "${env." in text:
            letter = next(chr(code) for code in _LETTERS if chr(code) not in text)
            text = _MACRO.sub(rf"{letter * len('${env.')}\1{letter}", text)
            self._hidden = re.compile(rf"{letter}+(\w+?){letter}", re.ASCII)
        self._events = events(text)
        self._anchors: dict[str, _Anchored] = {}
        self._count = 0
        self._path: list[str] = []
        self._deepest = 0
        """The longest path within the innermost node that has an anchor."""

    def document(self) -> Node | None:
        root: Node | None = None
        seen = False
        for event in self._events:
            if isinstance(event, NodeEvent):
                root = self._node(event)
            elif isinstance(event, DocumentStartEvent):
                if seen:
                    message = "a second document begins here; one file holds one, so remove '---'"
                    raise NotYaml(message, event.start_mark.index)
                seen = True
        return None if isinstance(root, ScalarNode) and root.value is None else root

    def report(self, message: str, at: Position | int, *, warning: bool = False) -> None:
        at = self._at(at) if isinstance(at, int) else at
        path = ".".join(self._path).replace(".[", "[")
        self.problems.append(Problem(message=message, path=path, at=at, level="warning" if warning else "error"))

    def _at(self, offset: int) -> Position:
        return self._lines.at(offset + 2 * bisect_left(self._pairs, offset))

    def _next(self) -> NodeEvent | None:
        """The next node's first event; None at the end of the collection."""
        event = next(self._events)
        return event if isinstance(event, NodeEvent) else None

    def _node(self, event: NodeEvent) -> Node:
        if isinstance(event, AliasEvent):
            return self._alias(event)
        self._grow(1, 0, event.start_mark.index)
        if event.anchor is None:
            return self._bare(event)
        anchored = self._anchors[event.anchor] = _Anchored()
        before, deepest, self._deepest = self._count, self._deepest, len(self._path)
        anchored.node = self._bare(event)
        anchored.size, anchored.height = self._count - before + 1, self._deepest - len(self._path)
        self._deepest = max(deepest, self._deepest)
        return anchored.node

    def _bare(self, event: NodeEvent) -> Node:
        if isinstance(event, ScalarEvent):
            return self._scalar(event)
        if isinstance(event, MappingStartEvent):
            return self._mapping(event)
        assert isinstance(event, SequenceStartEvent)
        return self._sequence(event)

    def _grow(self, size: int, height: int, offset: int) -> None:
        self._count += size
        if self._count > MAX_NODES:
            raise NotYaml(f"more than {MAX_NODES} values with all aliases written out; use fewer aliases", offset)
        self._deepest = max(self._deepest, len(self._path) + height)
        if self._deepest > MAX_DEPTH:
            raise NotYaml(f"values are nested more than {MAX_DEPTH} levels deep", offset)

    def _alias(self, event: AliasEvent) -> Node:
        name, offset = event.anchor, event.start_mark.index
        anchored = self._anchors.get(name)
        if anchored is None:
            self.report("no such anchor stands before this alias; check the spelling", offset)
            return ScalarNode(None, "", self._at(offset))
        if anchored.node is None:
            raise NotYaml("this alias stands inside of its anchor: a value cannot contain itself", offset)
        self._grow(anchored.size, anchored.height, offset)
        return anchored.node

    def _scalar(self, event: ScalarEvent) -> ScalarNode:
        at, text, tag = self._at(event.start_mark.index), event.value, event.tag
        plain = not event.style
        if self._hidden is not None:
            text = self._with_env(self._hidden, text, event.start_mark.index)
            text = text.strip(" \t") if plain else text
        if tag is None:
            return ScalarNode(typed(text) if plain else text, text, at, quoted=not plain)
        try:
            value = tagged(text, tag)
        except WrongTag as error:
            self.report(str(error), at)
            value = text
        except KeyError:
            if tag != _MERGE:
                self.report("this tag is unknown and ignored; the value is text", at, warning=True)
            value = text
        return ScalarNode(value, str(value) if isinstance(value, str) else text, at, quoted=isinstance(value, str))

    def _with_env(self, hidden: re.Pattern[str], text: str, offset: int) -> str:
        """The text of the scalar at ``offset`` with its macros replaced."""
        for odd in _LOOKS_LIKE_ONE.findall(text):
            why = "this is not an environment macro and stays: a name is letters, digits and _, as in ${env.HOME}"
            self.report(why, self._text.find(odd, offset), warning=True)

        def value_of(macro: re.Match[str]) -> str:
            name = macro[1]
            written = f"${{env.{name}}}"
            value = self._env.get(name)
            why = _unusable(value, written)
            if why and name not in self._refused:
                self._refused.add(name)
                self.report(f"environment variable {name} {why}", self._text.find(written, offset))
            return written if why or value is None else value

        return hidden.sub(value_of, text)

    def _check_tag(self, event: CollectionStartEvent, known: tuple[str, ...]) -> None:
        tag = event.tag
        if tag is not None and tag != "!" and tag.removeprefix(_CORE) not in known:
            self.report("this tag is unknown here and ignored", event.start_mark.index, warning=True)

    def _sequence(self, event: SequenceStartEvent) -> SequenceNode:
        self._check_tag(event, ("seq", "omap", "pairs"))
        items: list[Node] = []
        while (inner := self._next()) is not None:
            self._path.append(f"[{len(items)}]")
            items.append(self._node(inner))
            self._path.pop()
        return SequenceNode(tuple(items), self._at(event.start_mark.index))

    def _mapping(self, event: MappingStartEvent) -> MappingNode:
        self._check_tag(event, ("map", "set"))
        own: dict[str, KeyValue] = {}
        merge: tuple[int, Node, int] | None = None
        while (inner := self._next()) is not None:
            if _is_merge(inner):
                if merge is not None:
                    self.report(
                        "a second '<<' in one mapping; write one, with a list: <<: [*a, *b]", inner.start_mark.index
                    )
                merge = len(own), self._value(), inner.start_mark.index
                continue
            key = self._key(inner)
            self._path.append(key.text if key else "?")
            value = self._value()
            if key and (first := own.get(key.text)):
                line = f"line {first.key.at.line}"
                if first.key.at.line == key.at.line:
                    line += f", column {first.key.at.column}"
                self.report(f"the key '{key.text}' is already on {line}; a key can occur once, remove one", key.at)
            elif key:
                own[key.text] = KeyValue(key, value)
            self._path.pop()
        entries = list(own.values())
        if merge is not None:
            entries[merge[0] : merge[0]] = self._merged(merge[1], own, merge[2])
        return MappingNode(tuple(entries), self._at(event.start_mark.index))

    def _value(self) -> Node:
        event = self._next()
        assert event is not None, "the parser gives every key a value"
        return self._node(event)

    def _key(self, event: NodeEvent) -> ScalarNode | None:
        """The key as text, or None after a report."""
        node = self._node(event)
        at = self._at(event.start_mark.index) if isinstance(event, AliasEvent) else node.at
        if not isinstance(node, ScalarNode):
            self.report("a mapping or list cannot be a key; put the key in quotes if it is text", at)
            return None
        if node.value is None:
            self.report("a key is missing before ':', or is null; put it in quotes if it is text", at)
            return None
        if not isinstance(node.value, str) and self._path[:1] == ["models"]:
            what = f"the key {node.text} is not text for YAML; it is read as '{node.text}', put it in quotes to say so"
            self.report(what, at, warning=True)
        return ScalarNode(node.text, node.text, at, quoted=node.quoted)

    def _merged(self, source: Node, own: dict[str, KeyValue], offset: int) -> list[KeyValue]:
        """Return the additions of ``<<``: keys that are not there yet, from the first mapping that has them."""
        found: dict[str, KeyValue] = {}
        for part in source.items if isinstance(source, SequenceNode) else (source,):
            if not isinstance(part, MappingNode):
                self.report("'<<' needs a mapping, or a list of mappings, as in <<: *name", part.at)
                continue
            self._grow(len(part.entries), 0, offset)
            for entry in part.entries:
                if entry.key.text not in own:
                    found.setdefault(entry.key.text, entry)
        return list(found.values())


def _whole_escape(pair: re.Match[str]) -> str:
    character = bytes.fromhex(pair[1] + pair[2]).decode("utf-16-be")
    return f"\\U{ord(character):08x}"


def _unusable(value: str | None, macro: str) -> str:
    if value is None:
        return f"is not set; set it, or remove {macro}"
    if re.search("[\n\r\0]", value):
        return "contains a line break or a NUL character, which a configuration value cannot hold"
    return "is not valid UTF-8" if re.search("[\ud800-\udfff]", value) else ""


def _is_merge(event: NodeEvent) -> bool:
    return (
        isinstance(event, ScalarEvent) and event.value == "<<" and not event.style and event.tag in (None, "!", _MERGE)
    )
