"""A configuration as the user would write it, plain values as YAML that reads back the same, and its JSON schema.

The schema is for editors; it is made from the types, so it cannot say anything else.
"""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec
import msgspec.inspect as mi
import yaml

from appliance.core.config.decode import OLD_NAMES
from appliance.core.config.types import Config

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MACRO = r"\$\{[a-zA-Z0-9_.-]+\}"
"""A number or a switch may be written as a macro."""
ABSORBED = ("groups", "matrix", "macros", "server_pool")
"""Keys that a normalised configuration has under other names, or has used up."""
_BARE = re.compile(r"[A-Za-z/][\w./-]*( [\w./-]+)*", re.ASCII)
"""Text that needs no quotes in any dialect of YAML, but for the words below."""
_WORDS = frozenset(["y", "yes", "n", "no", "true", "false", "on", "off", "null", "inf", "nan"])

Schema = dict[str, object]


def schema() -> Schema:
    """JSON schema (draft 2020-12): key names, types, bounds, allowed words, defaults and descriptions.

    It takes what the decoder takes beside the exact type: macros, any single value for text, no value for the default.
    """
    parts: dict[str, Schema] = {}
    _of(mi.type_info(Config), parts)
    root = parts.pop(Config.__name__)
    return {"$schema": DIALECT, "title": "Configuration of llama-appliance", **root, "$defs": parts}


def _of(kind: mi.Type, parts: dict[str, Schema]) -> Schema:
    """The schema of one type; structs go to ``parts`` and are referred to."""
    match kind:
        case mi.Metadata(type=inner):
            notes = cast("Schema | None", kind.extra_json_schema)  # pyright: ignore[reportUnknownMemberType]  a bare dict
            return {**_of(inner, parts), **(notes or {})}
        case mi.StructType(cls=cls):
            if cls.__name__ not in parts:
                parts[cls.__name__] = {}  # taken, so that a type within itself would end here
                parts[cls.__name__] = _object(kind, parts)
            return {"$ref": f"#/$defs/{cls.__name__}"}
        case mi.DictType(value_type=item):
            return {"type": "object", "additionalProperties": _or_null(_of(item, parts))}
        case mi.ListType(item_type=item):
            return {"type": "array", "items": _of(item, parts)}
        case mi.UnionType(types=kinds):
            return {"anyOf": [_of(each, parts) for each in kinds]}
        case mi.LiteralType(values=values):
            return {"enum": list(values)}
        case mi.IntType(ge=least):
            number: Schema = {"type": "integer"} if least is None else {"type": "integer", "minimum": least}
            return {"anyOf": [number, {"type": "string", "pattern": MACRO}]}
        case mi.BoolType():
            return {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": MACRO}]}
        case mi.StrType():
            return {"type": ["string", "number", "boolean"]}
        case mi.FloatType():
            return {"type": "number"}
        case mi.NoneType():
            return {"type": "null"}
        case mi.CustomType():
            return {}
        case _:
            raise TypeError(f"the schema has a type that JSON schema has no words for: {kind}")


def _object(info: mi.StructType, parts: dict[str, Schema]) -> Schema:
    properties: dict[str, Schema] = {}
    for field in info.fields:
        properties[field.encode_name] = {**_or_null(_of(field.type, parts)), **_default(field)}
    for old, new in OLD_NAMES.items():
        if new in properties:
            properties[old] = {**properties[new], "deprecated": True, "description": f"Old name of {new}"}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _or_null(of_value: Schema) -> Schema:
    """A key without a value has its default."""
    rule = {word: value for word, value in of_value.items() if word != "description"}
    if not rule:
        return of_value
    notes = {word: value for word, value in of_value.items() if word == "description"}
    return {**notes, "anyOf": [rule, {"type": "null"}]}


def _default(field: mi.Field) -> Schema:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return {} if value is msgspec.NODEFAULT else {"default": msgspec.to_builtins(value)}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True

    def text(self, value: str) -> yaml.ScalarNode:
        style = None if _BARE.fullmatch(value) and value.lower() not in _WORDS else '"'
        if "\n" in value and value[0] not in "\n\t ":
            style = "|"
        return self.represent_scalar("tag:yaml.org,2002:str", value, style)  # pyright: ignore[reportUnknownMemberType]


_Dumper.add_representer(str, _Dumper.text)


def yaml_text(tree: object) -> str:
    """One YAML document. Commands of several lines stay blocks; text that looks like a number is quoted."""
    # Lines are not folded: a command is read more easily as it was written.
    return yaml.dump(tree, Dumper=_Dumper, width=1 << 20, allow_unicode=True, sort_keys=False)


def shown(config: Config) -> dict[str, object]:
    """A normalised configuration under llama-swap's key names, with all values; reading it again gives the same one.

    Every key is there, but for those that have no value and those that `normalise` moved elsewhere.
    """
    tree: dict[str, Any] = msgspec.to_builtins(config)
    for key in ABSORBED:
        del tree[key]
    for key in ("store", "modelsMax", "plugins"):
        if tree[key] is None:
            del tree[key]
    for model in tree["models"].values():
        del model["macros"]
    settings = tree["routing"]["router"]["settings"]
    if settings["matrix"] is None:
        del settings["matrix"]
    return tree
