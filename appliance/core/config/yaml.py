"""Text of a configuration file to nodes with places: read quickly where it is as people write it, else by the library.

Anchors, aliases and ``<<`` merges are gone afterwards: what they stand for is in their place, and keeps the place of
its own text. `core.config.scalars` has the dialect of plain scalars; keys are text whatever they look like.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from appliance.core.config.nodes import (
    MAX_DEPTH,
    TOO_DEEP,
    Entry,
    Event,
    Mapping,
    Node,
    NotYaml,
    Position,
    Problem,
    Scalar,
    Sequence,
    Token,
)
from appliance.core.config.scalars import WrongTag, tagged, typed
from appliance.core.config.yaml_quick import quick_events, quick_tokens


def events(text: str) -> Iterator[Event]:
    """The parser's events; those of the only document may be missing. Raises `NotYaml`, possibly after some."""
    quick = quick_events(text)
    if quick is not None:
        return iter(quick)
    # The library is two megabytes and a hundredth of a second, and most files do without.
    from appliance.core.config import yaml_library

    return yaml_library.events(text)


def tokens(text: str) -> Iterable[Token]:
    """Scalars and brackets; text can have right tokens and yet be no document. Raises `NotYaml`."""
    quick = quick_tokens(text)
    if quick is not None:
        return quick
    from appliance.core.config import yaml_library  # as above

    return yaml_library.tokens(text)


MAX_NODES = 200_000
"""Values in one file with every alias written out: a few lines of nested aliases can stand for billions."""
_MERGE = "tag:yaml.org,2002:merge"


def parse(text: str, file: str) -> tuple[Node | None, list[Problem]]:
    """The root mapping, or None for a file without content (empty, comments, ``null``) or without a usable root.

    All that can be read in spite of errors is in the node, so that later steps can find more of them. ``file`` is only
    a name for the places.
    """
    builder = _Builder(file)
    try:
        root = builder.document(events(text.removeprefix("\ufeff")))
    except NotYaml as error:
        builder.report(error.message, Position(file, error.line, error.column))
        return None, builder.problems
    except _Hopeless as error:
        builder.report(str(error), error.at)
        return None, builder.problems
    if root is not None and not isinstance(root, Mapping):
        what = "a list" if isinstance(root, Sequence) else "a single value"
        builder.report(f"the file is {what}, not a mapping: it must consist of lines like 'key: value'", root.at)
        return None, builder.problems
    return root, builder.problems


class _Hopeless(Exception):
    """A mistake behind which nothing can be read."""

    def __init__(self, message: str, at: Position) -> None:
        super().__init__(message)
        self.at = at


class _Anchored:
    """A node with a name. ``node`` is None while it is being read; ``size`` counts the values in it."""

    def __init__(self) -> None:
        self.node: Node | None = None
        self.size = 0


class _Builder:
    def __init__(self, file: str) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._anchors: dict[str, _Anchored] = {}
        self._count = 0
        self._path: list[str] = []
        self._events: Iterator[Event] = iter(())

    def document(self, items: Iterator[Event]) -> Node | None:
        self._events = items
        root: Node | None = None
        seen = False
        for event in items:
            match event.kind:
                case "document":
                    if seen:
                        raise _Hopeless(
                            "a second document begins here; one file holds one, so remove '---'", self._at(event)
                        )
                    seen = True
                case "end" | "other":
                    pass
                case _:
                    root = self._node(event)
        return None if isinstance(root, Scalar) and root.value is None else root

    def report(self, message: str, at: Position, *, warning: bool = False) -> None:
        level = "warning" if warning else "error"
        self.problems.append(Problem(message=message, path=".".join(self._path).replace(".[", "["), at=at, level=level))

    def _at(self, event: Event) -> Position:
        return Position(self._file, event.line, event.column)

    def _next(self) -> Event | None:
        """The next node's first event; None at the end of the collection."""
        event = next(self._events)
        return None if event.kind == "end" else event

    def _node(self, event: Event) -> Node:
        if event.kind == "alias":
            return self._alias(event)
        anchored = _Anchored()
        if event.anchor is not None:
            self._anchors[event.anchor] = anchored
        before = self._count
        self._grow(1, self._at(event))
        match event.kind:
            case "scalar":
                node = self._scalar(event)
            case "mapping":
                node = self._mapping(event)
            case _:
                node = self._sequence(event)
        anchored.node, anchored.size = node, self._count - before
        return node

    def _grow(self, size: int, at: Position) -> None:
        self._count += size
        if self._count > MAX_NODES:
            raise _Hopeless(f"more than {MAX_NODES} values with all aliases written out; use fewer aliases", at)
        if len(self._path) > MAX_DEPTH:
            raise _Hopeless(TOO_DEEP, at)

    def _alias(self, event: Event) -> Node:
        at = self._at(event)
        anchored = self._anchors.get(event.anchor or "")
        if anchored is None:
            self.report(f"no anchor &{event.anchor} stands before the alias *{event.anchor}; check the spelling", at)
            return Scalar(None, "", at)
        if anchored.node is None:
            raise _Hopeless(f"*{event.anchor} stands inside of &{event.anchor}: a value cannot contain itself", at)
        self._grow(anchored.size, at)
        return anchored.node

    def _scalar(self, event: Event) -> Scalar:
        at, text, plain = self._at(event), event.text, event.plain
        if not text.isascii():
            text = self._whole_characters(text, at)
        tag = event.tag
        if tag is None:
            return Scalar(typed(text) if plain else text, text, at, quoted=not plain)
        try:
            value = tagged(text, tag)
        except WrongTag as error:
            self.report(str(error), at)
            value = text
        except KeyError:
            if tag != _MERGE:
                self.report(f"the tag {_short(tag)} is unknown and ignored; the value is text", at, warning=True)
            value = text
        return Scalar(value, str(value) if isinstance(value, str) else text, at, quoted=isinstance(value, str))

    def _whole_characters(self, text: str, at: Position) -> str:
        """JSON writes characters beyond U+FFFF as two escapes, which the YAML scanner leaves apart."""
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self.report(
                "a \\uD800 to \\uDFFF escape without its other half is not a character; write it as \\U and 8 digits",
                at,
            )
            return text.encode("utf-8", "replace").decode()

    def _collection_tag(self, event: Event, known: tuple[str, ...]) -> None:
        tag = event.tag
        if tag is not None and tag != "!" and tag.removeprefix("tag:yaml.org,2002:") not in known:
            self.report(f"the tag {_short(tag)} is unknown here and ignored", self._at(event), warning=True)

    def _sequence(self, event: Event) -> Sequence:
        self._collection_tag(event, ("seq", "omap", "pairs"))
        items: list[Node] = []
        while (inner := self._next()) is not None:
            self._path.append(f"[{len(items)}]")
            items.append(self._node(inner))
            self._path.pop()
        return Sequence(tuple(items), self._at(event))

    def _mapping(self, event: Event) -> Mapping:
        self._collection_tag(event, ("map", "set"))
        own: dict[str, Entry] = {}
        merge: tuple[int, Node] | None = None
        while (inner := self._next()) is not None:
            if _is_merge(inner):
                if merge is not None:
                    self.report("a second '<<' in one mapping; write one, with a list: <<: [*a, *b]", self._at(inner))
                merge = len(own), self._node(self._value_event())
                continue
            at, key = self._at(inner), self._key(inner)
            self._path.append(key.text if key else "?")
            value = self._node(self._value_event())
            if key and (first := own.get(key.text)):
                line = f"line {first.key.at.line}" + (
                    f", column {first.key.at.column}" if first.key.at.line == at.line else ""
                )
                self.report(f"the key '{key.text}' is already on {line}; a key can occur once, remove one", at)
            elif key:
                own[key.text] = Entry(key, value)
            self._path.pop()
        entries = list(own.values())
        if merge is not None:
            entries[merge[0] : merge[0]] = self._merged(merge[1], own)
        return Mapping(tuple(entries), self._at(event))

    def _value_event(self) -> Event:
        event = self._next()
        assert event is not None, "the parser gives every key a value"
        return event

    def _key(self, event: Event) -> Scalar | None:
        """The key as text, or None after a report."""
        at = self._at(event)
        node = self._node(event)
        if not isinstance(node, Scalar):
            self.report("a mapping or list cannot be a key; put the key in quotes if it is text", at)
            return None
        if node.value is None:
            self.report("a key is missing before ':', or is null; put it in quotes if it is text", at)
            return None
        if not isinstance(node.value, str) and self._path[:1] == ["models"]:
            what = f"the key {node.text} is not text for YAML; it is read as '{node.text}', put it in quotes to say so"
            self.report(what, at, warning=True)
        return Scalar(node.text, node.text, at, quoted=node.quoted)

    def _merged(self, source: Node, own: dict[str, Entry]) -> list[Entry]:
        """Return the additions of ``<<``: keys that are not there yet, from the first mapping that has them."""
        found: dict[str, Entry] = {}
        for part in source.items if isinstance(source, Sequence) else (source,):
            if not isinstance(part, Mapping):
                self.report("'<<' needs a mapping, or a list of mappings, as in <<: *name", part.at)
                continue
            self._grow(len(part.entries), part.at)
            for entry in part.entries:
                if entry.key.text not in own:
                    found.setdefault(entry.key.text, entry)
        return list(found.values())


def _is_merge(event: Event) -> bool:
    return event.kind == "scalar" and event.text == "<<" and event.plain and event.tag in (None, "!", _MERGE)


def _short(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")
