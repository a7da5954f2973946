"""Groups and their one-sidedness; which policy a configuration means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.matrix import Matrix, MatrixError
from appliance.core.config.types import Config, Group, MatrixConfig, ModelConfig, RouterConfig, RouterSettings, Routing
from appliance.core.scheduling.policy import Eviction, FreePolicy, GroupPolicy, MatrixPolicy, Policy, policy_of

GROUPS = {
    "chat": Group(members=["a", "b"]),
    "tools": Group(swap=False, exclusive=False, members=["embed", "rank"]),
    "always": Group(swap=False, exclusive=False, persistent=True, members=["voice"]),
    "kept": Group(persistent=True, members=["p", "q"]),
    "(default)": Group(members=["x", "y"]),
}
MODELS = ["a", "b", "embed", "p", "q", "rank", "stray", "voice", "x", "y"]


@pytest.mark.parametrize(
    ("target", "running", "evict"),
    [
        ("a", [], ()),
        ("a", ["b"], ("b",)),  # a group swaps
        ("rank", ["embed"], ()),  # unless it does not
        ("a", ["embed", "rank"], ("embed", "rank")),  # an exclusive group displaces the others
        ("embed", ["a"], ()),  # and is not displaced in turn
        ("a", ["voice"], ()),  # persistent groups stay
        ("q", ["p"], ("p",)),  # but swap within
        ("a", ["p", "voice", "x"], ("x",)),
        ("p", ["a", "embed", "voice"], ("a", "embed")),  # persistent and exclusive displaces, too
        ("x", ["stray"], ("stray",)),  # a model of no group is one of the rest
        ("stray", ["x"], ("x",)),
        ("a", ["a", "embed"], ("embed",)),  # it runs already and displaces nevertheless
        ("embed", ["embed", "a"], ()),
    ],
)
def test_groups(target: str, running: list[str], evict: tuple[str, ...]) -> None:
    plan = GroupPolicy(GROUPS).plan(target, running)
    assert plan.evict == evict
    assert plan.cost == len(evict)
    assert plan.target_set == tuple(sorted({target, *running} - {*evict}))


def test_the_group_that_decided_is_told() -> None:
    policy = GroupPolicy(GROUPS)
    assert policy.plan("rank", ["embed"]) == Eviction((), "tools", ("embed", "rank"))
    assert policy.plan("stray", ["x", "p"]) == Eviction(("x",), "(default)", ("p", "stray"), 1)
    one_at_a_time = GroupPolicy({}).plan("a", ["b", "c"])
    assert one_at_a_time == Eviction(("b", "c"), "(default)", ("a",), 2)
    assert FreePolicy().plan("b", ["c", "a"]) == Eviction((), None, ("a", "b", "c"))


def policies() -> list[Policy]:
    matrix = MatrixConfig(sets={"s": "a & (b | x) & voice", "t": "p | q & y"}, evict_costs={"b": 4})
    return [FreePolicy(), GroupPolicy(GROUPS), MatrixPolicy(Matrix(matrix, MODELS))]


@given(st.sampled_from(range(3)), st.sampled_from(MODELS), st.permutations(MODELS), st.integers(0, len(MODELS)))
def test_laws_of_every_policy(which: int, target: str, order: list[str], count: int) -> None:
    policy, running = policies()[which], order[:count]
    plan = policy.plan(target, running)
    assert target not in plan.evict
    assert plan.evict == tuple(model for model in running if model in plan.evict)
    assert plan.cost == sum(map(policy.cost_of, plan.evict))
    assert {target, *running} - {*plan.evict} <= {*plan.target_set}
    assert list(plan.target_set) == sorted({*plan.target_set})
    assert not {*plan.target_set} & {*plan.evict}
    left = [model for model in running if model not in plan.evict]
    assert policy.plan(target, left).evict == (), "what is left may stay"
    assert policy.plan(target, sorted({*left, target})).evict == (), "and does when the target runs"


def routed(router: RouterConfig) -> Config:
    return Config(models={model: ModelConfig() for model in MODELS}, routing=Routing(router=router))


def test_a_configuration_has_one_policy() -> None:
    matrix = MatrixConfig(vars={"e": "embed"}, evict_costs={"e": 7}, sets={"s": "a & e"})
    settings = RouterSettings(groups=GROUPS, matrix=matrix)
    by_matrix = policy_of(routed(RouterConfig(use="matrix", settings=settings)))
    assert by_matrix.plan("b", ["a", "embed"]) == Eviction(("a", "embed"), None, ("b",), 8)
    assert by_matrix.plan("a", ["embed"]) == Eviction((), "s", ("a", "embed"))
    assert by_matrix.cost_of("embed") == 7
    by_group = policy_of(routed(RouterConfig(use="group", settings=settings)))
    assert by_group.plan("a", ["embed"]) == Eviction(("embed",), "chat", ("a",), 1)
    assert policy_of(Config()).plan("a", ["b"]).evict == ("b",)


def test_a_matrix_of_unknown_models_is_refused() -> None:
    with pytest.raises(MatrixError, match="did you mean 'embed'"):
        policy_of(routed(RouterConfig(use="matrix", settings=RouterSettings(matrix=MatrixConfig(sets={"s": "embd"})))))
