"""The HTTP edge of the program, from its listening sockets to its end."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from appliance.core.settings import HttpSettings, Listen
from appliance.http.bytes.listening import open_listeners
from appliance.http.bytes.server import Clients, serve_clients
from appliance.http.bytes.tls import Certificates
from appliance.http.way.front import Front, Owners
from appliance.http.way.gateway import Gateway


async def serve(
    settings: HttpSettings,
    owners: Owners,
    *,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[Sequence[Listen]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``shutdown`` is set, then end within ``settings.grace`` and about a second.

    ``started`` is called with the bound addresses. Raises UsageError when an address cannot be listened on, or a file
    of the certificate cannot be used.
    """
    certificates = Certificates(*settings.tls) if settings.tls is not None else None
    listeners = await open_listeners(settings.listen, reuse_port=settings.reuse_port)
    try:
        front = Front(settings, owners, [listener.bound for listener in listeners])
        clients = Clients(Gateway(front), owners.pool.poller, settings, certificates)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(front.pings.run)
            await serve_clients(
                listeners,
                clients,
                front.lifetime,
                shutdown=shutdown,
                grace=settings.grace,
                others=owners.agents.wait_ended,
                task_status=task_status,
            )
            nursery.cancel_scope.cancel()
    finally:
        for listener in listeners:
            listener.close()
