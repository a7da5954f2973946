"""The results of a load test: its requests, and the figures of each model."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from msgspec import Struct


class MeasuredRequest(Struct, frozen=True, kw_only=True):
    """One request of the test. Times are seconds since the test began."""

    model: str
    began: float
    first: float | None = None
    """When the first piece of the answer came."""
    ended: float
    waited: float | None = 0.0
    """The seconds in which it waited for its model; None where the answer began before they were over."""
    tokens: int = 0
    error: str | None = None


class MeasuredModel(Struct, frozen=True, kw_only=True):
    """The figures of one model. Those of answers leave failed requests out."""

    model: str
    requests: int
    failed: int
    seconds: float
    """From the start of its first request to the end of its last one; the rates are those of this time."""
    requests_per_second: float
    tokens_per_second: float
    waited: float | None
    """The longest wait for the model; None if one of them is not known."""
    first_p50: float | None
    """The seconds from a request to the first piece of its answer, in half of the requests at most."""
    first_p95: float | None


def summed_up(requests: Sequence[MeasuredRequest]) -> list[MeasuredModel]:
    """Return the figures of each model, in the order of their first requests."""
    return [_model([each for each in requests if each.model == model]) for model in _models(requests)]


def _models(requests: Iterable[MeasuredRequest]) -> Iterable[str]:
    return dict.fromkeys(each.model for each in requests)


def _model(requests: Sequence[MeasuredRequest]) -> MeasuredModel:
    good = [each for each in requests if each.error is None]
    seconds = max(each.ended for each in requests) - min(each.began for each in requests)
    firsts = [each.first - each.began for each in good if each.first is not None]
    waits = [each.waited for each in requests if each.waited is not None]
    p50, p95 = _percentiles(firsts)
    return MeasuredModel(
        model=requests[0].model,
        requests=len(requests),
        failed=len(requests) - len(good),
        seconds=seconds,
        requests_per_second=len(good) / seconds if seconds else 0.0,
        tokens_per_second=sum(each.tokens for each in good) / seconds if seconds else 0.0,
        waited=max(waits) if len(waits) == len(requests) else None,
        first_p50=p50,
        first_p95=p95,
    )


def _percentiles(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the 50th and the 95th, by linear interpolation between ranks."""
    if len(values) < 2:
        return (values[0], values[0]) if values else (None, None)
    ranks = statistics.quantiles(values, n=20, method="inclusive")
    return ranks[9], ranks[18]
