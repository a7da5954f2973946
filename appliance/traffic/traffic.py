"""Everything that is known of the requests of one server, kept apart from how they arrive and who answers them.

`Lifetime` holds the work under way when the server ends, so that it can be ended in order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import trio

from appliance.catalog.catalog import Catalog
from appliance.core.config.types import Config
from appliance.core.parts import MIB
from appliance.core.records.captures import CaptureBuffer
from appliance.core.records.log_lines import LineStyle
from appliance.errors import Busy, ShuttingDown
from appliance.fleet.owner import Fleet
from appliance.peers.owner import Peers
from appliance.traffic.inflight import InFlight
from appliance.traffic.program_log import LogFeeds, ProgramLog
from appliance.traffic.record import Recorder
from appliance.traffic.targets import ActiveProfile, Targets

MAX_FEEDS = 64
"""Endless answers with news (events, logs) at once. Each costs every request about a millisecond of the processor."""
Cancel = Callable[[Exception], None]
"""Ends something under way, and says why. It does not raise."""


class _UnderWay:
    """One kind of work; all of it ends together."""

    def __init__(self) -> None:
        self._cancels: set[Cancel] = set()
        self._ended = False

    def begin(self, cancel: Cancel) -> None:
        """Call ``cancel`` with ShuttingDown when the time comes; now, if it is over."""
        self._cancels.add(cancel)
        if self._ended:
            cancel(ShuttingDown())

    def end(self, cancel: Cancel) -> None:
        """It has ended by itself."""
        self._cancels.discard(cancel)

    @contextmanager
    def block(self) -> Generator[trio.CancelScope]:
        """The block is cancelled when the time comes."""
        with trio.CancelScope() as scope:

            def cancel(_: Exception) -> None:
                scope.cancel()

            self.begin(cancel)
            try:
                yield scope
            finally:
                self.end(cancel)

    def cancel(self) -> None:
        self._ended = True
        for cancel in tuple(self._cancels):
            cancel(ShuttingDown())


class Feeds:
    """The endless answers with news that are being read, up to `MAX_FEEDS`."""

    def __init__(self) -> None:
        self.open = 0

    def check(self) -> None:
        """Raises Busy if there are as many as there may be."""
        if self.open >= MAX_FEEDS:
            raise Busy(f"{MAX_FEEDS} clients read events and logs already; close one of them", retry_after=10.0)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Count one more in the block."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


class Lifetime:
    """Followers (endless log streams) end as soon as the server begins to end, requests after the grace."""

    def __init__(self) -> None:
        self.requests = _UnderWay()
        self.feeds = Feeds()
        self._followers = _UnderWay()
        self.follower = self._followers.block
        self.end_followers = self._followers.cancel
        self.end_requests = self.requests.cancel


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
