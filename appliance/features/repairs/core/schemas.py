"""JSON schemas as engines can hold answers to them: without the parts that make no grammar, or as a grammar of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.core.config.scalars import BadRegex, check_pattern

LARGEST = 2000
"""The largest repetition that a grammar of llama.cpp takes."""
_BOUNDS = ("minItems", "maxItems", "minLength", "maxLength")
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_BELOW = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions", "patternProperties")
_LOOKS = re.compile(r"\(\?[=!<]|\\[1-9bB]")
"""Parts of a pattern that no grammar can express."""

RULES = {
    "value": "object | array | string | number | boolean | null",
    "object": '"{" space (member ("," space member)*)? "}" space',
    "member": 'string ":" space value',
    "array": '"[" space (value ("," space value)*)? "]" space',
    "string": r'"\"" char* "\"" space',
    "char": r'[^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt/] | "u" [0-9a-fA-F]{4})',
    "number": r'"-"? ([0-9] | [1-9] [0-9]{1,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})? space',
    "integer": '"-"? ([0-9] | [1-9] [0-9]{1,15}) space',
    "boolean": '("true" | "false") space',
    "null": '"null" space',
    "space": r'| " " | "\n"{1,2} [ \t]{0,20}',
}
"""Any JSON, as GBNF."""


class NoGrammar(Exception):
    """A schema asks for something that no grammar here can hold an answer to."""


# ---- weaker schemas --------------------------------------------------------------------------------------------------


def weakened(schema: JSON) -> tuple[JSON, list[str]]:
    """Return the schema of a tool's parameters without what no grammar can hold, and which places those were."""
    if not isinstance(schema, dict):
        return {"type": "object"}, ["parameters: a schema is an object"]
    found: list[str] = []
    weaker = _weaker(schema, schema, "parameters", found)
    return weaker, found


def _weaker(schema: JSON, root: JsonObject, place: str, found: list[str]) -> JSON:
    if not isinstance(schema, dict):
        if isinstance(schema, bool):
            return schema
        found.append(f"{place}: a schema is an object")
        return {}
    left = dict(schema)
    for name, why in list(_unheld(schema, root)):
        found.append(f"{place}.{name}: {why}")
        del left[name]
    for name in _BELOW:
        if isinstance(inner := left.get(name), dict):
            left[name] = _weaker(inner, root, f"{place}.{name}", found)
    for name in _LISTS:
        if isinstance(inner := left.get(name), list):
            left[name] = [_weaker(one, root, f"{place}.{name}.{at}", found) for at, one in enumerate(inner)]
    for name in _NAMED:
        if isinstance(inner := left.get(name), dict):
            left[name] = {key: _weaker(one, root, f"{place}.{key}", found) for key, one in inner.items()}
    return left


def _unheld(schema: JsonObject, root: JsonObject) -> Iterator[tuple[str, str]]:
    if "type" in schema and not _is_type(kind := schema["type"]):
        yield "type", f"{kind!r} is not a type"
    if isinstance(ref := schema.get("$ref"), str) and at(root, ref) is None:
        yield "$ref", f"nothing is at {ref[:100]!r}"
    if isinstance(pattern := schema.get("pattern"), str):
        try:
            check_pattern(pattern)
            if _LOOKS.search(pattern):
                yield "pattern", "it looks around"
        except BadRegex as bad:
            yield "pattern", str(bad)
    for name in _BOUNDS:
        bound = schema.get(name)
        if bound is not None and not (isinstance(bound, int) and 0 <= bound <= LARGEST):
            yield name, f"it is not from 0 to {LARGEST}"
    for name in ("properties", "$defs", "definitions", "patternProperties"):
        if name in schema and not isinstance(schema[name], dict):
            yield name, "it is not an object"
    if "required" in schema and not isinstance(schema["required"], list):
        yield "required", "it is not a list"
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        yield "enum", "it is not a list of values"


def _is_type(kind: JSON) -> bool:
    kinds = kind if isinstance(kind, list) else [kind]
    return bool(kinds) and all(one in _TYPES for one in kinds)


def at(root: JSON, ref: str) -> JSON:
    """Return the place that a reference within a schema names, or None."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    place = root
    for part in ref[2:].split("/") if ref != "#" else ():
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict):
            place = place.get(name)
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return None
    return place


# ---- a grammar -------------------------------------------------------------------------------------------------------


def any_object() -> str:
    """A grammar for any JSON object."""
    return _written({**RULES, "root": "object"})


def grammar_of(schema: JSON) -> str:
    """A grammar for the answers that a schema permits. Raises NoGrammar for what this file cannot express."""
    maker = _Maker(schema)
    root = maker.rule(schema, "root")
    return _written({**RULES, **maker.rules, "root": root})


def _written(rules: dict[str, str]) -> str:
    return "".join(f"{name} ::= {rule}\n" for name, rule in rules.items())


class _Maker:
    def __init__(self, root: JSON) -> None:
        self._root = root
        self._refs: dict[str, str] = {}
        self.rules: dict[str, str] = {}

    def rule(self, schema: JSON, name: str) -> str:
        """Return what matches a schema; its parts become rules whose names begin with ``name``."""
        if schema is True or schema == {}:
            return "value"
        if not isinstance(schema, dict):
            raise NoGrammar
        schema = {key: value for key, value in schema.items() if key not in _SAID_ONLY}
        match schema:
            case {"$ref": str(ref), **rest} if not rest.keys() - {"$defs", "definitions"}:
                return self._ref(ref)
            case {"const": value, **rest} if not rest.keys() - {"type"}:
                return f"{_literal(value)} space"
            case {"enum": [*values], **rest} if values and not rest.keys() - {"type"}:
                return f"({' | '.join(map(_literal, values))}) space"
            case {"anyOf": [*choices], **rest} | {"oneOf": [*choices], **rest} if choices and not rest.keys() - _DEFS:
                return self._choice(choices, name)
            case {"type": [*kinds], **rest}:
                return self._choice([{"type": kind, **rest} for kind in kinds], name)
            case {"type": "object", **rest} if not rest.keys() - _OBJECT:
                return self._object(schema, name)
            case {"type": "array", **rest} if not rest.keys() - {"items", "minItems", "maxItems", *_DEFS}:
                return self._array(schema, name)
            case {"type": "string", **rest} if not rest.keys() - {"minLength", "maxLength", *_DEFS}:
                return f'"\\"" char{_times(schema, "Length")} "\\"" space' if rest else "string"
            case {"type": ("number" | "integer" | "boolean" | "null") as kind, **rest} if not rest.keys() - _DEFS:
                return kind
            case _:
                if not schema.keys() - _DEFS:
                    return "value"
                raise NoGrammar

    def _named(self, schema: JSON, name: str) -> str:
        """The name of a rule for a schema."""
        found = self.rule(schema, name)
        if found in RULES or found in self.rules:
            return found
        self.rules[name] = found
        return name

    def _choice(self, choices: list[JSON], name: str) -> str:
        return " | ".join(self._named(one, f"{name}-{at}") for at, one in enumerate(choices))

    def _ref(self, ref: str) -> str:
        if ref not in self._refs:
            if (there := at(self._root, ref)) is None:
                raise NoGrammar
            self._refs[ref] = name = f"ref-{len(self._refs)}"
            self.rules[name] = ""  # it may name itself
            self.rules[name] = self.rule(there, name)
        return self._refs[ref]

    def _object(self, schema: JsonObject, name: str) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        more = schema.get("additionalProperties", not properties)
        if not isinstance(properties, dict) or not isinstance(required, list) or set(required) - properties.keys():
            raise NoGrammar
        if not properties and more is not False:
            inner = self._named(more, f"{name}-more")
            return f'"{{" space (string ":" space {inner} ("," space string ":" space {inner})*)? "}}" space'
        # A member's rule ends in ``m``. One that ends in ``b`` is the members from here on where none is there yet, one
        # that ends in ``r`` the same behind another one, with its comma.
        self.rules[f"{name}-{len(properties)}-b"] = self.rules[f"{name}-{len(properties)}-r"] = '""'
        for number, (key, one) in reversed(list(enumerate(properties.items()))):
            here, after = f"{name}-{number}", f"{name}-{number + 1}"
            self.rules[f"{here}-m"] = f'{_literal(key)} space ":" space {self._named(one, f"{here}-v")}'
            must = key in required
            self.rules[f"{here}-r"] = f'("," space {here}-m){"" if must else "?"} {after}-r'
            self.rules[f"{here}-b"] = f"{here}-m {after}-r{'' if must else f' | {after}-b'}"
        return f'"{{" space {name}-0-b "}}" space'

    def _array(self, schema: JsonObject, name: str) -> str:
        least, most = _bounds(schema, "Items")
        inner = self._named(schema.get("items", True), f"{name}-i")
        if most == 0:
            return '"[" space "]" space'
        again = f'("," space {inner}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        return f'"[" space {inner} {again} "]" space' if least else f'"[" space ({inner} {again})? "]" space'


_SAID_ONLY = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated"})
_DEFS = frozenset({"$defs", "definitions"})
_OBJECT = frozenset({"properties", "required", "additionalProperties", *_DEFS})


def _literal(value: JSON) -> str:
    """Return the text that matches a value as JSON has it."""
    return json.dumps(json.dumps(value, ensure_ascii=False, separators=(",", ":")), ensure_ascii=False)


def _bounds(schema: JsonObject, what: str) -> tuple[int, int | None]:
    least, most = schema.get(f"min{what}", 0), schema.get(f"max{what}")
    if not isinstance(least, int) or not isinstance(most, int | None) or max(least, most or 0) > LARGEST:
        raise NoGrammar
    return least, most


def _times(schema: JsonObject, what: str) -> str:
    least, most = _bounds(schema, what)
    return f"{{{least},{'' if most is None else most}}}"
