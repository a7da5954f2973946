"""Which macros there are at a place of the configuration, and what text becomes there.

The list is ordered: MODEL_ID (inside a model), the global macros, the model's own; one that has the name of a global
one stands in its place. Text is walked once, from the last macro to the first, so a macro can use those before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from appliance.core.config.nodes import Mapping, Node, Position, Problem, Scalar
from appliance.core.config.scalars import text_of
from appliance.core.config.types import Scalars
from appliance.core.near_names import near

MAX_TEXT = 1 << 20
"""Characters of one value with its macros expanded: thirty macros that double each other would make a billion."""
REFERENCE = re.compile(r"\$\{([a-zA-Z0-9_-]+)\}")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_LONGEST_NAME = 63
_RESERVED = ("PID", "PORT", "MODEL_ID")


class TooLong(Exception):
    """A text that outgrows `MAX_TEXT`."""


class Macro(Struct, frozen=True):
    name: str
    value: Scalars

    @property
    def reference(self) -> str:
        return f"${{{self.name}}}"


class Scope(Struct, frozen=True):
    """The macros that hold at one place. ``broken``: declared, but not usable, and already reported."""

    macros: tuple[Macro, ...] = ()
    broken: frozenset[str] = frozenset()

    def of_model(self, model: str, own: Scope) -> Scope:
        """The list inside of a model; ``self`` is the global one."""
        macros = {macro.name: macro for macro in (Macro("MODEL_ID", model), *self.macros, *own.macros)}
        return Scope(tuple(macros.values()), (self.broken - macros.keys()) | own.broken)

    def expanded(self, text: str) -> Scalars:
        """Return the expanded text; a text that is one macro and nothing else takes its type. Raises `TooLong`."""
        for macro in reversed(self.macros):
            reference = macro.reference
            if text == reference:
                if not isinstance(macro.value, str):
                    return macro.value
                text = macro.value
            elif reference in text:
                value = text_of(macro.value)
                if len(text) + text.count(reference) * len(value) > MAX_TEXT:
                    raise TooLong
                text = text.replace(reference, value)
        return text

    def why_left(self, name: str, extra: Sequence[str]) -> str | None:
        """Return why ``${name}`` was not expanded; None if that was reported. ``extra``: names that are also known."""
        if name in self.broken:
            return None
        names = [macro.name for macro in self.macros]
        if name in names:
            users = [f"${{{other.name}}}" for other in self.macros[: names.index(name)] if _mentions(other, name)]
            user = users[-1] if users else "the macro that uses it"
            return f"the macro '{name}' is declared later than {user}; move its declaration before that one"
        if meant := near(name, [*names, *extra]):
            return f"there is no macro '{name}' here; did you mean ${{{meant}}}?"
        hint = f"declare it under macros, or write ${{env.{name}}} if it is an environment variable"
        return f"there is no macro '{name}' here; {hint}"


def declared(node: Node | None, path: str) -> tuple[Scope, list[Problem]]:
    """The macros of a ``macros`` key, in order, with everything that is wrong with them."""
    problems: list[Problem] = []
    if node is None or (isinstance(node, Scalar) and node.value is None):
        return Scope(), problems
    if not isinstance(node, Mapping):
        message = "macros must be a mapping of names to values, as in 'name: value'"
        return Scope(), [Problem(message=message, path=path, at=node.at)]
    macros: list[Macro] = []
    broken: set[str] = set()
    for entry in node.entries:
        name = entry.key.text
        wrong = list(_wrong(name, entry.value))
        problems += [Problem(message=why, path=f"{path}.{name}", at=at or entry.key.at) for why, at in wrong]
        if wrong:
            broken.add(name)
        elif isinstance(entry.value, Scalar) and entry.value.value is not None:
            macros.append(Macro(name, entry.value.value))
    return Scope(tuple(macros), frozenset(broken)), problems


def _wrong(name: str, value: Node) -> Iterable[tuple[str, Position | None]]:
    """Sentences, with the place if it is not the key's."""
    if name in _RESERVED:
        yield f"the macro name {name} is reserved; choose another", None
    elif not _NAME.fullmatch(name):
        yield f"the macro name '{name}' must consist of the letters a to z, digits, _ and -", None
    elif len(name) > _LONGEST_NAME:
        yield f"a macro name can have {_LONGEST_NAME} characters, this one has {len(name)}", None
    if not isinstance(value, Scalar) or value.value is None:
        yield "a macro is text, a number, true or false; for an empty text write ''", value.at
    elif isinstance(value.value, str) and f"${{{name}}}" in value.value:
        yield f"the macro '{name}' uses itself; remove ${{{name}}} from its value", value.at


def _mentions(macro: Macro, name: str) -> bool:
    return isinstance(macro.value, str) and f"${{{name}}}" in macro.value
