"""The figures of a load test."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.load_test.rules import MeasuredRequest, summed_up

times = st.floats(0, 1e4)


@st.composite
def requests(draw: st.DrawFn) -> MeasuredRequest:
    began, first, ended = sorted((draw(times), draw(times), draw(times)))
    return MeasuredRequest(
        model=draw(st.sampled_from("abc")),
        began=began,
        first=draw(st.sampled_from((first, None))),
        ended=ended,
        waited=draw(st.none() | st.floats(0, 100)),
        tokens=draw(st.integers(0, 1000)),
        error=draw(st.sampled_from((None, "it is away"))),
    )


@given(st.lists(requests(), max_size=30))
def test_every_request_counts_once_and_for_its_model(done: list[MeasuredRequest]) -> None:
    models = summed_up(done)
    assert [each.model for each in models] == list(dict.fromkeys(each.model for each in done))
    assert sum(each.requests for each in models) == len(done)
    assert sum(each.failed for each in models) == sum(each.error is not None for each in done)
    by_model = {
        model: list(group)
        for model, group in groupby(sorted(done, key=lambda each: each.model), key=lambda each: each.model)
    }
    for model in models:
        mine = by_model[model.model]
        good = [each for each in mine if each.error is None]
        assert all(each.ended - each.began <= model.seconds for each in mine)
        assert model.tokens_per_second * model.seconds == pytest.approx(
            sum(each.tokens for each in good) if model.seconds else 0
        )
        assert model.requests_per_second * model.seconds == pytest.approx(len(good) if model.seconds else 0)
        assert (model.waited is None) == any(each.waited is None for each in mine)
        assert model.waited is None or all(each.waited is None or each.waited <= model.waited for each in mine)


@pytest.mark.parametrize("fails", [False, True])
def test_percentiles_lie_between_ranks(fails: bool) -> None:
    done = [MeasuredRequest(model="a", began=0, first=rank, ended=30, waited=0, tokens=1) for rank in range(21)]
    done += [MeasuredRequest(model="a", began=0, first=25, ended=30, waited=0, tokens=1, error="it is away")] * fails
    (found,) = summed_up(done)
    assert (found.first_p50, found.first_p95) == (10, 19)


@given(st.lists(requests(), min_size=1, max_size=30))
def test_half_of_the_first_pieces_came_no_later_than_the_median(done: list[MeasuredRequest]) -> None:
    for model in summed_up(done):
        firsts = [
            each.first - each.began
            for each in done
            if each.model == model.model and each.error is None and each.first is not None
        ]
        if not firsts:
            assert (model.first_p50, model.first_p95) == (None, None)
            continue
        assert model.first_p50 is not None
        assert model.first_p95 is not None
        slack = 1e-6
        assert min(firsts) - slack <= model.first_p50 <= model.first_p95 + slack <= max(firsts) + 2 * slack
        assert sum(first <= model.first_p50 + slack for first in firsts) * 2 >= len(firsts)
        assert sum(first >= model.first_p50 - slack for first in firsts) * 2 >= len(firsts)
