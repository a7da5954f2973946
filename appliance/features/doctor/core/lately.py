"""The last hour of a running server: processes that died again and again, failed requests, a full queue.

No single moment shows them: a model that has crashed five times works between two crashes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from shlex import quote

from appliance.core.examination import Deaths, Known, TurnedAway
from appliance.core.findings import Finding, error, note, some, warning
from appliance.core.records.history import Happening, Kind

HOUR = 3600.0  # seconds that are looked back
DEATHS: tuple[Kind, ...] = ("crashed", "failed", "hung")
LOOP = 3  # deaths of one model in the hour that make a loop
LEAST, SHARE = 5, 0.1  # the requests of a model that have to fail before it is said, and their share of all
NO_ROOM = ("busy", "concurrency_limit")  # the words of refusals for want of room or time


def deaths(happenings: Iterable[Happening]) -> tuple[Deaths, ...]:
    """Return the deaths by model, the most frequent first. ``happenings`` are the hour's, the oldest first."""
    counts: Counter[str] = Counter()
    last: dict[str, str] = {}
    for happening in happenings:
        if happening.kind in DEATHS:
            counts[happening.model] += 1
            last[happening.model] = happening.error or happening.kind
    return tuple(Deaths(model=model, count=count, last=last[model]) for model, count in counts.most_common())


def turned_away(happenings: Iterable[Happening]) -> tuple[TurnedAway, ...]:
    """Return the requests that were refused for want of room, by model, the most first."""
    counts: Counter[str] = Counter()
    for happening in happenings:
        if happening.kind == "refused" and happening.reason in NO_ROOM:
            counts[happening.model] += happening.requests
    return tuple(TurnedAway(model=model, count=count) for model, count in counts.most_common())


def looping(known: Known) -> dict[str, Deaths]:
    """Return the models whose processes die again and again, by their names."""
    return {one.model: one for one in known.lately.deaths if one.count >= LOOP}


def crash_loops(known: Known) -> Iterator[Finding]:
    now = {model.id: model.error for model in known.running}
    for one in looping(known).values():
        lines = (now.get(one.model) or one.last).splitlines()
        yield error(
            "crash-loop",
            f"The model '{one.model}' dies again and again",
            (f"{one.count} times in the last hour", *some(line for line in lines if line.strip())),
            "Its log has the reason. A smaller context, or another engine, often helps.",
            f"llama-appliance logs {quote(one.model)}",
            "llama-appliance events",
            model=one.model,
        )


def failing_requests(known: Known) -> Iterator[Finding]:
    for one in known.lately.requests:
        if one.failed >= LEAST and one.failed >= SHARE * one.ended:
            yield warning(
                "requests-fail",
                f"Requests to the model '{one.model}' fail",
                (f"{one.failed} of {one.ended} in the last hour", *some(one.last.splitlines()[:1])),
                "The traffic history has each of them, with its error.",
                "llama-appliance activity --failed",
                f"llama-appliance logs {quote(one.model)}",
                model=one.model,
            )
        elif one.refused >= LEAST and one.refused >= SHARE * one.ended:
            yield note(
                "requests-refused",
                f"Clients ask for '{one.model}' in a way that is refused",
                (f"{one.refused} of {one.ended} in the last hour", *some(one.last.splitlines()[:1])),
                "Each error says what to change. The traffic history names the client.",
                "llama-appliance activity --failed",
                model=one.model,
            )


def queue_full(known: Known) -> Iterator[Finding]:
    if known.lately.turned_away:
        yield warning(
            "queue-full",
            "Requests found no room, or waited too long for their model",
            some(f"{one.model}: {one.count} in the last hour" for one in known.lately.turned_away),
            "Raise queueLimit, queueTimeout or the model's concurrencyLimit, or use fewer models.",
            "llama-appliance top",
        )
