"""The program as its own client: a request to its own model routes, without a socket, through the same pipeline."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import unquote

from appliance.core.bodies.head import read_query
from appliance.core.runs.inward import UNWATCHED, Watch
from appliance.http.way.handover import Handover, Reply, handed_over
from appliance.traffic.record import Record
from appliance.traffic.request import Request

JSON_TYPE = b"application/json"


Answer = Callable[[Request, Record, bytes, Handover], Awaitable[None]]
"""Has a request answered into a handover, as a client's would be; never raises an ApplianceError."""


class Inward:
    """The `Asker` of `core.runs.inward`: asks through ``answer``, the pipeline of clients' requests.

    Such a request has ``inward`` set: no slash command and no ``appliance`` member of its body is honoured, nothing
    is told while it waits, and no conversation id makes it outlive who asked.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    @asynccontextmanager
    async def ask(
        self, path: str, body: bytes, *, origin: str = "program", watch: Watch | None = None
    ) -> AsyncGenerator[Reply]:
        """POST the JSON ``body``. Raises what the pipeline raises before the answer's head; later, `Reply` does.

        Raises RouteNotFound for a path that belongs to no model. Leaving the block cancels the request; when the end
        of the answer has been received, its lease has been given back.
        """
        request = _request(path, body, origin)
        record = Record(request, request.path)
        record.admitted, record.watch = True, watch or UNWATCHED
        async with handed_over(record, partial(self._answer, request, record, body)) as reply:
            yield reply


def _request(path: str, body: bytes, origin: str) -> Request:
    raw, _, query = path.partition("?")
    length = str(len(body)).encode()
    return Request(
        method="POST",
        path=unquote(raw),
        target=path,
        query=read_query(query.encode()) if query else {},
        headers=((b"Content-Type", JSON_TYPE), (b"Content-Length", length)),
        http_version="1.1",
        client=origin,
        inward=True,
    )
