"""Estimates of the memory that models take, as the fleet asks for them; and the one where nobody knows more.

Once a model runs, its process is measured (`fleet.budgets.corrected`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from appliance.core.engine import Engine, Manual
from appliance.core.machine_look import MachineLook
from appliance.core.memory import RAM, FitPlan, GpuMemory, Sizes
from appliance.core.models.model import Model
from appliance.core.scheduling.policy import NO_MEMORY

BESIDE_WEIGHTS = 1.1  # a file of which nothing else is known takes its size and a tenth more, until it was measured


class Estimate(Protocol):
    """Sizes are bytes by device, ``ram`` and ``gpu0`` on. Answers at once; `plan` and `why_refused` ask the system.

    ``manual`` is what the engine says of itself, ``engine_args`` are the server's own flags for each model. The bodies
    here are those of `PlainEstimate`.
    """

    why_unknown: str = "this program knows the sizes of files alone"
    """The reason why `plan` has none for a model that an engine starts, in words."""

    def budgets(self, look: MachineLook) -> Sizes:
        """The most that all models together may take, where the configuration does not say it."""
        return NO_MEMORY

    def squeeze(self, budgets: Sizes, samples: Mapping[str, GpuMemory], own: Sizes, before: Sizes) -> Sizes:
        """The budgets that hold while other programs use the GPUs.

        ``own`` is the use of our models there, ``before`` the previous result.
        """
        return budgets

    def expect(
        self, model: Model, room: Sizes = NO_MEMORY, manual: Manual | None = None, engine_args: tuple[str, ...] = ()
    ) -> Sizes:
        """The use of a model on disk, started with what is known of it. It is asked with every request.

        ``room`` are the budgets of the devices that its engine uses; without them all of it is expected in main memory.
        """
        return by_size(model)

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
        """Plan the start of a model on disk in the memory that is free, which is ``room``; None: nobody can.

        ``budget`` is what other models leave it of main memory, None for all; ``cached`` is the most that their caches
        of prompts may grow to.
        """
        return None

    def why_refused(
        self, model: Model, engine: Engine | None, room: Sizes, engine_args: tuple[str, ...], found: FitPlan | None
    ) -> str:
        """Why this program's group cannot take the model, with numbers; empty: it may be started.

        ``found`` is the plan in the memory that is free. Without one the group is taken to be empty but for this
        program, since all other models could go. ``engine`` is None for a command that may run elsewhere.
        """
        return ""


class PlainEstimate(Estimate):
    """A model takes its file's size and a tenth, in main memory. No start is planned or refused, no budget is set."""


def by_size(model: Model) -> Sizes:
    """Return the use of a model of which only the size of its files is known."""
    return {RAM: round(model.size * BESIDE_WEIGHTS)}
