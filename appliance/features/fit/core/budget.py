"""Limits of memory: what all models together may use, the rest when other programs use some, and a group's own limit.

Budgets refuse nobody. Where a group (a container, a service) limits memory, a model beyond it is not started, because
the kernel would end a process. A machine without such a limit has swap, other programs make room, and a model that is
read from its file as it goes may work, slowly.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.core.machine_look import MachineLook
from appliance.core.memory import RAM, FitPlan, GpuMemory, Sizes
from appliance.core.scheduling.policy import NO_MEMORY
from appliance.core.sizes import GIB, MIB
from appliance.features.fit.core.plan import RESERVE

RAM_RESERVE, GPU_RESERVE = 2 * GIB, GIB  # bytes that are left to others


def budgets_of(look: MachineLook) -> Sizes:
    """Return bytes by device, ``gpu<i>`` in the order of ``look.gpus``. At least half of a device is for models.

    A GPU that does not report its memory, or has none of its own, has no budget.
    """
    budgets = {RAM: _beside(look.memory_total, RAM_RESERVE)} if look.memory_total > 0 else {}
    for number, gpu in enumerate(look.gpus):
        if gpu.total and gpu.total > 0 and not gpu.integrated:
            budgets[f"gpu{number}"] = _beside(gpu.total, GPU_RESERVE)
    return budgets


def squeezed(budgets: Sizes, samples: Mapping[str, GpuMemory], own: Sizes, before: Sizes = NO_MEMORY) -> Sizes:
    """The budgets that hold while others use the GPUs.

    Use of a GPU beyond ``own``, the sum of our models there, belongs to others: a game, another program. Its budget is
    the rest, less the reserve, never more than the configured one. ``before`` is the previous result: a budget goes
    down at once, and up again only by a quarter of the reserve or more, so that a display with small changes does not
    make models come and go. Devices without a sample keep their budget.
    """
    now = dict(budgets)
    for device, most in budgets.items():
        sample = samples.get(device)
        if sample is None or sample.total <= 0:
            continue
        others = max(0, sample.used - own.get(device, 0))
        left = min(most, max(0, sample.total - others - GPU_RESERVE))
        last = before.get(device, most)
        now[device] = last if last < left < min(most, last + GPU_RESERVE // 4) else left
    return now


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


def _beside(total: int, reserve: int) -> int:
    return max(total - reserve, total // 2)
