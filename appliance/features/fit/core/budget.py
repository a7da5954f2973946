"""Memory budgets: what all models together may use, what is free now, and the rest when other programs use some."""

from __future__ import annotations

from collections.abc import Mapping

from appliance.core.machine_look import MachineLook
from appliance.core.memory import RAM, GpuMemory, Sizes
from appliance.core.scheduling.policy import NO_MEMORY
from appliance.core.sizes import GIB

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


def _beside(total: int, reserve: int) -> int:
    return max(total - reserve, total // 2)
