"""A configuration as the user would write it, plain values as YAML that reads back the same, and its JSON schema.

The schema is for editors; it is made from the types, so it cannot say anything else.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import yaml
from msgspec import structs

from appliance.core.config.decode import OLD_NAMES, schema_root
from appliance.core.config.types import Config

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MACRO = r"\$\{[a-zA-Z0-9_.-]+\}"
"""A number or a switch may be written as a macro."""
ABSORBED = ("groups", "matrix", "macros", "server_pool")
"""Keys that a normalised configuration has under other names, or has used up."""
_BARE = re.compile(r"[A-Za-z/][\w./-]*( [\w./-]+)*", re.ASCII)
"""Text that needs no quotes in any dialect of YAML, but for the words below."""
_WORDS = frozenset(["y", "yes", "n", "no", "true", "false", "on", "off", "null", "inf", "nan"])

Schema = dict[str, Any]


def schema(config_type: type[Config] = Config) -> Schema:
    """JSON schema (draft 2020-12): key names, types, bounds, allowed words, defaults and descriptions.

    It takes what the decoder takes beside the exact type: macros, any single value for text, no value for the default.
    """
    types = {each.encode_name: each.type for each in structs.fields(config_type)}
    keys = _keys(config_type)
    _, parts = msgspec.json.schema_components(
        [*(types[key] for key in keys), config_type],
        schema_hook=lambda _: {"$comment": "any value"},
        ref_template="#/$defs/{name}",
    )
    for part in parts.values():
        properties = {name: _or_null(rule) for name, rule in part["properties"].items()}
        for old, new in OLD_NAMES.items():
            if new in properties:
                properties[old] = {**properties[new], "deprecated": True, "description": f"Old name of {new}"}
        part["properties"] = properties
    whole = parts.pop(Config.__name__)
    return {
        **whole,
        "properties": {key: whole["properties"][key] for key in keys},
        "$schema": DIALECT,
        "title": "Configuration of llama-appliance",
        "$defs": parts,
    }


def _keys(config_type: type[Config]) -> list[str]:
    """Return the keys in the order in which they are shown."""
    return [field.encode_name for field in schema_root(config_type).fields]


def _or_null(rule: Schema) -> Schema:
    """A key without a value has its default."""
    notes = {word: rule.pop(word) for word in ("description", "default") if word in rule}
    return {**notes, "anyOf": [_as_read(rule), {"type": "null"}]}


def _as_read(rule: Schema) -> Schema:
    match rule:
        case {"type": "integer" | "boolean" | "number"}:
            return {"anyOf": [rule, {"type": "string", "pattern": MACRO}]}
        case {"type": "string"}:
            return {"type": ["string", "number", "boolean"]}
        case {"type": "array", "items": item}:
            return {**rule, "items": _as_read(item)}
        case {"type": "object", "additionalProperties": item}:
            return {**rule, "additionalProperties": _or_null(item)}
        case {"anyOf": kinds}:
            return {"anyOf": [_as_read(kind) for kind in kinds]}
        case _:
            return rule


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
    return {key: tree[key] for key in _keys(type(config)) if key in tree}
