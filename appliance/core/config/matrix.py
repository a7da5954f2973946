"""The matrix: which models may be loaded together, and which ones must go for one that is not.

The rules are llama-swap's (0bdb3720); `core.config.matrix_solver` holds their theory.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from appliance.core.config.matrix_expression import (
    AllOf,
    AnyOf,
    BadExpression,
    Expression,
    Name,
    SetReference,
    leaves,
    parse_expression,
)
from appliance.core.config.matrix_solver import MatrixQuery, SetNode, bits_of
from appliance.core.config.types import MatrixConfig
from appliance.core.near_names import did_you_mean

DEFAULT_COST = 1
HINTS = 20
"""Errors that say which name was probably meant; the later ones do not."""
MAX_HEIGHT = 100
"""Largest depth of operators, references followed; a decision walks down them, and the stack has an end."""
MAX_CHAIN = 100
"""Longest chain of sets that refer to each other; for the same reason."""
_VAR = re.compile(r"[a-zA-Z0-9.-]{1,32}")


class Eviction(Struct, frozen=True):
    """A policy's answer: which models must go so that the target may run, and why."""

    evict: tuple[str, ...] = ()
    """Running models to evict, in the order they were given."""
    set: str | None = None
    """The set or group that decided; None when none did."""
    target_set: tuple[str, ...] = ()
    """Models that may run together then, sorted; for a matrix the whole alternative, running or not."""
    cost: int = 0
    """The cost: the sum of the costs of the evicted models."""


class MatrixError(ValueError):
    """A matrix that cannot be used. ``path`` is dotted, from the matrix down: ``sets.chat``."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(path, message)
        self.path = path
        self.message = message

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def check_matrix(config: MatrixConfig, models: Collection[str]) -> tuple[MatrixError, ...]:
    """Return all problems of a matrix for these model ids."""
    return tuple(_Program(config, models).errors)


class Matrix:
    """A matrix that was read once and answers many questions. Immutable. Raises the first `MatrixError`.

    A question may name an unknown model: such a model is in no set.
    """

    def __init__(self, config: MatrixConfig, models: Collection[str]) -> None:
        program = _Program(config, models)
        if program.errors:
            raise program.errors[0]
        self._sets = program.sets
        self._bits = program.bits
        self._models = tuple(program.bits)
        self._costs = program.costs

    def cost_of(self, model: str) -> int:
        """Return the cost of evicting the model."""
        return self._costs.get(model, DEFAULT_COST)

    def solve(self, target: str, running: Sequence[str]) -> Eviction:
        """Return which ``running`` models ``target`` displaces, at the least cost. A running target displaces none."""
        if target in running:
            return Eviction((), self.set_with(running), tuple(sorted(running)))
        cost = sum(map(self.cost_of, running))
        bit = self._bits.get(target, 0)
        question = MatrixQuery(
            {self._bits[model]: self.cost_of(model) for model in running if model in self._bits}, bit
        )
        best_kept, best_set, best = -1, None, 0
        for name, root in self._sets.items():
            if bit & root.support and (best_set is None or question.upper_bound(root, bit) > best_kept):
                kept, alternative = question.best(root, bit)
                if kept > best_kept:
                    best_kept, best_set, best = kept, name, alternative
        if best_set is None:
            return Eviction(tuple(running), None, (target,), cost)
        evict = tuple(model for model in running if not self._bits.get(model, 0) & best)
        return Eviction(evict, best_set, self._named(best), cost - best_kept)

    def set_with(self, models: Collection[str]) -> str | None:
        """Return the first set that lets all these models run together; None if there is none, and for no models."""
        if not models or any(model not in self._bits for model in models):
            return None
        bits = {self._bits[model]: 1 for model in models}
        question = MatrixQuery(bits, 0)
        return next((name for name, root in self._sets.items() if question.best(root, 0)[0] == len(bits)), None)

    def _named(self, alternative: int) -> tuple[str, ...]:
        return tuple(sorted(self._models[bit.bit_length() - 1] for bit in bits_of(alternative)))


class _Program:
    """Reads a matrix. If there are ``errors``, its other results are meaningless."""

    def __init__(self, config: MatrixConfig, models: Collection[str]) -> None:
        self.errors: list[MatrixError] = []
        self.bits: dict[str, int] = {}
        self.sets: dict[str, SetNode] = {}
        self.costs: dict[str, int] = {}
        self._models = models
        self._vars = config.vars
        self._check_vars()
        self._read_costs(config.evict_costs)
        if not config.sets:
            self._error("sets", "is empty; add at least one set, such as 'all: a & b'")
        trees = {name: tree for name, text in config.sets.items() if (tree := self._parsed(name, text))}
        self._check_names(trees, list(config.sets))
        if not self.errors:
            for name in self._ordered(trees):
                self.sets[name] = self._node(trees[name])
                if self.sets[name].height > MAX_HEIGHT:
                    self._error(f"sets.{name}", f"has more than {MAX_HEIGHT} operators within operators; simplify it")

    def _error(self, path: str, message: str) -> None:
        self.errors.append(MatrixError(path, message))

    def _hint(self, name: str, known: Iterable[str]) -> str:
        """The name that was meant. Every error with every name would take the square of their number."""
        return did_you_mean(name, known) if len(self.errors) < HINTS else ""

    def _check_vars(self) -> None:
        for var, model in self._vars.items():
            if not _VAR.fullmatch(var):
                self._error(
                    f"vars.{var}", "is not a name for a var: 1 to 32 letters (a-z, A-Z), digits, dots or hyphens"
                )
            if model not in self._models:
                hint = self._hint(model, self._models)
                self._error(f"vars.{var}", f"there is no model '{model}', and an alias does not count{hint}")

    def _read_costs(self, costs: Mapping[str, int]) -> None:
        for name, cost in costs.items():
            path = f"evict_costs.{name}"
            if cost < 1:
                self._error(path, f"is {cost}; a cost is 1 or more")
            if name in self._vars or name in self._models:
                self.costs[self._vars.get(name, name)] = cost
            else:
                self._error(path, f"is neither a var nor a model id{self._hint(name, [*self._vars, *self._models])}")

    def _parsed(self, name: str, text: str) -> Expression | None:
        try:
            return parse_expression(text)
        except BadExpression as error:
            self._error(f"sets.{name}", f"{error}" + (f", in '{text}'" if text.strip() else ""))
            return None

    def _check_names(self, trees: Mapping[str, Expression], sets: Sequence[str]) -> None:
        for path, leaf in ((f"sets.{name}", leaf) for name, tree in trees.items() for leaf in leaves(tree)):
            where = f"'{leaf.text}' at position {leaf.at}"
            if isinstance(leaf, SetReference):
                if leaf.text not in sets:
                    self._error(path, f"'+{leaf.text}' at position {leaf.at} is not a set{self._hint(leaf.text, sets)}")
            elif leaf.text not in self._vars and leaf.text not in self._models:
                hint = self._hint(leaf.text, [*self._vars, *self._models])
                if not hint and leaf.text in sets:
                    hint = f"; to mean the set, write '+{leaf.text}'"
                self._error(path, f"{where} is neither a var nor a model id{hint}")

    def _ordered(self, trees: Mapping[str, Expression]) -> list[str]:
        """Return the sets in the order of the file, each behind those it refers to."""
        order: dict[str, None] = {}
        way: dict[str, None] = {}

        def visit(name: str) -> None:
            if name in way:
                circle = [*way][[*way].index(name) :]
                self._error(f"sets.{name}", f"refers to itself: {' -> '.join([*circle, name])}; take one + out")
            elif len(way) == MAX_CHAIN:
                self._error(f"sets.{name}", f"is reached by more than {MAX_CHAIN} references in a row; simplify them")
            elif name not in order and not self.errors:
                way[name] = None
                for leaf in leaves(trees[name]):
                    if isinstance(leaf, SetReference):
                        visit(leaf.text)
                del way[name]
                order[name] = None

        for name in trees:
            visit(name)
        return [] if self.errors else list(order)

    def _node(self, tree: Expression) -> SetNode:
        match tree:
            case Name(text):
                model = self._vars.get(text, text)
                return SetNode.leaf(self.bits.setdefault(model, 1 << len(self.bits)))
            case SetReference(text):
                return self.sets[text]
            case AnyOf(parts):
                return SetNode.any_of([self._node(part) for part in parts])
            case AllOf(parts):
                return SetNode.all_of([self._node(part) for part in parts])
