"""Everything that is known of the requests of one server, kept apart from how they arrive and who answers them.

`Lifetime` holds the work under way when the server ends, so that it can be ended in order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import trio

from appliance.catalog.catalog import Catalog
from appliance.catalog.supply import Supply
from appliance.core.config.types import Config
from appliance.core.records.captures import CaptureBuffer
from appliance.core.records.log_lines import LineStyle
from appliance.core.sizes import MIB
from appliance.errors import Busy, ShuttingDown, Unauthorized
from appliance.fleet.owner import Fleet
from appliance.traffic.inflight import InFlight
from appliance.traffic.metrics import Metrics
from appliance.traffic.other_servers import OtherServers
from appliance.traffic.program_log import LogFeeds, ProgramLog
from appliance.traffic.recorder import Recorder
from appliance.traffic.request import Request
from appliance.traffic.targets import ActiveProfile, Targets

MAX_FEEDS = 128
"""Endless answers at once. A page that is looked at has one, and one more while it reads an answer that another page
asked for. Each costs the processor up to 0.2 ms for each request, and 0.15 % of its time where nothing happens.
"""
Cancel = Callable[[Exception], None]
"""Ends something under way, and says why. It does not raise."""


class _UnderWay:
    """One kind of work; all of it ends together."""

    def __init__(self) -> None:
        self._cancels: dict[Cancel, Request | None] = {}
        self.ended = False

    def begin(self, cancel: Cancel, request: Request | None = None) -> None:
        """Call ``cancel`` with ShuttingDown when the time comes; now, if it is over. ``request`` began it."""
        self._cancels[cancel] = request
        if self.ended:
            cancel(ShuttingDown())

    def end(self, cancel: Cancel) -> None:
        """It has ended by itself."""
        self._cancels.pop(cancel, None)

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
        self.ended = True
        for cancel in tuple(self._cancels):
            cancel(ShuttingDown())

    def revoke(self, is_revoked: Callable[[Request], bool]) -> None:
        """End what requests have begun whose key lets nobody in any more."""
        for cancel, request in tuple(self._cancels.items()):
            if request is not None and is_revoked(request):
                cancel(Unauthorized())


class Feeds:
    """The endless answers that are being read, up to `MAX_FEEDS`: events, logs, kept streams, websockets of these."""

    def __init__(self) -> None:
        self.open = 0

    @contextmanager
    def reading(self) -> Generator[None]:
        """Count one more in the block. Raises Busy if there are as many as there may be."""
        if self.open >= MAX_FEEDS:
            told = f"{MAX_FEEDS} clients read events, logs and kept streams already; close one of them"
            raise Busy(told, retry_after=10.0)
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
        self.drained = False
        """Others send this server nothing new, and what comes is answered."""
        self._followers = _UnderWay()
        self.follower = self._followers.block
        self.end_followers = self._followers.cancel
        self.end_requests = self.requests.cancel

    def drain(self, drained: bool) -> None:
        """Take what the pool says of this box."""
        self.drained = drained

    @property
    def stopping(self) -> bool:
        """True from the first stop signal on."""
        return self._followers.ended


class Traffic:
    """Made once for each server. ``config`` tells the configuration in force, None where there is none."""

    def __init__(
        self,
        recorder: Recorder,
        metrics: Metrics,
        catalog: Catalog,
        fleet: Fleet,
        peers: OtherServers,
        supply: Supply,
        config: Callable[[], Config | None],
    ) -> None:
        self.recorder = recorder
        recorder.rooms = fleet.cache_rooms
        recorder.session_headers = _session_headers(config() or Config())
        self.metrics = metrics
        self.inflight = InFlight()
        self.lifetime = Lifetime()
        self.profile = ActiveProfile()
        self.targets = Targets(catalog, fleet, peers, supply, self.profile)
        self._processes = fleet.logs
        self.program_log = ProgramLog(fleet.logs)
        self.logs = LogFeeds(
            self.program_log, fleet.logs, lambda: now.log_to_stdout if (now := config()) is not None else "upstream"
        )

    def adopt(self, config: Config) -> tuple[str, ...]:
        """Follow this configuration from now on. No model's process is replaced for it."""
        from appliance.core.config.secret_places import secrets_of  # a millisecond of the start

        self._processes.know(None, secrets_of(config))
        self.program_log.style = LineStyle(config.log_level, config.log_time_format)
        if self.profile.name not in config.profiles:
            self.profile.choose(None)
        if self.recorder.captures.limit != (limit := config.capture_buffer * MIB):
            self.recorder.captures = CaptureBuffer(limit)
        self.recorder.settle()  # requests that are over belong to what was in force before
        self.recorder.session_headers = _session_headers(config)
        return ()


def _session_headers(config: Config) -> tuple[bytes, ...]:
    names = (name.lower().encode("latin-1", "replace") for name in config.ui.activity.session_id)
    return (*names, b"x-conversation-id")
