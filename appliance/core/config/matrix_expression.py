"""The expressions of a matrix's sets, text to a tree: ``a & (b | +other)``. The grammar is llama-swap's (0bdb3720)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

MAX_BRACKETS = 100
"""Largest number of nested brackets. Useful expressions have three; the program's own stack ends at some hundreds."""
_TOKEN = re.compile(r"(?P<name>[\w.-]+)|(?P<set>\+[\w.-]+)|(?P<sign>[&|()])|(?P<bad>\S)")


class Name(Struct, frozen=True):
    """A var or model id. ``at`` counts characters from 1."""

    text: str
    at: int


class SetReference(Struct, frozen=True):
    """``+name``: another set, in place."""

    text: str
    at: int


class AnyOf(Struct, frozen=True):
    """``a | b``; always two or more parts."""

    parts: tuple[Expression, ...]


class AllOf(Struct, frozen=True):
    """``a & b``; always two or more parts."""

    parts: tuple[Expression, ...]


Expression = Name | SetReference | AnyOf | AllOf


class BadExpression(ValueError):
    """The text is not an expression of the grammar. The message says what it found, and what could stand there."""


class _Token(Struct, frozen=True):
    kind: str
    """``name``, ``set``, ``end``, or the character itself."""
    text: str
    at: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"'{self.text}' at position {self.at}"


def parse_expression(text: str) -> Expression:
    """Return the tree of an expression; raises `BadExpression`."""
    tokens = _tokens(text)
    if tokens[0].kind == "end":
        raise BadExpression("is empty; name at least one model")
    parser = _Parser(tokens)
    tree = parser.any_of(0)
    if parser.token.kind == ")":
        raise BadExpression(f"{parser.token} closes nothing; remove it, or open a bracket before")
    if parser.token.kind != "end":
        raise BadExpression(f"{parser.token} must be joined to what is before it with '&' or '|'")
    return tree


def leaves(tree: Expression) -> list[Name | SetReference]:
    """Left to right."""
    match tree:
        case Name() | SetReference():
            return [tree]
        case AnyOf(parts) | AllOf(parts):
            return [leaf for part in parts for leaf in leaves(part)]


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    for piece in _TOKEN.finditer(text):
        kind, found, at = str(piece.lastgroup), piece[str(piece.lastgroup)], piece.start(str(piece.lastgroup)) + 1
        if kind == "bad" and found == "+":
            raise BadExpression(f"'+' at position {at} must be followed at once by the name of a set")
        if kind == "bad":
            raise BadExpression(
                f"{found!r} at position {at} cannot be in a name: names have letters, digits and _ - . only, "
                "so give a model with another id a short name under 'vars'"
            )
        tokens.append(_Token(found if kind == "sign" else kind, found, at))
    return [*tokens, _Token("end", "", len(text) + 1)]


class _Parser:
    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._next = 0

    @property
    def token(self) -> _Token:
        return self._tokens[self._next]

    def any_of(self, depth: int) -> Expression:
        parts = [self._all_of(depth)]
        while self.token.kind == "|":
            self._next += 1
            parts.append(self._all_of(depth))
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all_of(self, depth: int) -> Expression:
        parts = [self._atom(depth)]
        while self.token.kind == "&":
            self._next += 1
            parts.append(self._atom(depth))
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _atom(self, depth: int) -> Expression:
        token = self.token
        if token.kind not in ("name", "set", "("):
            raise BadExpression(f"a model, '+set' or '(' is missing before {token}")
        self._next += 1
        if token.kind == "name":
            return Name(token.text, token.at)
        if token.kind == "set":
            return SetReference(token.text[1:], token.at)
        if depth == MAX_BRACKETS:
            raise BadExpression(f"{token} is the {MAX_BRACKETS + 1}th bracket within brackets; put parts into sets")
        inner = self.any_of(depth + 1)
        if self.token.kind != ")":
            raise BadExpression(f"{token} is not closed: ')' is missing before {self.token}")
        self._next += 1
        return inner
