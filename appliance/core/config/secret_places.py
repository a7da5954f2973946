"""The secrets of configurations: by their place, by their name, and by what the launcher makes of a command.

A command is read as it is started: macros written out, then split into words. Each character of it knows the value of
the file that it comes from, so a secret is found there however it is put together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import cast

import msgspec.inspect as mi
from msgspec import Struct, to_builtins

from appliance.core.command_words import split_command, strip_comments
from appliance.core.config.decode import ANY, bare_type, schema_root
from appliance.core.config.macros import REFERENCE, Scope, TooLong
from appliance.core.config.nodes import KeyValue, MappingNode, Node, Plain, Position, ScalarNode, SequenceNode
from appliance.core.config.scalars import text_of
from appliance.core.config.types import Config
from appliance.core.secrets import (
    Secrets,
    holds_secret,
    is_secret_name,
    may_hold_secret,
    secret_parts,
    secret_places,
    with_marks,
)

_PLACES = (
    (("apiKeys",), True),
    (("peers", ANY, "apiKey"), True),
    (("models", ANY, "env"), False),
    (("mcp_servers",), False),
    (("plugins", ANY, "settings"), False),
)
"""Each with whether everything there is a secret. In the others many values are not, but nobody knows which."""
_WITH_KEYS = ("mcp_servers", "plugins")
"""In these a mapping's keys are names. Anywhere else a mapping is a mistake, and its keys may be secrets as well."""
_LIKELY = 8
"""A shorter value that may be no secret is not looked for in other texts."""
_OWN = ("PORT", "PID", "MODEL_ID")
_COMMANDS = ("cmd", "cmdStop")
_SIGNS = r"[\s\\'\"`$#{}]*"
KNOWN = re.compile(rf"[\s'\"]*|{_SIGNS}?(?:\$\{{(?:env\.\w+|{'|'.join(_OWN)})\}}{_SIGNS})+", re.ASCII)
"""Nothing, or only what the program or the environment puts in."""
_LEFT_OUT = re.compile(r"^\s*#+", re.MULTILINE)
"""The beginning of a line of a command that the launcher leaves out."""
_USE = re.compile(r"\$\{[^}]*\}")
_APART = re.compile(r"\$\{[^}]*\}|[\s\\'\"`#${}]")
"""Words to which the launcher gives a meaning: they stay as they are."""
_FIRST, _LAST = 0xF0000, 0x10FFFF
"""The private characters that stand for those of a command."""
_Macros = Mapping[str, ScalarNode]


Span = tuple[int, int]


class Found(Struct, frozen=True):
    """The hidden values by their places, the parts of others that are hidden, and the secrets of all of them."""

    whole: Mapping[Position, ScalarNode]
    parts: Mapping[Position, set[Span]]
    texts: frozenset[str]

    @property
    def secrets(self) -> Secrets:
        return Secrets(self.texts)


def find(roots: Sequence[Node], config_type: type[Config]) -> Found:
    """The secrets of files that are one configuration."""
    shared = {name: macro for root in roots for name, macro in _macros(root).items()}
    of_models = (model for root in roots for model in _below(root, ("models", ANY)))
    finder = _Finder(config_type, {*shared, *_OWN, *(name for model in of_models for name in _macros(model))})
    for root in roots:
        finder.file(root, shared)
    finder.follow(roots)
    parts, values = finder.parts, (node for root in roots for node in scalars(root, keys=True))
    shown = "\0".join(
        {
            with_marks(node.text, parts.get(node.at, ()), lambda _: "\0")
            for node in values
            if node.at not in finder.whole
        }
    )
    likely = {text for text in finder.likely if len(text) >= _LIKELY and text not in shown}
    return Found(finder.whole, finder.parts, frozenset(finder.sure | likely))


def secrets_of(config: Config) -> frozenset[str]:
    """The secrets of a configuration that is understood."""
    return find([_node(to_builtins(config), count())], type(config)).texts


def scalars(node: Node, *, keys: bool = False) -> Iterator[ScalarNode]:
    match node:
        case ScalarNode():
            yield node
        case SequenceNode():
            for item in node.items:
                yield from scalars(item, keys=keys)
        case MappingNode():
            for entry in node.entries:
                yield from [entry.key] if keys else []
                yield from scalars(entry.value, keys=keys)


class _Finder:
    def __init__(self, config_type: type[Config], declared: set[str]) -> None:
        self._root = schema_root(config_type)
        of_features = [place for keys in config_type.feature_keys for place in keys.secrets]
        self._places = (*_PLACES, *((place, True) for place in of_features))
        self._with_keys = {*_WITH_KEYS, *(place[0] for place in of_features)}
        self._declared = declared
        self.whole: dict[Position, ScalarNode] = {}
        self.parts: dict[Position, set[Span]] = {}
        self.sure: set[str] = set()
        self.likely: set[str] = set()
        self._used: dict[str, bool] = {}
        """Macros that hidden values use, with whether these are secrets for sure."""

    def file(self, root: Node, shared: _Macros) -> None:
        for place, sure in self._places:
            for node in _below(root, place):
                for scalar in scalars(node, keys=place[0] not in self._with_keys):
                    self._hide(scalar, shared, sure=sure)
        self._walk(self._root, root, "", shared)

    def follow(self, roots: Sequence[Node]) -> None:
        """Hide the macros that hidden values use, and those that these use."""
        seen: dict[str, bool] = {}
        while self._used:
            name, sure = self._used.popitem()
            if name in seen and seen[name] >= sure:
                continue
            seen[name] = sure
            for place in (("macros", name), ("models", ANY, "macros", name)):
                for scalar in (each for root in roots for node in _below(root, place) for each in scalars(node)):
                    self._hide(scalar, dict.fromkeys(REFERENCE.findall(scalar.text), scalar), sure=sure)

    def _hide(self, scalar: ScalarNode, macros: _Macros, *, sure: bool) -> None:
        """Hide a value, but for one that only uses macros: these are hidden instead."""
        variable, _, value = scalar.text.partition("=")
        sure = sure or holds_secret(variable, value)
        for name in REFERENCE.findall(scalar.text):
            self._used[name] = sure or self._used.get(name, False)
        if KNOWN.fullmatch(REFERENCE.sub(lambda use: "" if use[1] in macros else use[0], scalar.text)):
            return
        self.whole[scalar.at] = scalar
        for text in (scalar.text, _expanded(scalar.text, macros), value):
            self._note(text, sure=sure)

    def _note(self, secret: str, *, sure: bool = True) -> None:
        pieces = [piece for piece in _USE.split(secret) if piece == secret or len(piece) >= _LIKELY]
        pieces += [name for name in REFERENCE.findall(secret) if name not in self._declared]
        (self.sure if sure else self.likely).update(part for piece in (secret, *pieces) for part in secret_parts(piece))

    def _walk(self, kind: mi.Type | None, node: Node, name: str, macros: _Macros) -> None:
        """Look at everything below. ``kind`` is its type, None: any; ``name`` is what the user calls it, if he does."""
        kind = None if kind is None else bare_type(kind)
        match kind, node:
            case mi.StructType(fields=fields), MappingNode():
                types, macros = {field.encode_name: field.type for field in fields}, {**macros, **_macros(node)}
                for entry in node.entries:
                    key, value = entry.key.text, entry.value
                    if key in _COMMANDS and isinstance(value, ScalarNode):
                        self._command([value], macros)
                    elif key == "macros":
                        self._walk(None, value, "", macros)
                    else:
                        self._walk(types.get(key), value, "" if key in types else key, macros)
            case mi.DictType(value_type=item), MappingNode():
                is_free = isinstance(bare_type(item), mi.CustomType)
                for entry in node.entries:
                    self._walk(item, entry.value, entry.key.text if is_free else "", macros)
            case mi.ListType(item_type=item), SequenceNode():
                for each in node.items:
                    self._walk(item, each, "", macros)
            case _, MappingNode():
                for entry in node.entries:
                    self._walk(None, entry.value, name if is_secret_name(name) else entry.key.text, macros)
            case _, SequenceNode():
                self._command([item for item in node.items if isinstance(item, ScalarNode)], macros, split=False)
                for item in node.items:
                    self._walk(None, item, name, macros)
            case ((None | mi.CustomType() | mi.StructType() | mi.DictType() | mi.ListType()), ScalarNode()):
                if holds_secret(name, node.text):
                    self._hide(node, macros, sure=True)
                self._command([node], macros)
            case _, ScalarNode():
                if re.search("=|://", _expanded(node.text, macros)):
                    self._command([node], macros, split=False)

    def _command(self, nodes: Sequence[ScalarNode], macros: _Macros, *, split: bool = True) -> None:
        """Hide the secrets of a command. ``nodes`` are its words, or, to be split, one with its text."""
        plain = [node.text for node in nodes], Scope({name: _text(macro) for name, macro in macros.items()})
        if not may_hold_secret(" ".join(_words(*plain, "words"))):
            return
        used = _closure((node.text for node in nodes), macros)
        tags = _Tags()
        tagged = [tags.of(node) for node in nodes], Scope({name: tags.of(macro) for name, macro in used.items()})
        for way in ("posix", "windows", "comments") if split else ("words",):
            words, origins = (_words(texts, scope, way) for texts, scope in (plain, tagged))
            is_doubtful = words != [tags.without(word) for word in origins]
            for number, start, end in secret_places(words):
                secret = words[number][start:end]
                if KNOWN.fullmatch(secret):
                    continue
                self._note(secret, sure=way != "comments")
                parts = () if is_doubtful else tags.parts(origins[number][start:end])
                for node, part in parts:
                    self.parts.setdefault(node.at, set()).add(part)
                if not parts:
                    self.whole.update(
                        (node.at, node) for node in (*nodes, *used.values()) if not KNOWN.fullmatch(node.text)
                    )


class _Tags:
    """Texts whose characters tell where they come from, but for those that the launcher gives a meaning to."""

    def __init__(self) -> None:
        self._origins: list[tuple[ScalarNode, int]] = []

    def of(self, node: ScalarNode) -> str:
        text, tagged, at = _text(node), list[str](), 0
        if text != node.text or len(self._origins) + len(text) > _LAST - _FIRST:
            return text
        for apart in (*_APART.finditer(text), None):
            end = apart.start() if apart is not None else len(text)
            for offset in range(at, end):
                tagged.append(chr(_FIRST + len(self._origins)))
                self._origins.append((node, offset))
            if apart is not None:
                tagged.append(apart[0])
                at = apart.end()
        return "".join(tagged)

    def without(self, text: str) -> str:
        return "".join(found[0].text[found[1]] if (found := self._of(each)) else each for each in text)

    def parts(self, tagged: str) -> list[tuple[ScalarNode, Span]]:
        """The parts of values that this text is made of, with what stands between and at them, but no blanks."""
        ends: dict[Position, tuple[ScalarNode, int, int]] = {}
        for node, offset in filter(None, map(self._of, tagged)):
            _, first, last = ends.get(node.at, (node, offset, offset))
            ends[node.at] = node, min(first, offset), max(last, offset)
        return [(node, _around(node.text, first, last + 1)) for node, first, last in ends.values()]

    def _of(self, character: str) -> tuple[ScalarNode, int] | None:
        number = ord(character) - _FIRST
        return self._origins[number] if 0 <= number < len(self._origins) else None


def _around(text: str, start: int, end: int) -> Span:
    before = re.search(r"[\\'\"`#$]*\Z", text[:start])
    behind = re.match(r"[\\'\"`#{}]*(?:\$(?!\{)[\\'\"`#$}]*)*", text[end:])
    return before.start() if before else start, end + (behind.end() if behind else 0)


def _words(texts: Sequence[str], scope: Scope, way: str) -> list[str]:
    """The words that the launcher makes of a command; of ``comments``, as if the lines that it leaves out counted."""
    try:
        words = [str(scope.expanded(strip_comments(text) if way in ("posix", "windows") else text)) for text in texts]
    except TooLong:
        return list(texts)
    if way == "words":
        return words
    text = _LEFT_OUT.sub("", words[0]) if way == "comments" else words[0]
    return split_command(text, windows=way == "windows")


def _expanded(text: str, macros: _Macros) -> str:
    if "${" not in text:
        return text
    return _words([text], Scope({name: _text(macro) for name, macro in macros.items()}), "words")[0]


def _text(node: ScalarNode) -> str:
    return "" if node.value is None else text_of(node.value)


def _closure(texts: Iterable[str], macros: _Macros) -> dict[str, ScalarNode]:
    """The macros that texts use, and those that these use, in their order."""
    waiting, seen = [name for text in texts for name in REFERENCE.findall(text)], set[str]()
    while waiting:
        if (name := waiting.pop()) in macros and name not in seen:
            seen.add(name)
            waiting += REFERENCE.findall(macros[name].text)
    return {name: macro for name, macro in macros.items() if name in seen}


def _macros(node: Node) -> dict[str, ScalarNode]:
    found = node.get("macros") if isinstance(node, MappingNode) else None
    entries = found.entries if isinstance(found, MappingNode) else ()
    values = ((entry.key.text, entry.value) for entry in entries)
    return {name: value for name, value in values if isinstance(value, ScalarNode) and value.value is not None}


def _below(node: Node, place: tuple[str, ...]) -> Iterator[Node]:
    """Yield the node at a place, and any other node where the mappings around it should be."""
    if not place or not isinstance(node, MappingNode):
        yield node
    else:
        for entry in node.entries:
            if place[0] in (ANY, entry.key.text):
                yield from _below(entry.value, place[1:])


def _node(value: object, numbers: Iterator[int]) -> Node:
    """A value without places as one with a place of its own."""
    at = Position("", next(numbers), 0)
    if isinstance(value, dict):
        tree = cast("dict[str, object]", value)
        return MappingNode(tuple(KeyValue(ScalarNode(k, k, at), _node(v, numbers)) for k, v in tree.items()), at)
    if isinstance(value, list | tuple):
        return SequenceNode(tuple(_node(item, numbers) for item in cast("Sequence[object]", value)), at)
    known = cast("Plain", value)
    return ScalarNode(known, "" if known is None else text_of(known), at)
