"""The part of a configuration that may be edited over HTTP, and the fields of a form for it.

Such an edit changes how models are used, and never what runs on the machine: every key that may change is in
`CHANGEABLE`, or in ``over_http`` of a feature's keys, and a difference anywhere else is refused. Both texts are
compared as YAML reads them, aliases written out, before macros: a macro cannot be changed, and a changed value cannot
use one, nor the environment, nor a secret's mark. So everything that a command, a path or a key is made of stays as it
was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, cast

import msgspec.inspect as mi
from msgspec import Struct

from appliance.core.config.decode import ANY, advice, bare_type, has_key, meant_key, plain, schema_root
from appliance.core.config.nodes import MappingNode, Node, Problem, ScalarNode, SequenceNode, is_null
from appliance.core.config.secret_places import scalars
from appliance.core.config.types import Config
from appliance.core.config.yaml import AS_WRITTEN, parse
from appliance.errors import InvalidConfig
from appliance.features.config_editing.core.masks import MARK

FormKind = Literal["text", "number", "switch", "list", "choice"]
FormGroup = Literal["listing", "loading", "requests", "records"]
FORMS_OF_MODEL: dict[FormGroup, tuple[str, ...]] = {
    "listing": ("name", "description", "aliases", "unlisted", "useModelName", "capabilities", "metadata"),
    "loading": (
        "ttl", "pinned", "disabled", "minLoadedTime", "healthCheckTimeout", "unloadTimeout", "memory",
    ),
    "requests": ("concurrencyLimit", "patience", "sendLoadingState", "repairMessages", "filters", "timeouts"),
}  # fmt: skip
FORMS_OF_PROGRAM: dict[FormGroup, tuple[str, ...]] = {
    "loading": (
        "globalTTL", "modelsMax", "minLoadedTime", "healthCheckTimeout", "unloadTimeout", "vramPolicy", "groups",
        "hangs", "matrix", "memory", "profiles", "routing", "selectors", "server_pool",
    ),
    "requests": (
        "queueLimit", "queueTimeout", "patience", "sendLoadingState", "repairMessages", "loadingJokes",
        "includeAliasesInList", "runs",
    ),
    "records": (
        "logLevel", "logTimeFormat", "logToStdout", "logRequests", "captureBuffer", "metricsMaxInMemory",
        "performance", "ui",
    ),
}  # fmt: skip
"""The groups of a form, in its order, with every key that may change; those with a simple value are its fields."""
CHANGEABLE = frozenset(
    [
        *((name,) for names in FORMS_OF_PROGRAM.values() for name in names),
        *(("models", ANY, name) for names in FORMS_OF_MODEL.values() for name in names),
        *(("peers", ANY, name) for name in ("filters", "timeouts")),
    ]
)
"""The kernel's keys that may change, with everything in them; ``<id>`` is a key that the user chooses."""
_FIX = "edit the file on the machine, as with 'llama-appliance config edit'"
_NOT_HERE = f"cannot be changed over HTTP; {_FIX}"
_MACRO = f"cannot get a macro or a secret over HTTP; {_FIX}"
_Path = tuple[str, ...]


class FormField(Struct, frozen=True, kw_only=True):
    """One key that a form offers. ``choices`` are the words that it takes."""

    name: str
    group: FormGroup
    kind: FormKind
    about: str
    default: str | int | bool | None = None
    choices: tuple[str, ...] = ()


class FormValues(Struct, frozen=True, kw_only=True):
    """The values that a text gives to the fields of the program, and to those of each model by its id."""

    program: dict[str, Any]
    models: dict[str, dict[str, Any]]


def changeable(config_type: type[Config]) -> frozenset[_Path]:
    """Return the keys that may change, those of features too."""
    return CHANGEABLE.union(*(keys.over_http for keys in config_type.feature_keys))


def refusals(old: str, new: str, file: str, config_type: type[Config] = Config) -> list[Problem]:
    """Every difference between two masked texts that is not for HTTP. Raises InvalidConfig for one that is not YAML."""
    before, _ = parse(old, file, AS_WRITTEN)
    after, problems = parse(new, file, AS_WRITTEN)
    if mistakes := [problem for problem in problems if problem.level == "error"]:
        raise InvalidConfig(mistakes)
    return list(_Comparison(config_type).differences(before, after, (), (), schema_root(config_type)))


def form_values(text: str) -> FormValues:
    """The values that the text gives to the fields of both forms. A text with mistakes may give fewer."""
    root, of_model = parse(text, "", AS_WRITTEN)[0], model_fields()
    tree = _section(plain(root) if root is not None else None)
    models = {model: _values(told, of_model) for model, told in _section(tree.get("models")).items()}
    return FormValues(program=_values(tree, program_fields()), models=models)


def program_fields() -> list[FormField]:
    """The form of the whole configuration: every key of `FORMS_OF_PROGRAM` with a simple value."""
    return _form_fields(FORMS_OF_PROGRAM, schema_root(Config))


def model_fields() -> list[FormField]:
    """The same of one model."""
    return _form_fields(FORMS_OF_MODEL, _within(_within(schema_root(Config), "models"), ANY))


def _section(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _values(section: object, fields: Iterable[FormField]) -> dict[str, Any]:
    given = _section(section)
    return {field.name: given[field.name] for field in fields if field.name in given}


def _form_fields(groups: Mapping[FormGroup, tuple[str, ...]], section: mi.Type | None) -> list[FormField]:
    assert isinstance(section, mi.StructType)
    fields = {field.encode_name: field for field in section.fields}
    made = (_form_field(fields[name], group) for group, names in groups.items() for name in names)
    return [field for field in made if field is not None]


def _form_field(field: mi.Field, group: FormGroup) -> FormField | None:
    assert isinstance(field.type, mi.Metadata)
    about = cast("dict[str, str]", field.type.extra_json_schema)["description"]  # pyright: ignore[reportUnknownMemberType]
    about = about.removeprefix("Addition: ")  # that the reference has no such key helps nobody who fills in a form
    default = field.default if isinstance(field.default, str | int | bool) else None
    made = partial(FormField, name=field.encode_name, group=group, about=about, default=default)
    match bare_type(field.type):
        case mi.StrType():
            return made(kind="text")
        case mi.IntType():
            return made(kind="number")
        case mi.BoolType():
            return made(kind="switch")
        case mi.LiteralType(values=words):
            return made(kind="choice", choices=tuple(map(str, words)))
        case mi.ListType(item_type=mi.StrType()):
            return made(kind="list")
        case _:
            return None


def _within(kind: mi.Type | None, key: str) -> mi.Type | None:
    """The type of the value of a key; None where the schema says nothing of it."""
    match kind:
        case mi.StructType(fields=fields):
            return next((bare_type(field.type) for field in fields if field.encode_name == key), None)
        case mi.DictType(value_type=item):
            return bare_type(item)
        case _:
            return None


class _Comparison:
    """Finds what is different and not for HTTP, by the keys of one type of configuration."""

    def __init__(self, config_type: type[Config]) -> None:
        self._config_type = config_type
        self._changeable = changeable(config_type)
        self._around = {path[:length] for path in self._changeable for length in range(len(path))}

    def differences(
        self, old: Node | None, new: Node | None, path: _Path, pattern: _Path, kind: mi.Type | None
    ) -> Iterator[Problem]:
        if pattern in self._changeable:
            if any("${" in text or MARK in text for text in _texts(new) - _texts(old)):
                yield _problem(path, _MACRO, new)
            return
        before, after = _entries(old), _entries(new)
        if pattern not in self._around or before is None or after is None:
            if not _is_same(old, new):
                yield _problem(path, _NOT_HERE, new)
            return
        unknown: dict[str, str] = {}
        meant: set[str | None] = set()
        if isinstance(kind, mi.StructType):
            for key, value in after.items():
                if not has_key(kind, key) and not _is_same(before.get(key), value):
                    unknown[key] = advice(key, kind, ".".join(pattern), self._config_type)
                    meant.add(meant_key(key, kind))
        for key in {**before, **after}:
            is_free = (*pattern, ANY) in self._around
            inner = (*pattern, ANY if is_free else key)
            was, is_now = before.get(key), after.get(key)
            if key in unknown:
                yield _problem((*path, key), f"unknown key; {unknown[key]}", is_now)
            elif is_now is None and key in meant:
                pass  # it is there under a wrong name, which was said
            elif is_free and (key in before) != (key in after):
                yield _problem((*path, key), _NOT_HERE, is_now)
            else:
                yield from self.differences(was, is_now, (*path, key), inner, _within(kind, key))


def _entries(node: Node | None) -> dict[str, Node] | None:
    """The keys of a mapping; of nothing, none."""
    if is_null(node):
        return {}
    return {entry.key.text: entry.value for entry in node.entries} if isinstance(node, MappingNode) else None


def _problem(path: _Path, message: str, node: Node | None) -> Problem:
    return Problem(message=message, path=".".join(path), at=node.at if node is not None else None)


def _is_same(old: Node | None, new: Node | None) -> bool:
    """The order of keys counts, because macros use those before them; a key without a value is not a missing one."""
    match old, new:
        case ScalarNode(), ScalarNode():
            return (type(old.value), old.text, old.quoted) == (type(new.value), new.text, new.quoted)
        case SequenceNode(), SequenceNode():
            return len(old.items) == len(new.items) and all(map(_is_same, old.items, new.items))
        case MappingNode(), MappingNode():
            keys, others = ([entry.key.text for entry in one.entries] for one in (old, new))
            return keys == others and all(
                _is_same(one.value, other.value) for one, other in zip(old.entries, new.entries, strict=True)
            )
        case _:
            return old is None and new is None


def _texts(node: Node | None) -> set[str]:
    """Every text in a value, keys included."""
    return {one.text for one in scalars(node, keys=True)} if node is not None else set()
