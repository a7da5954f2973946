"""The state of a fleet: its models, their processes, and the requests for them. Its parts share one."""

from __future__ import annotations

import logging
from collections.abc import Callable

from appliance.core.config.types import Config
from appliance.core.followers import Followers
from appliance.core.models.model import Model
from appliance.core.records.cache_misses import CacheRoom
from appliance.core.records.history import Tell
from appliance.core.scheduling.effects import ProcessState
from appliance.core.scheduling.policy import FreePolicy
from appliance.core.scheduling.schedule import Schedule
from appliance.core.scheduling.waiting import LoadTimes
from appliance.core.settings import FleetSettings
from appliance.fleet.budgets import Budgets
from appliance.fleet.estimate import Estimate
from appliance.fleet.lease import Lease
from appliance.fleet.logs import Logs
from appliance.fleet.run import ModelRun
from appliance.fleet.status import Ends
from appliance.trio_parts import Changed

log = logging.getLogger("appliance.fleet.owner")
"""The log has one name for a fleet, whichever part of it writes."""


class FleetState:
    """Owned by the fleet. A change of it awaits nothing. ``tell`` is called with each decision and event."""

    def __init__(self, settings: FleetSettings, logs: Logs, tell: Tell, estimate: Estimate) -> None:
        self.settings, self.logs, self.tell = settings, logs, tell
        self.config: Config | None = None
        self.budgets = Budgets(settings, estimate)
        self.schedule = Schedule(self.budgets.limits(None), FreePolicy())
        self.runs: dict[str, ModelRun] = {}
        self.load_times = LoadTimes()
        self.asked: dict[int, Lease] = {}
        """Every lease that is not over, by its ticket."""
        self.current: dict[str, Model] = {}
        """The models of the configuration in force."""
        self.models: dict[str, Model] = {}
        """The models that somebody has asked for."""
        self.ends = Ends()
        self.kept: dict[str, float] = {}
        """Seconds that clients wish idle models to stay; each wish ends with the process."""
        self.cache_rooms: dict[str, CacheRoom] = {}
        """The room for prompts that the latest process of each model has, or had."""
        self.waits = Followers[Callable[[str, float], None]]()
        """Each request that gets its model, after a wait of so many seconds: too many for ``tell``."""
        self.closing = False
        self.changed = Changed()

    @property
    def ended(self) -> bool:
        """True if the fleet takes no more work, and every process is gone."""
        return self.closing and not self.schedule.models()

    def is_ready(self, model_id: str) -> bool:
        """True if a request for it would be served at once."""
        return self.schedule.state(model_id) is ProcessState.READY
