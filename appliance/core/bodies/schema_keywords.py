"""The typed part of the package `jsonschema` in use, and the keywords that are bounded or left out here.

Not checked: regular expressions (``pattern``, ``patternProperties`` and what depends on it). A schema may come from
anyone and the text from a model, and one bad pattern would hold up the whole program. Everything else is counted: a
check takes no longer than `MAX_STEPS` allows, also where a schema is checked for being one.

Two other ways were looked at. Limits on the sizes of schema and value do not bound the work: a schema of 41 short
definitions, each with two references to the next, means 2 ** 40 checks of one number. A process that can be killed
bounds it, but takes 180 ms to import the package and check one call (measured; 0.025 ms here), and `Judge` and the
plugins' `mistakes`, which are plain functions, would have to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Protocol, cast

import jsonschema
import msgspec
from jsonschema import validators
from jsonschema.exceptions import best_match  # pyright: ignore[reportUnknownVariableType]
from jsonschema_specifications import REGISTRY as SPECIFICATIONS
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from appliance.core.bodies.json_text import JSON, JsonObject

MAX_REFERENCES = 10_000
"""References followed for one value. A schema may refer to itself without end."""
MAX_STEPS = 400_000
"""Keywords examined for one value, each counted with the items that it goes through: about half a second."""
MAX_MISTAKES = 10
"""Largest number of mistakes to look for in one value."""


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_LEFT_OUT = ("pattern", "patternProperties", "unevaluatedProperties")
_LATEST = validators.Draft202012Validator


class Mistake(Protocol):
    """A ValidationError."""

    @property
    def message(self) -> str: ...

    @property
    def json_path(self) -> str: ...


class _Checking(Protocol):
    def iter_errors(self, instance: JSON) -> Iterator[Mistake]: ...


class _SchemaDialect(Protocol):
    VALIDATORS: Mapping[str, Keyword]
    META_SCHEMA: JsonObject

    def __call__(self, schema: JsonObject, *, registry: object) -> _Checking: ...


Keyword = Callable[[_Checking, JSON, JSON, JsonObject], Iterable[object] | None]
"""A check of one keyword: the validator, the keyword's value, the instance, and the schema that it is in."""

# the package has no types for these
_extend = cast("Callable[[_SchemaDialect, Mapping[str, Keyword]], _SchemaDialect]", validators.extend)  # pyright: ignore[reportUnknownMemberType]
_best = cast("Callable[[Iterable[Mistake]], Mistake | None]", best_match)


@cache
def _dialects() -> object:
    """The dialects' own schemas, the only ones outside of a schema that references may lead to.

    They lack ``$schema``: a reference to one would otherwise be checked by keywords that nobody counts.
    """
    found: Registry[JSON] = Registry()
    for uri in SPECIFICATIONS:
        contents = cast("JsonObject", SPECIFICATIONS.contents(uri))
        named = specification_with(str(contents["$schema"]))
        found = found.with_resource(uri, Resource(contents=_of_one_dialect(contents), specification=named))
    return found.crawl()


class SchemaUnusable(Exception):
    """A schema cannot be used to check a value; the message says why."""


def mistake_of_schema(schema: JsonObject) -> Mistake | None:
    """Return the first mistake in a schema of its dialect. Raises SchemaUnusable if that takes too long."""
    meta = _dialect(schema).META_SCHEMA
    dialect, work = _dialect(meta), _Work()
    changed = {name: work.counted(keyword) for name, keyword in dialect.VALIDATORS.items()}
    changed["uniqueItems"] = work.counted(_unique_items)
    return next(_extend(dialect, changed)(_of_one_dialect(meta), registry=_dialects()).iter_errors(schema), None)


class Bounded:
    """Checks values against one schema. References lead into the schema itself or to the dialects, nowhere else."""

    def __init__(self, schema: JsonObject) -> None:
        dialect = _dialect(schema)
        known = dict(dialect.VALIDATORS) | {name: _unchecked for name in _LEFT_OUT}
        known["additionalProperties"] = _unless_patterns(known["additionalProperties"])
        known["uniqueItems"] = _unique_items
        self._work = _Work()
        changed = {name: self._work.counted(keyword, refers=name in _REFERENCES) for name, keyword in known.items()}
        self._checking = _extend(dialect, changed)(_of_one_dialect(schema), registry=_dialects())

    def mistake(self, value: JSON) -> Mistake | None:
        """Return the most telling mistake. Raises SchemaUnusable."""
        return _best(self.mistakes(value))

    def mistakes(self, value: JSON) -> list[Mistake]:
        """Return the first few mistakes. Raises SchemaUnusable."""
        self._work.begin()
        try:
            return list(islice(self._checking.iter_errors(value), MAX_MISTAKES))
        except Unresolvable as error:
            raise SchemaUnusable(f"refers to something that is not in it: {error.ref}") from None
        except RecursionError:
            raise SchemaUnusable("refers to itself too deeply") from None


class _Work:
    """The budget of one check. It is counted before the work is done, so that no keyword can take for ever."""

    def __init__(self) -> None:
        self._steps = 0
        self._references = 0

    def begin(self) -> None:
        self._steps = self._references = 0

    def counted(self, keyword: Keyword, *, refers: bool = False) -> Keyword:
        """The same keyword. Raises SchemaUnusable when it is used once too often."""

        def check(checking: _Checking, value: JSON, instance: JSON, schema: JsonObject) -> Iterable[object] | None:
            self._references += refers
            if self._references > MAX_REFERENCES:
                raise SchemaUnusable(f"refers to itself more than {MAX_REFERENCES} times")
            self._steps += 1 + _items_of(value) + _items_of(instance)
            if self._steps > MAX_STEPS:
                raise SchemaUnusable(f"takes more than {MAX_STEPS} steps to be checked; make it, or the value, smaller")
            return keyword(checking, value, instance, schema)

        return check


def _items_of(value: JSON) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _dialect(schema: JsonObject) -> _SchemaDialect:
    """Return the dialect that ``$schema`` names; 2020-12 if it names none, or an unknown one."""
    named = schema.get("$schema")
    found = validators.validator_for({"$schema": named} if isinstance(named, str) else {}, default=_LATEST)
    return cast("_SchemaDialect", found)  # its own protocol leaves VALIDATORS out


def _of_one_dialect(schema: JsonObject) -> JsonObject:
    """Return the schema without ``$schema``: a part in another dialect would be checked by all keywords of that one."""
    return {name: _in_parts(value) for name, value in schema.items() if name != "$schema" or not isinstance(value, str)}


def _in_parts(value: JSON) -> JSON:
    if isinstance(value, dict):
        return _of_one_dialect(value)
    return [_in_parts(item) for item in value] if isinstance(value, list) else value


def _unchecked(checking: _Checking, value: JSON, instance: JSON, schema: JsonObject) -> None:
    return None


def _unless_patterns(keyword: Keyword) -> Keyword:
    def check(checking: _Checking, value: JSON, instance: JSON, schema: JsonObject) -> Iterable[object] | None:
        return None if "patternProperties" in schema else keyword(checking, value, instance, schema)

    return check


def _unique_items(checking: _Checking, value: JSON, instance: JSON, schema: JsonObject) -> Iterable[object]:
    """Check in linear time; the package compares each with each if items are objects."""
    if value is True and isinstance(instance, list):
        different = {msgspec.json.encode(item, order="deterministic") for item in instance}
        if len(different) < len(instance):
            yield jsonschema.ValidationError("its items are not unique")
