"""Speed over time: which question was asked, the grid of its answer, and the curves on that grid.

However long the span is, a curve has at most `MAX_POINTS` points. ``store.speed`` computes the figures of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal, get_args

from msgspec import Struct, structs

from appliance.core.parameters import read_span, read_time, shown
from appliance.core.records.activity import parse_models
from appliance.core.records.history import Happening, Kind
from appliance.core.records.history_words import sentence
from appliance.errors import BadRequest

MAX_POINTS = 300
MAX_CURVES = 8  # models, clients or builds with a curve of their own, those with most requests; the others share one
MARKS: tuple[Kind, ...] = ("loaded", "engine", "reload")  # the kinds of entries in the timeline that `marks` looks at
MAX_MARKS = 100
DEFAULT_SPAN = "1d"
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_WIDTHS = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * n for n in (1, 2, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 5, 10, 15)),
)

By = Literal["model", "client", "build"]


class SpeedGrid(Struct, frozen=True):
    """Buckets of equal width, the last of which is under way. Times are Unix seconds."""

    start: int
    seconds: int  # Width of a bucket. Its multiples are the bounds, so that a later question has the same buckets.
    points: int

    @property
    def end(self) -> int:
        return self.start + self.points * self.seconds


class SpeedQuestion(Struct, frozen=True):
    by: By
    models: tuple[str, ...]  # only requests for these; empty: all
    grid: SpeedGrid


class SpeedFigures(Struct, frozen=True):
    """The figures of some requests. None: none of them told.

    Tokens a second are all tokens over all the time that they took, so that a long answer counts more than a short one.
    """

    requests: int
    prompt_per_second: float | None
    tokens_per_second: float | None
    first_token_p50_ms: int | None
    first_token_p95_ms: int | None
    waited_ms: float | None  # the mean wait for the model, loads included
    cached: float | None  # the share of the prompts' tokens that came from the cache
    accepted: float | None  # the share of the drafted tokens that the model accepted


class SpeedCurve(Struct, frozen=True):
    """The requests of one model, client or build. No ``name``: of all that have no curve of their own."""

    name: str | None
    total: SpeedFigures  # all of them together
    points: dict[str, list[float | None]]  # each figure by its name, along the grid


class SpeedMark(Struct, frozen=True):
    """A moment from which on speed may be another one: an entry of the timeline."""

    timestamp: datetime
    kind: str
    model: str
    why: str


class SpeedAnswer(Struct, frozen=True):
    """``GET /api/speed``."""

    start: datetime
    seconds: int
    points: int
    curves: list[SpeedCurve]
    marks: list[SpeedMark]


SpeedCell = tuple[str | None, int, SpeedFigures]
"""The name of a curve, the number of a bucket, and the figures of the requests there."""


def parse_speed_question(parameters: Mapping[str, Sequence[str]], now: datetime) -> SpeedQuestion:
    """Read the parameters of GET /api/speed. Raises BadRequest, which names the parameter.

    ``model`` may be repeated. Unknown parameters are ignored, as are blank ones.
    """
    first = {name: text for name, values in parameters.items() if values and (text := values[0].strip())}
    by = [each for each in get_args(By) if each == first.get("by", "model")]
    if not by:
        raise BadRequest(f"by must be one of {', '.join(get_args(By))}, not {shown(first['by'])}", param="by")
    span = read_span(first.get("span", DEFAULT_SPAN), "span")
    end = read_time(first["end"], "end") if "end" in first else now
    since_1970 = max(int(end.timestamp()), span)  # nothing was earlier, and no such time becomes a datetime again
    return SpeedQuestion(by[0], parse_models(parameters), grid_of(since_1970, span))


def grid_of(end: int, span: int) -> SpeedGrid:
    """Return the finest grid for this time before ``end``."""
    for width in _WIDTHS:
        first, last = (end - span) // width, end // width
        if last - first < MAX_POINTS:
            return SpeedGrid(first * width, width, last - first + 1)
    raise ValueError(f"a span of {span} s is longer than MAX_SPAN")


def curves(grid: SpeedGrid, cells: Iterable[SpeedCell], totals: Iterable[SpeedCell]) -> list[SpeedCurve]:
    """Lay the cells out along the grid; ``totals`` has one for each curve, in the order of the curves."""
    empty: dict[str, float | None] = {**dict.fromkeys(SpeedFigures.__struct_fields__), "requests": 0}
    found = {
        name: SpeedCurve(name, total, {figure: [nothing] * grid.points for figure, nothing in empty.items()})
        for name, _, total in totals
    }
    for name, bucket, figures in cells:
        for figure, value in structs.asdict(figures).items():
            found[name].points[figure][bucket] = value
    return list(found.values())


def marks(question: SpeedQuestion, entries: Iterable[Happening]) -> list[SpeedMark]:
    """Return the newest changes on the grid, of entries from the oldest on: of the best engine, of the configuration,
    and of the engine that a model is loaded on.
    """
    found: list[SpeedMark] = []
    seats: dict[str, str] = {}
    grid = question.grid
    for entry in entries:
        changes = not entry.error or entry.kind == "engine"
        if entry.kind == "loaded":
            changes = seats.get(entry.model, entry.engine) != entry.engine
            changes = changes and (not question.models or entry.model in question.models)
            seats[entry.model] = entry.engine
        if changes and grid.start <= entry.timestamp.timestamp() < grid.end:
            found.append(SpeedMark(entry.timestamp, entry.kind, entry.model, sentence(entry)))
    return found[-MAX_MARKS:]
