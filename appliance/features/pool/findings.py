"""The pool in the doctor's examination."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from appliance.core.examination import Examiner, Known, OwnFacts
from appliance.core.findings import Told, Trouble, warning


class PoolExamined(OwnFacts, frozen=True, kw_only=True):
    """Its facts are `ServerFact.pool`."""

    def findings(self, known: Known) -> Sequence[Told]:
        problems = known.server.pool if known.server is not None else ()
        title = "Something is wrong with this box's place in its pool"
        told = [warning("pool", title, one.text, f"{one.fix[:1].upper()}{one.fix[1:]}.") for one in problems]
        return (("others", told),)


def pool_examiner(problems: Callable[[], Sequence[Trouble]] | None = None) -> Examiner:
    """``problems`` are those of this box's place; None: of a command, which is in no pool."""

    async def look(known: Known, _: str) -> tuple[Known, OwnFacts]:
        if problems is not None and known.server is not None:
            known = structs.replace(known, server=structs.replace(known.server, pool=tuple(problems())))
        return known, PoolExamined()

    return Examiner(part="the pool", facts=PoolExamined, look=look)
