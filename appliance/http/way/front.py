"""Everything that the front of one server works with, so that it is handed on as one thing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct, field

from appliance.agents.owner import Agents
from appliance.catalog.catalog import Catalog
from appliance.catalog.configuration import Configuration
from appliance.catalog.download_status import DownloadStatus
from appliance.catalog.downloads import Downloads
from appliance.catalog.reloads import Reloads
from appliance.core.captures import CaptureBuffer
from appliance.core.config.types import Config
from appliance.core.log_lines import LineStyle, LogToStdout
from appliance.core.settings import MIB, HttpSettings, Listen
from appliance.engines.owner import Engines
from appliance.fleet.owner import Fleet
from appliance.http.bytes.body import Bodies
from appliance.http.way.guard import Guard
from appliance.http.way.inward import Inward
from appliance.http.way.pings import Pings
from appliance.peers.listing import ModelState
from appliance.peers.owner import Peers
from appliance.platform.samples import Samples
from appliance.plugins.registry import Plugins
from appliance.streams.owner import Streams
from appliance.tools.box import Toolbox
from appliance.traffic.inflight import InFlight
from appliance.traffic.lifetime import Lifetime
from appliance.traffic.profile import ActiveProfile
from appliance.traffic.program_log import LogFeeds, ProgramLog
from appliance.traffic.record import Recorder
from appliance.traffic.targets import Targets
from appliance.upstream.pool import Pool


class Owners(Struct, frozen=True, kw_only=True):
    """What the composition root has opened. ``configuration`` is None without a configuration file."""

    engines: Engines
    fleet: Fleet
    catalog: Catalog
    peers: Peers
    recorder: Recorder
    samples: Samples
    program_log: ProgramLog
    streams: Streams
    inward: Inward
    agents: Agents
    plugins: Plugins
    downloads: Downloads | None = None
    """None where nothing is ever downloaded. Without a cache that is served it is only what presets name."""
    configuration: Configuration | None = None
    pool: Pool
    tools: Toolbox = field(default_factory=Toolbox)
    """Empty where no tool was switched on."""
    reloads: Reloads

    @property
    def config(self) -> Config | None:
        """The configuration in force."""
        return self.configuration.current if self.configuration is not None else None

    def model_states(self) -> list[ModelState]:
        """What another appliance is told of the models here."""
        return model_states(self.fleet)


def model_states(fleet: Fleet) -> list[ModelState]:
    """The models that have run here, in the words of the link between appliances."""
    return [ModelState(id=s.model, state=s.state, busy=s.leases + s.waiting) for s in fleet.status()]


class Front:
    """The state of one server beside its connections. ``bound`` are the addresses it listens on."""

    def __init__(self, settings: HttpSettings, owners: Owners, bound: Sequence[Listen]) -> None:
        self.settings = settings
        self.owners = owners
        self.bound = bound
        self.fleet = owners.fleet
        self.catalog = owners.catalog
        self.peers = owners.peers
        self.streams = owners.streams
        self.inward = owners.inward
        self.lifetime = Lifetime()
        self.guard = Guard(settings, bound)
        self.bodies = Bodies(settings)
        self.recorder = owners.recorder
        self.metrics = owners.recorder.metrics
        self.inflight = InFlight()
        self.pings = Pings(settings.ping_after)
        self.profile = ActiveProfile()
        self.targets = Targets(owners.catalog, owners.fleet, owners.peers, self.profile)
        self.logs = LogFeeds(owners.program_log, owners.fleet.logs, self._log_to_stdout)
        self._ignored: list[re.Pattern[str]] = []
        owners.fleet.observer = self.metrics
        if owners.configuration is not None:
            owners.configuration.followers.append(self.adopt)
            self.adopt(owners.configuration.current)

    def adopt(self, config: Config) -> tuple[str, ...]:
        """Follow this configuration from now on."""
        self.streams.adopt(config.streams)
        self.owners.agents.adopt(config.runs)
        self.guard.adopt((*self.settings.api_keys, *config.api_keys))
        self.owners.program_log.style = LineStyle(config.log_level, config.log_time_format)
        self._ignored = [re.compile(pattern) for pattern in config.upstream.ignore_paths]
        if self.profile.name not in config.profiles:
            self.profile.choose(None)
        if self.recorder.captures.limit != (limit := config.capture_buffer * MIB):
            self.recorder.captures = CaptureBuffer(limit)
        return ()

    def downloading(self) -> list[DownloadStatus]:
        """Downloads that are known, those that have ended included."""
        return self.owners.downloads.snapshot() if self.owners.downloads is not None else []

    def is_ignored(self, path: str) -> bool:
        """Whether ``/upstream/<model>`` with this rest never starts the model (``upstream.ignorePaths``)."""
        return any(pattern.search(path) for pattern in self._ignored)

    def _log_to_stdout(self) -> LogToStdout:
        config = self.owners.config
        return config.log_to_stdout if config is not None else "upstream"
