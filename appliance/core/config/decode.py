"""The tree of a configuration as typed values; every value that does not fit is a problem with its place.

Follows the reference's decoder where it is lenient: any single value is text where text is expected, an empty value is
the default, ``yes`` and ``on`` are true where a switch is expected, a whole float is an int. Deliberate differences:

- unknown keys are warned about, with the key that was probably meant, instead of vanishing;
- keys that are not text (``7:``) are taken by their text, where llama-swap loses every model of the file;
- an empty model (``m:``) has every default, where llama-swap's has none at all;
- a fraction where a whole number is expected is cut off as in llama-swap, with a warning;
- every problem of a file is found, not only the first.

What is refused counts as absent, so that the rest can still be examined.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import takewhile

import msgspec
import msgspec.inspect as mi
from msgspec import UNSET, Struct, UnsetType, structs

from appliance.core.config.nodes import (
    MappingNode,
    Node,
    PathPlaces,
    Position,
    Problem,
    ProblemReport,
    ScalarNode,
    SequenceNode,
    is_null,
)
from appliance.core.config.scalars import typed
from appliance.core.config.types import BEHIND_FEATURES, Config, ModelConfig
from appliance.core.near_names import did_you_mean, fold, near

ANY = "<id>"
"""Stands in a pattern for a key that the user chooses: ``models.<id>.ttl``."""
TRUE = ("y", "Y", "yes", "Yes", "YES", "on", "On", "ON")
FALSE = ("n", "N", "no", "No", "NO", "off", "Off", "OFF")
OLD_NAMES = {"strip_params": "stripParams"}
"""Old spellings that are read when the new one is absent or empty."""
_LONG = 60
INT64 = 1 << 63
UINT64 = 1 << 64


class Decoded(Struct, frozen=True):
    """``config`` as the file says it, not yet normalised."""

    config: Config
    places: PathPlaces
    problems: list[Problem]
    ignored: frozenset[str]
    """Paths of values that mean nothing here, whatever they are."""


def decode(root: MappingNode | None, config_type: type[Config] = Config) -> Decoded:
    """Give every value its type. Never raises for what a file says; see ``problems``."""
    walk = _Walk(config_type)
    values = walk.struct(schema_root(config_type), root, "", "") if root is not None else {}
    if root is not None and root.get("plugins") is not None:
        values.setdefault("plugins", {})  # the key alone says that there are plugins
    config = msgspec.convert(values, config_type, dec_hook=lambda _, value: value)
    return Decoded(config, walk.places, walk.report.problems, frozenset(walk.ignored))


def plain(node: Node) -> object:
    """The value without places: dicts with text keys, lists, and what JSON knows."""
    match node:
        case ScalarNode():
            return _within_json(node.value)
        case SequenceNode():
            return [plain(item) for item in node.items]
        case MappingNode():
            return {entry.key.text: plain(entry.value) for entry in node.entries}


@cache
def schema_root(config_type: type[Config]) -> mi.StructType:
    """The type of a whole configuration, to be walked. Its keys are in the order in which they are shown."""
    info = mi.type_info(config_type)
    assert isinstance(info, mi.StructType)
    return structs.replace(info, fields=tuple(sorted(info.fields, key=lambda field: field.name in BEHIND_FEATURES)))


class _Walk:
    """One pass over the tree beside the types. ``path`` is the value's own, ``pattern`` has ``<id>`` for free keys."""

    def __init__(self, config_type: type[Config]) -> None:
        self._config_type = config_type
        self.known: dict[str, Position] = {}
        self.places = PathPlaces(self.known)
        self.report = ProblemReport(self.places)
        self.ignored: set[str] = set()

    def struct(self, info: mi.StructType, node: MappingNode, path: str, pattern: str) -> dict[str, object]:
        self.known[path] = node.at
        fields = {field.encode_name: field for field in info.fields}
        values: dict[str, object] = {}
        old: dict[str, object] = {}
        for entry in node.entries:
            key = entry.key.text
            name = OLD_NAMES.get(key, key) if key not in fields else key
            if name not in fields:
                self._unknown(info, entry.key, path, pattern)
            elif info.cls is ModelConfig and name == "argv":
                self.ignored.add(_join(path, key))  # the program's own, in what it shows
            elif not is_null(entry.value):
                value = self.value(fields[name].type, entry.value, _join(path, key), _join(pattern, name))
                if value is not UNSET:
                    (values if name == key else old)[name] = value
        for name, value in old.items():
            if not values.get(name):
                values[name] = value
        return values

    def value(self, kind: mi.Type, node: Node, path: str, pattern: str) -> object | UnsetType:
        """The value as ``kind``, UNSET where it cannot be that."""
        if not is_null(node):
            self.known[path] = node.at
        match bare_type(kind):
            case mi.CustomType():
                self._must_be_json(node, path)
                return plain(node)
            case mi.StructType() as info:
                if is_null(node):
                    self.report.warn(path, "has no settings; every key has its default")
                    return {}
                if isinstance(node, MappingNode):
                    return self.struct(info, node, path, pattern)
                if pattern == "profiles.<id>" and isinstance(node, SequenceNode):
                    self.ignored.add(path)
                    self.report.warn(
                        path, "is a profile of the old form, a list of models, and is ignored; write groups"
                    )
                    return UNSET
                return self._refuse(path, f"must be a mapping with keys of its own, and is {_described(node)}")
            case mi.DictType(value_type=item):
                return self._dict(item, node, path, pattern)
            case mi.ListType(item_type=item):
                return self._list(item, node, path, pattern)
            case mi.UnionType(types=(*_, mi.ListType(item_type=item))) if isinstance(node, SequenceNode):
                return self._list(item, node, path, pattern)
            case simple:
                if isinstance(node, ScalarNode):
                    return self._scalar(simple, node, path)
                return self._refuse(path, f"must be {_named(simple)}, and is {_described(node)}")

    def _dict(self, item: mi.Type, node: Node, path: str, pattern: str) -> object | UnsetType:
        if is_null(node):
            return {}
        if not isinstance(node, MappingNode):
            return self._refuse(path, f"must be a mapping of names to values, and is {_described(node)}")
        values: dict[str, object] = {}
        for entry in node.entries:
            name = entry.key.text
            here = _join(path, name)
            self.known[here] = entry.key.at  # where there is no value
            value = self.value(item, entry.value, here, _join(pattern, ANY))
            if value is not UNSET:
                values[name] = value
        return values

    def _list(self, item: mi.Type, node: Node, path: str, pattern: str) -> object | UnsetType:
        if is_null(node):
            return []
        if not isinstance(node, SequenceNode):
            # the value is not repeated: it may be a key of apiKeys
            what = "a single value; put it in brackets" if isinstance(node, ScalarNode) else "a mapping"
            return self._refuse(path, f"must be a list, and is {what}")
        values = [self.value(item, each, f"{path}[{n}]", f"{pattern}[]") for n, each in enumerate(node.items)]
        return [value for value in values if value is not UNSET]

    def _scalar(self, kind: mi.Type, node: ScalarNode, path: str) -> object | UnsetType:
        value = node.value
        match kind:
            case mi.StrType():
                return "" if value is None else node.text
            case mi.BoolType():
                return self._bool(node, path)
            case mi.IntType(ge=least):
                return self._int(node, path, least)
            case mi.FloatType(ge=least, le=most):
                return self._float(node, path, least, most)
            case mi.LiteralType(values=allowed):
                words = [str(word) for word in allowed]
                if not node.text:
                    del self.known[path]  # as if the key were not there
                    return UNSET
                if node.text in words:
                    return node.text
                advice = did_you_mean(node.text, words)
                return self._refuse(path, f"must be {_one_of(words)}, and is '{node.text}'{advice}")
            case mi.UnionType(types=kinds):
                return self._union(kinds, node, path)
            case _:
                raise TypeError(f"the schema has a type that is not decoded: {kind}")

    def _bool(self, node: ScalarNode, path: str) -> bool | UnsetType:
        if isinstance(node.value, bool):
            return node.value
        if node.value is None:
            return False
        if node.text in TRUE or node.text in FALSE:
            return node.text in TRUE
        quoted = node.text in ("true", "false")
        advice = f"; drop the quotes: {node.text}" if quoted and node.quoted else ""
        return self._refuse(path, f"must be true or false, and is {_described(node)}{advice}")

    def _int(self, node: ScalarNode, path: str, least: float | None) -> int | UnsetType:
        number = 0 if node.value is None else node.value
        if isinstance(number, float) and math.isfinite(number):
            if not number.is_integer():
                self.report.warn(path, f"must be a whole number; {node.text} is read as {int(number)}")
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int):
            advice = f"; drop the quotes: {node.text}" if node.quoted and type(typed(node.text)) is int else ""
            return self._refuse(path, f"must be a whole number, and is {_described(node)}{advice}")
        if not -INT64 <= number < INT64:
            return self._refuse(path, f"{number} is too large")
        if least is not None and number < least:
            return self._refuse(path, f"must be {least:g} or more, and is {number}")
        return number

    def _float(self, node: ScalarNode, path: str, least: float | None, most: float | None) -> float | UnsetType:
        number = node.value
        if number is None:
            del self.known[path]  # as if the key were not there
            return UNSET
        if isinstance(number, bool | str) or not math.isfinite(number):
            advice = "; drop the quotes" if node.quoted and type(typed(node.text)) in (int, float) else ""
            return self._refuse(path, f"must be a number, and is {_described(node)}{advice}")
        if (least is not None and number < least) or (most is not None and number > most):
            return self._refuse(path, f"must be between {least:g} and {most:g}, and is {node.text}")
        return float(number)

    def _union(self, kinds: tuple[mi.Type, ...], node: ScalarNode, path: str) -> object | UnsetType:
        """Text or number or switch as YAML sees it; where the union has no place for that, its text."""
        if node.value is None:
            if any(isinstance(kind, mi.NoneType) for kind in kinds):
                return None
            return self._refuse(path, "must have a value, and is null")
        for kind, cls in ((mi.BoolType, bool), (mi.IntType, int), (mi.FloatType, float)):
            if type(node.value) is cls and any(isinstance(each, kind) for each in kinds):
                return _within_json(node.value)
        return node.text

    def _must_be_json(self, node: Node, path: str) -> None:
        match node:
            case ScalarNode(value=float() as number) if not math.isfinite(number):
                self.report.error(path, f"{node.text} is not a JSON value and cannot be sent; write a number or null")
            case ScalarNode():
                pass
            case SequenceNode():
                for n, item in enumerate(node.items):
                    self._must_be_json(item, f"{path}[{n}]")
            case MappingNode():
                for entry in node.entries:
                    self._must_be_json(entry.value, _join(path, entry.key.text))

    def _unknown(self, info: mi.StructType, key: ScalarNode, path: str, pattern: str) -> None:
        here = _join(path, key.text)
        self.known.setdefault(here, key.at)
        self.ignored.add(here)
        self.report.warn(here, f"unknown key, ignored; {advice(key.text, info, pattern, self._config_type)}")

    def _refuse(self, path: str, message: str) -> UnsetType:
        self.report.error(path, message)
        return UNSET


def _within_json(value: str | int | float | bool | None) -> str | int | float | bool | None:
    """Integers that no JSON reader holds become floats, as in the reference."""
    if isinstance(value, int) and not -INT64 <= value < UINT64:
        return float(value) if abs(value) < 1 << 1023 else math.inf
    return value


def _named(kind: mi.Type) -> str:
    match kind:
        case mi.IntType():
            return "a whole number"
        case mi.BoolType():
            return "true or false"
        case mi.LiteralType(values=values):
            return _one_of([str(value) for value in values])
        case mi.UnionType():
            return "a single value"
        case _:
            return "text"


def _described(node: Node) -> str:
    match node:
        case SequenceNode():
            return "a list"
        case MappingNode():
            return "a mapping"
        case ScalarNode(value=None):
            return "null"
        case ScalarNode(value=str()):
            line = " ".join(node.text.split())
            # never a part of it: that could be a part of a secret, which nobody would find in the message
            return f"the text '{line}'" if len(line) <= _LONG else f"a text of {len(line)} characters"
        case ScalarNode():
            return node.text if len(node.text) <= _LONG else "a number"


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def has_key(info: mi.StructType, key: str) -> bool:
    """True if the type has a key of this name, or had one that is still understood."""
    return {key, OLD_NAMES.get(key, key)} & {field.encode_name for field in info.fields} != set()


def meant_key(key: str, info: mi.StructType) -> str | None:
    """Return the key of the type that looks like this one."""
    return near(key, (field.encode_name for field in info.fields))


def advice(key: str, info: mi.StructType, pattern: str, config_type: type[Config]) -> str:
    """Return advice about a key that ``info``, the type at ``pattern``, does not have.

    The same key but for its spelling comes first, then the same key elsewhere, then one that looks like it.
    """
    meant = meant_key(key, info)
    if meant is None or fold(meant) != fold(key):
        here = _join(pattern, key).split(".")
        homes = [home.split(".") for home in _homes(config_type).get(fold(key), ())]
        if homes:
            return f"its place is {'.'.join(max(homes, key=lambda home: (_shared(home, here), -len(home))))}"
    return f"did you mean '{meant}'?" if meant else "'llama-appliance config schema' lists the keys there are"


def bare_type(kind: mi.Type) -> mi.Type:
    """A type without its description, and without the None of a key that may be absent."""
    if isinstance(kind, mi.Metadata):
        return bare_type(kind.type)
    if isinstance(kind, mi.UnionType):
        rest = [each for each in kind.types if not isinstance(each, mi.NoneType)]
        if len(rest) == 1 and not isinstance(bare_type(rest[0]), mi.StrType):
            return bare_type(rest[0])
    return kind


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


@cache
def _homes(config_type: type[Config]) -> dict[str, list[str]]:
    """Every key of the schema, folded, to the patterns of the places where it means something."""
    homes: dict[str, list[str]] = {}

    def visit(kind: mi.Type, pattern: str) -> None:
        match bare_type(kind):
            case mi.StructType(fields=fields):
                for field in fields:
                    here = _join(pattern, field.encode_name)
                    homes.setdefault(fold(field.encode_name), []).append(here)
                    visit(field.type, here)
            case mi.DictType(value_type=item):
                visit(item, _join(pattern, ANY))
            case _:
                pass

    visit(schema_root(config_type), "")
    return homes


def _shared(home: list[str], here: list[str]) -> int:
    """How many steps two ways have in common."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(home, here, strict=False))))
