"""The collector in the doctor's examination."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from appliance.core.examination import Examiner, Known, OwnFacts
from appliance.core.findings import Finding, Told, warning


class TracesExamined(OwnFacts, frozen=True, kw_only=True):
    """Its fact is `ServerFact.traces`."""

    def findings(self, known: Known) -> Sequence[Told]:
        return (("server", not_taken(known)),)


def not_taken(known: Known) -> Iterator[Finding]:
    if known.server is not None and known.server.traces:
        yield warning(
            "traces-not-taken",
            "The collector does not take the traces of requests",
            known.server.traces,
            "Start the collector, correct 'tracing' in the configuration, or take that section out.",
        )


def traces_examiner(failing: Callable[[], str] | None = None) -> Examiner:
    """``failing`` returns the words for a collector that does not take traces; None: of a command, which sends none."""

    async def look(known: Known, _: str) -> tuple[Known, OwnFacts]:
        if failing is not None and known.server is not None:
            known = structs.replace(known, server=structs.replace(known.server, traces=failing()))
        return known, TracesExamined()

    return Examiner(part="traces", facts=TracesExamined, look=look)
