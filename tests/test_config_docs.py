"""docs/llama-swap.md has every key of the configuration with its default, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import msgspec.inspect as mi

from appliance.core.config.types import Config

PAGE = (Path(__file__).parents[1] / "docs" / "llama-swap.md").read_text("utf-8")
KEYS = PAGE[PAGE.index("\n## Keys\n") : PAGE.index("\n## Macros and environment\n")]
ABSENT = "absent"


def bare(kind: mi.Type) -> mi.Type:
    if isinstance(kind, mi.Metadata):
        return bare(kind.type)
    if isinstance(kind, mi.UnionType):
        rest = [each for each in kind.types if not isinstance(each, mi.NoneType)]
        return bare(rest[0]) if len(rest) == 1 else kind
    return kind


def leaves(info: mi.StructType, path: str) -> dict[str, object]:
    """Dotted path to default of everything below a struct that is not a struct itself."""
    found: dict[str, object] = {}
    for field in info.fields:
        here = f"{path}.{field.encode_name}" if path else field.encode_name
        kind = bare(field.type)
        if isinstance(kind, mi.DictType) and isinstance(item := bare(kind.value_type), mi.StructType):
            found |= leaves(item, f"{here}.<id>")
        elif isinstance(kind, mi.StructType):
            found |= leaves(kind, here)
        elif field.default_factory is not msgspec.NODEFAULT:
            found[here] = msgspec.to_builtins(field.default_factory())
        else:
            found[here] = ABSENT if field.default is msgspec.NODEFAULT else field.default
    return found


def documented() -> dict[str, str]:
    """Dotted path to the text of its default, of every row of every table; a table is headed by where its keys are."""
    found: dict[str, str] = {}
    for section in KEYS.split("\n### ")[1:]:
        heading = section.splitlines()[0]
        places = re.findall(r"`([^`]+)`", heading) or [""]
        for key, default in re.findall(r"^\| `([\w.]+)` \| `(.+?)` \|", section, re.MULTILINE):
            for place in places:
                path = f"{place}.{key}" if place else key
                assert path not in found, f"{path} is documented twice"
                found[path] = default.replace("\\|", "|")
    return found


def test_every_key_is_on_the_page_and_every_key_of_the_page_exists() -> None:
    info = mi.type_info(Config)
    assert isinstance(info, mi.StructType)
    known, told = leaves(info, ""), documented()
    assert sorted(known.keys() - told.keys()) == []
    assert sorted(told.keys() - known.keys()) == []
    wrong = {path: told[path] for path, default in known.items() if told[path] != _written(default)}
    assert wrong == {}


def _written(default: object) -> str:
    return ABSENT if default == ABSENT else json.dumps(default)


def test_every_addition_is_called_one() -> None:
    info = mi.type_info(Config)
    assert isinstance(info, mi.StructType)
    model = bare(next(field for field in info.fields if field.encode_name == "models").type)
    assert isinstance(model, mi.DictType)
    one = bare(model.value_type)
    assert isinstance(one, mi.StructType)
    for path, fields in (("", info.fields), ("models.<id>", one.fields)):
        section = KEYS.split("\n### Top level\n" if not path else f"\n### `{path}`\n")[1].split("\n### ")[0]
        for field in fields:
            assert isinstance(field.type, mi.Metadata)
            if str((field.type.extra_json_schema or {}).get("description")).startswith("Addition:"):
                own = KEYS.partition(f"\n### `{field.encode_name}.<id>`\n")[2].split("\n### ")[0].splitlines()
                rows = [line for line in own if line.startswith("| `")] or [
                    next(line for line in section.splitlines() if re.match(rf"\| `{field.encode_name}\b", line))
                ]
                assert [row for row in rows if "| added" not in row] == []


def test_the_verbs_and_files_of_the_page_exist() -> None:
    from appliance.cli.config import config
    from appliance.cli.serve import serve

    for verb in re.findall(r"`config ([a-z]+)", PAGE):
        assert verb in config.commands
    root = Path(__file__).parents[1]
    for name in re.findall(r"`(tests/[\w./-]+)`", PAGE):
        assert (root / name).exists(), name
    commands = [*config.commands.values(), serve]
    flags = {flag for command in commands for option in command.params for flag in option.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= flags
