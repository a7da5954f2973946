"""Measuring takes a few seconds on every machine, slow or fast, and finds its speed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.features.engines.core.trials import (
    BUDGET,
    ROUNDS,
    SMALL,
    WARM_UP,
    WHOLE,
    EngineTimings,
    next_request,
    speeds_of,
)

Measured = tuple[list[EngineTimings], float]
speeds = st.floats(0.05, 1e6)


def timings(size: tuple[int, int], prompt_speed: float, token_speed: float) -> EngineTimings:
    return EngineTimings(size[0], size[0] / prompt_speed * 1000, size[1], size[1] / token_speed * 1000)


def measure(prompt_speed: float, token_speed: float, kernels: dict[int, float] | None = None) -> Measured:
    """As a machine of these speeds answers; the first prompt of a size takes so many seconds longer."""
    slow = dict(kernels or {})
    done: list[EngineTimings] = []
    spent = 0.0
    while (size := next_request(done, spent)) is not None:
        extra = slow.pop(size[0], 0.0) * 1000
        plain = timings(size, prompt_speed, token_speed)
        done.append(structs.replace(plain, prompt_ms=plain.prompt_ms + extra))
        if len(done) > 1:
            spent += (done[-1].prompt_ms + done[-1].predicted_ms) / 1000
        assert len(done) <= 2 + ROUNDS
    return done, spent


@given(speeds, speeds)
def test_the_speed_is_found_and_the_time_is_kept(prompt_speed: float, token_speed: float) -> None:
    done, spent = measure(prompt_speed, token_speed)
    found = speeds_of(done[1:])
    assert abs(found.prompt / prompt_speed - 1) < 1e-6
    assert abs(found.generation / token_speed - 1) < 1e-6
    small = timings(SMALL, prompt_speed, token_speed)
    assert spent <= max(BUDGET, (small.prompt_ms + small.predicted_ms) / 1000) * 1.01


@given(st.floats(1000.0, 1e6), st.floats(100.0, 1e6))
def test_a_fast_machine_is_measured_whole_and_more_than_once(prompt_speed: float, token_speed: float) -> None:
    done, _ = measure(prompt_speed, token_speed)
    assert [one.prompt_n for one in done] == [WARM_UP[0], SMALL[0], *[WHOLE[0]] * ROUNDS]


def test_a_slow_machine_computes_less() -> None:
    done, _ = measure(60.0, 8.0)
    assert [one.prompt_n for one in done][:2] == [WARM_UP[0], SMALL[0]]
    assert len(done) == 3
    assert SMALL[0] < done[2].prompt_n < WHOLE[0]
    done, _ = measure(5.0, 1.0)
    assert len(done) == 2


@given(st.floats(0.0, 50.0), st.floats(0.0, 4.0))
def test_kernels_that_are_built_on_the_way_make_no_card_slow(first: float, whole: float) -> None:
    done, _ = measure(10000.0, 500.0, {WARM_UP[0]: first, WHOLE[0]: whole})
    found = speeds_of(done[1:])
    assert found.prompt > 9999.0


def test_a_part_of_the_measuring_model_is_that_much_slower_as_a_whole() -> None:
    found = speeds_of([timings(WHOLE, 1000.0, 100.0)], part=0.2)
    assert abs(found.prompt - 200.0) < 1e-6
    assert abs(found.generation - 20.0) < 1e-6


def test_an_engine_that_tells_no_times_has_no_speed() -> None:
    assert speeds_of([]) is None
    assert speeds_of([EngineTimings(), EngineTimings(10, 0.0, 5, 0.0)]) is None
    assert next_request([EngineTimings(), EngineTimings()], 0.0) is None


@given(
    st.lists(
        st.builds(
            EngineTimings,
            st.integers() | st.just(10**400),
            st.floats(allow_nan=False) | st.just(1e-320),
            st.integers() | st.just(10**400),
            st.floats(allow_nan=False) | st.just(1e308),
        ),
        max_size=6,
    ),
    st.floats(0, 1e6),
)
def test_no_figures_that_an_engine_may_tell_make_it_raise_or_endless(done: list[EngineTimings], spent: float) -> None:
    size = next_request(done, spent)
    assert size is None or (0 < size[0] <= WHOLE[0] and 0 < size[1] <= WHOLE[1])
    found = speeds_of(done)
    assert found is None or (0 < found.prompt < 1e13 and 0 < found.generation < 1e13)
