"""Everything that is known of the requests of one server, kept apart from how they arrive and who answers them."""

from __future__ import annotations

from collections.abc import Callable

from appliance.catalog.catalog import Catalog
from appliance.core.config.types import Config
from appliance.core.records.captures import CaptureBuffer
from appliance.core.records.log_lines import LineStyle
from appliance.core.units import MIB
from appliance.fleet.owner import Fleet
from appliance.peers.owner import Peers
from appliance.traffic.inflight import InFlight
from appliance.traffic.lifetime import Lifetime
from appliance.traffic.profile import ActiveProfile
from appliance.traffic.program_log import LogFeeds, ProgramLog
from appliance.traffic.record import Recorder
from appliance.traffic.targets import Targets


class Traffic:
    """Made once for each server. ``config`` tells the configuration in force, None where there is none."""

    def __init__(
        self, recorder: Recorder, catalog: Catalog, fleet: Fleet, peers: Peers, config: Callable[[], Config | None]
    ) -> None:
        self.recorder = recorder
        self.metrics = recorder.metrics
        self.inflight = InFlight()
        self.lifetime = Lifetime()
        self.profile = ActiveProfile()
        self.targets = Targets(catalog, fleet, peers, self.profile)
        self.program_log = ProgramLog(fleet.logs)
        self.logs = LogFeeds(
            self.program_log, fleet.logs, lambda: now.log_to_stdout if (now := config()) is not None else "upstream"
        )

    def adopt(self, config: Config) -> tuple[str, ...]:
        """Follow this configuration from now on. No model's process is replaced for it."""
        self.program_log.style = LineStyle(config.log_level, config.log_time_format)
        if self.profile.name not in config.profiles:
            self.profile.choose(None)
        if self.recorder.captures.limit != (limit := config.capture_buffer * MIB):
            self.recorder.captures = CaptureBuffer(limit)
        return ()
