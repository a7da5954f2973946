"""The HTTP edge of the program: what it listens on, and serving until the end."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from appliance.core.settings import AlsoListen, HttpSettings, Listen, UnixSocket
from appliance.errors import UsageError
from appliance.http.bytes.connection import Answers
from appliance.http.bytes.listening import Listener, open_listeners, public_places
from appliance.http.bytes.server import Clients
from appliance.http.bytes.tls import Certificates
from appliance.http.way.progress import Pings
from appliance.platform.poller import Poller
from appliance.traffic.traffic import Lifetime
from appliance.trio_parts import beside

log = logging.getLogger(__name__)


class ServerSockets:
    """The sockets that the program listens on; clients that connect wait until `ApplianceServer.serve`."""

    def __init__(self, listeners: Sequence[Listener], certificates: Certificates | None) -> None:
        self.listeners = listeners
        self.certificates = certificates
        self.bound: Sequence[Listen] = public_places(listeners)
        self.found_at_home = len(self.bound) < len(listeners)
        """Commands of the same home find the server by themselves."""


@asynccontextmanager
async def open_listening(settings: HttpSettings) -> AsyncGenerator[ServerSockets]:
    """Raises UsageError when an address cannot be listened on, or a file of the certificate cannot be used."""
    certificates = Certificates(*settings.tls) if settings.tls is not None else None
    listeners = await open_listeners(settings.listen, reuse_port=settings.reuse_port)
    try:
        for each in settings.also:
            listeners += await _open_also(each, reuse_port=settings.reuse_port)
        yield ServerSockets(listeners, certificates)
    finally:
        for listener in listeners:
            listener.close()


async def _open_also(also: AlsoListen, *, reuse_port: bool) -> list[Listener]:
    """Raises UsageError as `open_listening`, with advice about the option that names this address."""
    own = also.place if isinstance(also.place, UnixSocket) and also.place.trusted else None
    try:
        if own is not None:
            Path(own.path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return await open_listeners([also.place], reuse_port=reuse_port and also.required)
    except (UsageError, OSError) as error:
        if own is not None:
            log.info("commands of this home do not find this server by themselves: %s", error)
            return []
        fault = str(error).partition(";")[0]  # behind it stands advice about --listen
        why = f"{fault}; choose another with {also.option}, or leave it out"
        if also.required:
            raise UsageError(why) from None
        log.warning("clients reach the other addresses alone: %s", why)
        return []


class ApplianceServer:
    """Serves the clients of one program. ``answers`` makes what has their requests answered.

    ``others`` waits for what else has to end within the grace.
    """

    def __init__(
        self,
        settings: HttpSettings,
        listening: ServerSockets,
        answers: Callable[[], Answers],
        poller: Poller,
        pings: Pings,
        lifetime: Lifetime,
        others: Callable[[], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._listening = listening
        self._answers = answers
        self._poller = poller
        self._pings = pings
        self._lifetime = lifetime
        self._others = others
        self.found_at_home = listening.found_at_home

    async def serve(
        self, shutdown: trio.Event, *, task_status: trio.TaskStatus[Sequence[Listen]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until ``shutdown`` is set, then end within ``settings.grace`` and about a second.

        ``started`` is called with the bound addresses. Raises before what ``answers`` raises of settings.
        """
        clients = Clients(self._answers(), self._poller, self._settings, self._listening.certificates)
        async with beside(self._pings.run):
            await clients.serve(
                self._listening.listeners,
                self._lifetime,
                shutdown=shutdown,
                grace=self._settings.grace,
                others=self._others,
                task_status=task_status,
            )
