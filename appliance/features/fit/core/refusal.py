"""Decides that a model is not started, because its group's memory cannot take it: the kernel would end a process.

A machine without such a limit refuses nothing. There the kernel has swap, other programs make room, and a model that is
read from its file as it goes may work, slowly.
"""

from __future__ import annotations

from appliance.core.memory import RAM, FitPlan
from appliance.core.sizes import MIB
from appliance.features.fit.core.plan import RESERVE


def reserve_in(total: int) -> int:
    """Return the bytes that stay free where ``total`` is all that there is: a small group has more use for them."""
    return min(RESERVE, total // 8)


def why_refused(needed: int | FitPlan, left: int, limit: int) -> str:
    """Return why it is not started, with the numbers; empty: it may be. Sizes in bytes.

    ``needed`` is the plan of the model, which knows its smallest start, or what it takes of main memory as far as
    known. ``left`` is what its start can have of the group's ``limit``.
    """
    if isinstance(needed, FitPlan):
        needed = needed.memory[RAM].total if needed.verdict == "no" and RAM in needed.memory else 0
    kept = reserve_in(limit)
    if needed <= max(0, left - kept):
        return ""
    return (
        f"it takes {-(-needed // MIB)} MiB of main memory; the group of this program (a container, a service) may have "
        f"{limit // MIB} MiB, of which {left // MIB} MiB are left, and {kept // MIB} MiB stay free; choose a smaller "
        "model, fewer bits or less context, unload others, raise the limit (docker run --memory, MemoryMax= of the "
        "service), or start the server with --allow-overcommit"
    )
