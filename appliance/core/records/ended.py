"""A request that is over: its facts, and the parts of its time.

The row, the counters and whatever observers make of a request are made of this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

from msgspec import Struct

from appliance.core.headers import Headers
from appliance.core.records.accounting import Usage

LEAST = 0.005
"""Seconds. A shorter wait is left out: the loop takes as long between two of its tasks."""
MOST_PARTS = 40
_NO_NAME = re.compile(r"[^\w. -]")

StepName = Literal["wait", "tool", "fallback"]
PartName = Literal["wait", "load", "prompt", "answer", "tool", "fallback"]


class Step(Struct):
    """One step on a request's way, in seconds of any clock. A step without an end has ended with its request."""

    name: StepName
    began: float
    ended: float | None = None
    label: str = ""
    """The tool's name, or what became of the answer."""
    load: tuple[float, float] | None = None
    """The model's load within a wait: how many seconds before the end of the wait it began, and was over."""


class TimePart(Struct, frozen=True):
    """One part of a request's time. ``label`` is that of its step."""

    name: PartName
    began: float
    ended: float
    label: str = ""


class EndedRequest(Struct, frozen=True):
    """The facts of a request that is over. Its times are of the clock of its steps; ``epoch`` is Unix time at 0 of it.

    It holds no prompt and no answer. ``headers`` are those of the client, its key among them.
    """

    route: str
    headers: Headers
    requested: str  # the model's name as the client wrote it
    model: str
    known: bool  # there is such a model; nobody was asked otherwise
    streaming: bool
    status: int
    fault: str | None  # why the answer broke off
    error: str | None  # the text of an error's answer
    usage: Usage | None
    metadata: dict[str, str]
    steps: Sequence[Step]
    build: str  # the id of the engine that had it; empty if that is not known
    began: float
    first_byte: float | None
    first_token: float | None  # the time of the first token, where the answer is a stream
    ended: float
    epoch: float

    def first_token_ms(self) -> int:
        """Return when the first token of a good answer was there; -1: unknown.

        Of an answer in one piece only its engine knows.
        """
        if self.status != 200 or (usage := self.usage) is None:
            return -1
        if self.streaming:
            return round((self.first_token - self.began) * 1000) if self.first_token is not None else -1
        return max(round((self.ended - self.began) * 1000 - usage.answer_ms), 0) if usage.answer_ms >= 0 else -1


def parts_text(request: EndedRequest) -> str:
    """Return the parts in words for a row of the activity log: ``wait 1200, load 3400, prompt 80, answer 2000``, in ms.

    Nothing if one engine had the request all the time, because then the row says all of that. A tool's name is behind
    the word. Of more than `MOST_PARTS` parts it has the first.
    """
    parts = list(islice(parts_of(request), MOST_PARTS))
    if {part.name for part in parts} <= {"prompt", "answer"}:
        return ""
    names = (f"tool {_NO_NAME.sub('_', part.label)}" if part.name == "tool" else part.name for part in parts)
    return ", ".join(
        f"{name} {round(1000 * max(part.ended - part.began, 0))}" for name, part in zip(names, parts, strict=True)
    )


def parts_of(request: EndedRequest) -> Iterator[TimePart]:
    """Return the parts of the request's time, in their order.

    Between the end of a wait and the next step an engine has the request. Between a tool or a fallback and the next
    wait only the program works, for less than a millisecond.
    """
    steps = sorted(request.steps, key=lambda step: step.began)
    waits_first = bool(steps) and steps[0].name == "wait"
    asked = request.began if request.known and not waits_first else None
    for step in steps:
        ended = request.ended if step.ended is None else step.ended
        if asked is not None:
            yield from _engine(request, asked, step.began, last=False)
        asked = ended if step.name == "wait" and step.ended is not None else None
        if step.name == "wait":
            yield from _wait(step, ended)
        else:
            yield TimePart(step.name, step.began, ended, step.label)
    if asked is not None:
        yield from _engine(request, asked, request.ended, last=True)


def _wait(step: Step, ended: float) -> Iterator[TimePart]:
    """A load is a part of its own; the request may have waited before it for room, and after it for its turn."""
    began, over = (ended - ago for ago in step.load) if step.load is not None else (ended, ended)
    for part in TimePart("wait", step.began, began), TimePart("load", began, over), TimePart("wait", over, ended):
        if part.ended - part.began >= LEAST:
            yield part


def _engine(request: EndedRequest, began: float, ended: float, *, last: bool) -> Iterator[TimePart]:
    """The first token of a stream divides prompt and answer. Of a whole answer the engine tells how long it took."""
    first = request.first_token if request.streaming else None
    if first is None and last and (usage := request.usage) is not None and usage.answer_ms >= 0:
        first = ended - usage.answer_ms / 1000
    divide = began if first is None else min(max(first, began), ended)
    if divide > began:
        yield TimePart("prompt", began, divide)
    if ended > divide:
        yield TimePart("answer", divide, ended)
