"""Rules around a schedule: groups and what a policy means, who is taken for the reason of a death, expected waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.additions import HangsConfig
from appliance.core.config.matrix import Matrix, MatrixError
from appliance.core.config.types import Config, Group, MatrixConfig, ModelConfig, RouterConfig, RouterSettings, Routing
from appliance.core.scheduling.judging import MOST, REMEMBERED, Silence, Suspects, patience
from appliance.core.scheduling.policy import Eviction, FreePolicy, GroupPolicy, MatrixPolicy, Policy, policy_of
from appliance.core.scheduling.waiting import LoadTimes

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


FLOOR = 64
SEATS = st.sampled_from(["gpu0", "gpu1"])
DEATHS = st.tuples(st.sets(st.integers(0, 3), min_size=1), SEATS, st.floats(0, REMEMBERED / 2))


@given(st.lists(DEATHS | st.integers(0, 3), max_size=12))
def test_two_deaths_convict_and_one_alone_among_them_refuses(history: list[tuple[set[int], str, float] | int]) -> None:
    """Only the deaths since its last answer count, and for refusing only those that are remembered."""
    suspects, now = Suspects(), 0.0
    deaths: dict[int, list[tuple[float, str, bool]]] = {}
    for event in history:
        if isinstance(event, int):
            suspects.answered(event)
            deaths.pop(event, None)
            continue
        requests, seat, passed = event
        now += passed
        cleared = suspects.died(requests, seat, now)
        for request in requests:
            before = [one for one in deaths.get(request, []) if now < one[0] + REMEMBERED]
            deaths[request] = [*before, (now, seat, len(requests) == 1)]
        refused = {request for request in deaths if suspects.refuses(request, now)}
        assert cleared == {one: [on for _, on, _ in deaths[one]] for one in requests & refused}
        for request in range(4):
            fresh = [one for one in deaths.get(request, []) if now < one[0] + REMEMBERED]
            assert suspects.convicted(request) == (len(deaths.get(request, [])) >= 2)
            assert (request in refused) == (len(fresh) >= 2 and any(alone for _, _, alone in fresh))
        assert bool(suspects) == bool(deaths)


def test_what_is_remembered_has_an_end_in_time_and_number() -> None:
    suspects = Suspects()
    suspects.died([0], "gpu0", 0.0)
    suspects.died([0], "gpu0", 1.0)
    assert suspects.refuses(0, REMEMBERED - 0.5)
    assert not suspects.refuses(0, REMEMBERED)
    for request in range(1, MOST + 1):
        suspects.died([request], "gpu0", 1.0)
    assert not suspects.convicted(0), "the one not seen for the longest time is forgotten"
    suspects.died([1], "gpu0", 1.0)
    assert suspects.convicted(1)


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 2 * FLOOR)), max_size=30))
def test_drops_are_silence(came: list[tuple[int, int]]) -> None:
    """It lasts since the last moment at which a whole floor had come; fewer bytes are added up and never forgotten."""
    silence = Silence(0, 0)
    now = passed = alive_at = counted = 0
    for seconds, more in came:
        now, passed = now + seconds, passed + more
        if passed - counted >= FLOOR:
            alive_at, counted = now, passed
        assert silence.look(passed, now, FLOOR) == now - alive_at


def test_an_answered_question_ends_a_silence() -> None:
    silence = Silence(0, 0)
    assert silence.look(FLOOR - 1, 5, FLOOR) == 5
    silence.on_progress(FLOOR - 1, 6)
    assert silence.look(2 * FLOOR - 2, 8, FLOOR) == 2
    assert silence.look(2 * FLOOR - 1, 9, FLOOR) == 0


def test_it_may_last_less_while_another_model_waits() -> None:
    hangs = HangsConfig(after=60, awaited=20)
    assert [patience(hangs, awaited=awaited) for awaited in (False, True)] == [60, 20]
    assert patience(HangsConfig(after=5, awaited=20), awaited=True) == 5


TIMED = st.sampled_from("abcde")
SECONDS = st.floats(0, 1000)


def measured(**loads: float) -> LoadTimes:
    times = LoadTimes()
    for model, seconds in loads.items():
        times.note(model, seconds)
    return times


def test_loads_in_turn_add_up_and_those_under_way_go_on_side_by_side():
    times = measured(a=4, b=6, c=10)
    assert times.expected(["a"], {}) == 4
    assert times.expected(["a"], {"a": 1}) == 3
    assert times.expected(["a"], {"a": 9}) == 0
    assert times.expected(["a", "b", "c"], {"a": 1, "b": 1}) == 15
    assert times.expected(["a", "x"], {}) is None
    assert times.expected([], {}) == 0


def test_a_measurement_counts_as_much_as_all_before_it():
    times = measured(a=8)
    times.note("a", 4)
    assert times.expected(["a"], {}) == 6
    times.forget(["a", "x"])
    assert times.expected(["a"], {}) is None


@given(st.dictionaries(TIMED, SECONDS), st.lists(TIMED, unique=True), st.dictionaries(TIMED, SECONDS))
def test_a_wait_is_bounded_by_the_loads(loads: dict[str, float], awaited: list[str], under_way: dict[str, float]):
    expected = measured(**loads).expected(awaited, under_way)
    if not {*awaited} <= loads.keys():
        assert expected is None
        return
    assert expected is not None
    assert 0 <= expected <= sum(loads[model] for model in awaited) + 1e-6
    assert expected >= max((loads[model] for model in awaited if model not in under_way), default=0)
    longer = measured(**{model: seconds + 1 for model, seconds in loads.items()}).expected(awaited, under_way)
    assert longer is not None
    assert longer >= expected
