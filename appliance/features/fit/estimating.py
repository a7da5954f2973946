"""The estimate that the fleet asks for: from the header of a model's file, the flags of its start, and the machine."""

from __future__ import annotations

import math
import time
from functools import lru_cache

from msgspec import structs

from appliance.catalog.headers import Headers
from appliance.core.engine import Engine, Manual
from appliance.core.memory import RAM, FitPlan, Sizes
from appliance.core.models.model import Model, start_flags
from appliance.core.models.shape import Shape
from appliance.core.scheduling.policy import NO_MEMORY
from appliance.features.fit.core.budget import budgets_of, reserve_in, squeezed, why_refused
from appliance.features.fit.core.options import asked_of
from appliance.features.fit.core.plan import plan
from appliance.fleet.budgets import in_bytes
from appliance.fleet.estimate import BESIDE_WEIGHTS, by_size
from appliance.platform.machine import group_memory, own_bytes, total_memory

LOOK_HOLDS = 1.0  # seconds for which the machine's memory, or its container's, is taken to be what it was
EXPECTATIONS = 256  # models whose estimates are kept; one takes about a millisecond, and every request asks


class HeaderEstimate:
    """See `appliance.fleet.estimate.Estimate`; it keeps nothing but what it has computed."""

    why_unknown = "its file does not say enough, or is not here yet"
    budgets = staticmethod(budgets_of)
    squeeze = staticmethod(squeezed)

    def __init__(self) -> None:
        self._reserve, self._looked_at = 0, -math.inf

    def expect(
        self, model: Model, room: Sizes = NO_MEMORY, manual: Manual | None = None, engine_args: tuple[str, ...] = ()
    ) -> Sizes:
        found = _planned(model, room, manual, engine_args)
        return found.by_device() if found is not None else by_size(model)

    def plan(
        self,
        model: Model,
        room: Sizes,
        manual: Manual | None = None,
        engine_args: tuple[str, ...] = (),
        *,
        budget: int | None = None,
        cached: int = 0,
    ) -> FitPlan | None:
        now = time.monotonic()
        if now > self._looked_at + LOOK_HOLDS:  # a look takes longer than the rest, and a list asks for each model
            self._reserve, self._looked_at = reserve_in(total_memory()), now
        # Memory that is free, but beyond the budget that the other models leave, is not this model's to take. It counts
        # as spoken for, like the caches that other models may still fill.
        beyond = max(0, room[RAM] - self._reserve - budget) if budget is not None else 0
        return _planned(model, room, manual, engine_args, self._reserve, cached + beyond)

    def why_refused(
        self, model: Model, engine: Engine | None, room: Sizes, engine_args: tuple[str, ...], found: FitPlan | None
    ) -> str:
        group = group_memory()
        if group is None:
            return ""
        (limit, left), needed = group, 0
        if found is None:
            left = max(0, limit - own_bytes())
            if model.config is not None and RAM in (said := in_bytes(model.config.memory)):
                needed = said[RAM]
            elif engine is not None:
                alone = {**room, RAM: left}
                found = self.plan(model, alone, engine.manual, engine_args) if model.config is None else None
                needed = 0 if len(alone) > 1 else model.size
        return why_refused(found or needed, left, limit)


def _planned(
    model: Model,
    room: Sizes,
    manual: Manual | None,
    engine_args: tuple[str, ...],
    reserve: int = 0,
    spoken_for: int = 0,
) -> FitPlan | None:
    """None where the model's file does not say enough. Asks the disk for the sizes of its companions."""
    shape = model.info.shape if model.info is not None else None
    if shape is None:
        return None
    companions = _companions(model.mmproj, model.draft, model.created)
    return _plan(shape, start_flags(model, engine_args), companions, tuple(room.items()), manual, reserve, spoken_for)


# A folder holds the same model under several names, and in several finetunes, which take the same memory.
@lru_cache(maxsize=EXPECTATIONS)
def _plan(
    shape: Shape,
    flags: tuple[str, ...],
    companions: tuple[int, Shape | None],
    room: tuple[tuple[str, int], ...],
    manual: Manual | None,
    reserve: int,
    spoken_for: int,
) -> FitPlan:
    gpus, (projector, draft) = [device for device, _ in room if device != RAM], companions
    asked = structs.replace(asked_of(flags, gpus=gpus, manual=manual), projector=projector, draft=draft)
    return plan(shape, dict(room), asked, reserve=reserve, spoken_for=spoken_for)


@lru_cache(maxsize=EXPECTATIONS)
def _companions(projector: str | None, draft: str | None, as_of: int) -> tuple[int, Shape | None]:
    """Bytes of the projector's file, and the draft model's shape; asks the disk once for each pair of files.

    ``as_of`` is when the model itself was last changed. A draft model whose header tells nothing counts by its size.
    """
    headers = Headers()
    size = headers.read(projector).size if projector else 0
    drafting = headers.read(draft) if draft else None
    if drafting is None or drafting.info is None or drafting.info.shape is None:
        return size + (round(drafting.size * BESIDE_WEIGHTS) if drafting is not None else 0), None
    return size, drafting.info.shape
