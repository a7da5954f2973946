"""The matrix against its meaning written out, its errors, and how long a question takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.matrix import MAX_CHAIN, MAX_HEIGHT, Eviction, Matrix, MatrixError, check_matrix
from appliance.core.config.matrix_expression import (
    MAX_BRACKETS,
    AllOf,
    AnyOf,
    Expression,
    Name,
    SetReference,
    parse_expression,
)
from appliance.core.config.types import MatrixConfig

MODELS = ("ant", "bee", "cat", "dog", "elk", "fox", "org/gnu:7b")
FAUNA = MatrixConfig(
    vars={"g": "org/gnu:7b", "ant": "bee"},  # the second one hides the model of that name
    evict_costs={"g": 50, "cat": 3},
    sets={"zoo": "(bee | cat) & g", "pack": "+zoo & dog", "lone": "elk"},
)

# ---- the meaning, written out ----------------------------------------------------------------------------------------

Family = list[frozenset[str]]


def alternatives(tree: Expression, families: dict[str, Family], relevant: frozenset[str]) -> Family:
    """All alternatives in order, without those that hold no more of ``relevant`` than another one does."""
    match tree:
        case Name(model):
            return [frozenset([model])]
        case SetReference(name):
            return families[name]
        case AnyOf(parts):
            return greatest([one for part in parts for one in alternatives(part, families, relevant)], relevant)
        case AllOf(parts):
            family: Family = [frozenset()]
            for part in parts:
                others = alternatives(part, families, relevant)
                family = greatest([one | other for one in family for other in others], relevant)
            return family


def greatest(family: Family, relevant: frozenset[str]) -> Family:
    projections = [one & relevant for one in family]
    return [
        one
        for number, one in enumerate(family)
        if not any(one & relevant < other for other in projections) and one & relevant not in projections[:number]
    ]


def referred(tree: Expression) -> Iterator[str]:
    match tree:
        case Name():
            pass
        case SetReference(name):
            yield name
        case AnyOf(parts) | AllOf(parts):
            for part in parts:
                yield from referred(part)


def in_order(trees: dict[str, Expression]) -> list[str]:
    order: list[str] = []

    def add(name: str) -> None:
        for other in referred(trees[name]):
            add(other)
        if name not in order:
            order.append(name)

    for name in trees:
        add(name)
    return order


def families_of(config: MatrixConfig, relevant: frozenset[str] = frozenset("abcdef")) -> dict[str, Family]:
    """The alternatives of each set, in the order in which sets are asked."""
    trees = {name: parse_expression(text) for name, text in config.sets.items()}
    families: dict[str, Family] = {}
    for name in in_order(trees):
        families[name] = alternatives(trees[name], families, relevant)
    return families


def first_with(config: MatrixConfig, models: Iterable[str]) -> str | None:
    wanted = frozenset(models)
    return next((name for name, family in families_of(config).items() if any(wanted <= one for one in family)), None)


def oracle(config: MatrixConfig, target: str, running: Sequence[str]) -> Eviction:
    if target in running:
        return Eviction((), first_with(config, running), tuple(sorted(running)))
    costs = {model: config.evict_costs.get(model, 1) for model in running}
    best: tuple[int, str, frozenset[str]] | None = None
    for name, family in families_of(config, frozenset([target, *running])).items():
        for one in family:
            cost = sum(costs[model] for model in running if model not in one)
            if target in one and (best is None or cost < best[0]):
                best = cost, name, one
    if best is None:
        return Eviction(tuple(running), None, (target,), sum(costs.values()))
    cost, name, one = best
    return Eviction(tuple(model for model in running if model not in one), name, tuple(sorted(one)), cost)


LETTERS = "abcdef"


@st.composite
def expressions(draw: st.DrawFn, references: Sequence[str]) -> str:
    """Products of choices between products: what there is to get wrong shows when parts share models."""
    atom = st.sampled_from([*LETTERS, *("+" + name for name in references)])
    product = st.lists(atom, min_size=1, max_size=3).map(" & ".join)
    choice = st.lists(product, min_size=1, max_size=3).map(" | ".join)
    products = st.lists(choice.map("({})".format), min_size=1, max_size=4).map(" & ".join)
    return draw(st.lists(products, min_size=1, max_size=2).map(" | ".join))


@st.composite
def programs(draw: st.DrawFn) -> MatrixConfig:
    names = draw(st.permutations(["s1", "s2", "s3"]))[: draw(st.integers(1, 3))]
    # A set refers to those before it in `names`; the order of the file is another one, so references go both ways.
    texts = {name: draw(expressions(names[:number])) for number, name in enumerate(names)}
    costs = draw(st.dictionaries(st.sampled_from(LETTERS), st.integers(1, 3)))
    return MatrixConfig(sets={name: texts[name] for name in sorted(texts)}, evict_costs=costs)


RUNNING = st.sets(st.sampled_from([*LETTERS, "stranger"]), min_size=1, max_size=6).map(sorted)


@given(programs(), st.sampled_from([*LETTERS, "other"]), RUNNING)
def test_a_decision_is_the_meaning_written_out(config: MatrixConfig, target: str, running: list[str]) -> None:
    assert Matrix(config, LETTERS).solve(target, running) == oracle(config, target, running)


@given(programs(), st.sets(st.sampled_from(LETTERS), max_size=4))
def test_set_with_is_the_first_that_holds_all(config: MatrixConfig, models: set[str]) -> None:
    assert Matrix(config, LETTERS).set_with(models) == (first_with(config, models) if models else None)


# ---- by example ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "running", "decision"),
    [
        ("dog", ["bee", "cat"], Eviction(("bee",), "pack", ("cat", "dog", "org/gnu:7b"), 1)),
        ("elk", ["bee", "org/gnu:7b"], Eviction(("bee", "org/gnu:7b"), "lone", ("elk",), 51)),
        ("ant", ["bee", "cat"], Eviction(("bee", "cat"), None, ("ant",), 4)),  # the var hides it: it is in no set
        ("cat", ["bee", "cat"], Eviction((), None, ("bee", "cat"))),  # nothing allows it, and it is so already
        ("org/gnu:7b", ["unheard of"], Eviction(("unheard of",), "zoo", ("bee", "org/gnu:7b"), 1)),
    ],
)
def test_decisions(target: str, running: list[str], decision: Eviction) -> None:
    assert Matrix(FAUNA, MODELS).solve(target, running) == decision


@pytest.mark.parametrize(
    ("text", "running", "target_set"),
    [
        ("(t | a) & (t | b)", "ab", "bt"),  # a & b would keep both, and is no answer
        ("(a | b) & t", "ab", "at"),  # the first of equals
        ("(a | b | a & c) & t", "abc", "act"),
        ("t & (a | b & d | a & c)", "abcd", "bdt"),  # a & c stands at its own place, not at that of a
        ("(a | b | a & c) & c & t", "abc", "bct"),  # a is dropped before it meets c
        ("(a | b | a & c) & (t | t & b) & x", "ab", "abtx"),
        ("(a | b) & (b | c) & (c | d) & t", "abcd", "abct"),  # each shares a model with the next
        ("(c | d) & (a | b) & (d & a | c & b) & t", "abcd", "abcdt"),
        ("(x | y) & t", "a", "tx"),  # what does not matter is taken from the front
    ],
)
def test_the_alternative_that_is_taken(text: str, running: str, target_set: str) -> None:
    config = MatrixConfig(sets={"s": text})
    decision = Matrix(config, "abcdtxy").solve("t", list(running))
    assert decision == oracle(config, "t", list(running))
    assert "".join(decision.target_set) == target_set


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a", Name("a", 1)),
        ("a|b&c", AnyOf((Name("a", 1), AllOf((Name("b", 3), Name("c", 5)))))),
        ("(a | b)\n& +c-1.x_", AllOf((AnyOf((Name("a", 2), Name("b", 6))), SetReference("c-1.x_", 11)))),
        ("((å٣))", Name("å٣", 3)),
        ("-.", Name("-.", 1)),
    ],
)
def test_grammar(text: str, tree: Expression) -> None:
    assert parse_expression(text) == tree


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; name at least one model"),
        ("ant bee", "'bee' at position 5 must be joined to what is before it with '&' or '|', in 'ant bee'"),
        ("ant & | bee", "a model, '+set' or '(' is missing before '|' at position 7, in 'ant & | bee'"),
        ("ant |", "a model, '+set' or '(' is missing before the end, in 'ant |'"),
        ("()", "a model, '+set' or '(' is missing before ')' at position 2, in '()'"),
        ("(ant", "'(' at position 1 is not closed: ')' is missing before the end, in '(ant'"),
        ("(ant bee)", "'(' at position 1 is not closed: ')' is missing before 'bee' at position 6, in '(ant bee)'"),
        ("ant)", "')' at position 4 closes nothing; remove it, or open a bracket before, in 'ant)'"),
        ("ant + bee", "'+' at position 5 must be followed at once by the name of a set, in 'ant + bee'"),
        (
            "org/gnu:7b",
            "'/' at position 4 cannot be in a name: names have letters, digits and _ - . only, so give a model with "
            "another id a short name under 'vars', in 'org/gnu:7b'",
        ),
        ("ant | catt", "'catt' at position 7 is neither a var nor a model id; did you mean 'cat'?"),
        ("other", "'other' at position 1 is neither a var nor a model id; to mean the set, write '+other'"),
        ("+othr", "'+othr' at position 1 is not a set; did you mean 'other'?"),
        ("ant | +it", "refers to itself: it -> it; take one + out"),
    ],
)
def test_bad_expressions(text: str, message: str) -> None:
    config = MatrixConfig(sets={"other": "ant", "it": text})
    with pytest.raises(MatrixError) as caught:
        Matrix(config, MODELS)
    assert (caught.value.path, caught.value.message) == ("sets.it", message)
    assert str(caught.value) == f"sets.it: {message}"


def test_everything_that_is_wrong_is_said() -> None:
    config = MatrixConfig(
        vars={"a_b": "ant", "x" * 33: "bee", "c": "katze", "d": "dogs"},
        evict_costs={"c": 2, "nothing": 3, "ant": 0},
        sets={"one": "ant |", "two": "bee & nobody"},
    )
    assert [str(error) for error in check_matrix(config, MODELS)] == [
        "vars.a_b: is not a name for a var: 1 to 32 letters (a-z, A-Z), digits, dots or hyphens",
        f"vars.{'x' * 33}: is not a name for a var: 1 to 32 letters (a-z, A-Z), digits, dots or hyphens",
        "vars.c: there is no model 'katze', and an alias does not count",
        "vars.d: there is no model 'dogs', and an alias does not count; did you mean 'dog'?",
        "evict_costs.nothing: is neither a var nor a model id",
        "evict_costs.ant: is 0; a cost is 1 or more",
        "sets.one: a model, '+set' or '(' is missing before the end, in 'ant |'",
        "sets.two: 'nobody' at position 7 is neither a var nor a model id",
    ]
    assert [str(error) for error in check_matrix(MatrixConfig(), MODELS)] == [
        "sets: is empty; add at least one set, such as 'all: a & b'"
    ]
    assert check_matrix(FAUNA, MODELS) == ()


def test_circles_are_told_from_where_they_begin() -> None:
    config = MatrixConfig(sets={"in": "+a", "a": "ant | +b", "b": "+c & bee", "c": "+a"})
    assert [str(error) for error in check_matrix(config, MODELS)] == [
        "sets.a: refers to itself: a -> b -> c -> a; take one + out"
    ]


def test_depth_has_limits() -> None:
    deep = "(" * (MAX_BRACKETS + 1) + "ant" + ")" * (MAX_BRACKETS + 1)
    [error] = check_matrix(MatrixConfig(sets={"s": deep}), MODELS)
    assert f"is the {MAX_BRACKETS + 1}th bracket within brackets" in error.message
    assert check_matrix(MatrixConfig(sets={"s": deep[1:-1]}), MODELS) == ()

    chain = {f"s{n}": f"+s{n + 1}" for n in range(MAX_CHAIN)} | {f"s{MAX_CHAIN}": "ant"}
    [error] = check_matrix(MatrixConfig(sets=chain), MODELS)
    assert "references in a row" in error.message

    backwards = {"s0": "ant"} | {f"s{n}": f"(+s{n - 1} | bee) & cat" for n in range(1, MAX_HEIGHT)}
    assert "operators within operators" in check_matrix(MatrixConfig(sets=backwards), MODELS)[0].message
    fitting = dict(list(backwards.items())[: MAX_HEIGHT // 2])
    matrix = Matrix(MatrixConfig(sets=fitting), MODELS)
    assert matrix.solve("ant", ["bee", "cat"]) == Eviction(("bee",), "s1", ("ant", "cat"), 1)


# ---- how long it takes -----------------------------------------------------------------------------------------------


def test_independent_choices_are_not_multiplied() -> None:
    """40 pairs of running models: their product has 2^40 alternatives, none of which contains another."""
    pairs = [(f"a{number}", f"b{number}") for number in range(40)]
    running = sorted(model for pair in pairs for model in pair)
    config = MatrixConfig(
        sets={"s": "t & " + " & ".join(f"({a} | {b})" for a, b in pairs)}, evict_costs={"b3": 2, "a5": 2}
    )
    decision = Matrix(config, ["t", *running]).solve("t", running)
    assert set(decision.evict) == {b for a, b in pairs if a != "a3"} | {"a3"}
    assert decision.cost == 40
