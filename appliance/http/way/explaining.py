"""Every failure of a request becomes an answer here."""

from __future__ import annotations

import logging
import secrets

from appliance.core.answers.forms import Begun
from appliance.core.bodies.sse import Dialect, ErrorInfo, error_record
from appliance.errors import ApplianceError, Busy
from appliance.http import errors
from appliance.http.bytes.body import ClientLeft
from appliance.http.way.context import RequestContext
from appliance.http.way.routes import Route, dialect_of
from appliance.traffic.request import Headers, Passing, Sink, send_whole
from appliance.trio_parts import lacking

log = logging.getLogger(__name__)


class _Followed(Passing):
    """A response's stream: its error continues what was sent."""

    def __init__(self, inner: Sink) -> None:
        super().__init__(inner)
        self.begun = Begun()

    def push(self, data: bytes) -> bool:
        self.begun.feed(data)
        return self.inner.push(data)


def followed(sink: Sink, route: Route | None) -> Sink:
    """Return the sink to answer on this route through, so that `explain` can end the answer."""
    return _Followed(sink) if route is not None and route.dialect is Dialect.RESPONSES else sink


def ending(sink: Sink, dialect: Dialect, info: ErrorInfo) -> bytes:
    """Return the record that ends a stream which ``sink`` has written so far."""
    outer: Sink | None = sink
    while isinstance(outer, Passing):
        if isinstance(outer, _Followed):
            return outer.begun.failed(info) or error_record(dialect, info)
        outer = outer.inner
    return error_record(dialect, info)


async def explain(context: RequestContext, error: Exception) -> None:
    """Tell an error in the form that the answer's state still allows. A bug is logged, and has a number in both."""
    request, sink, route = context.request, context.sink, context.route
    # A path below /upstream/ has the dialect of its rest. Where a sink translates, it does so from OpenAI's words.
    known = route is not None and route.dialect is not Dialect.OLLAMA
    dialect = route.dialect if route is not None and known else dialect_of(request.path)
    if why := lacking(error):
        error = Busy(f"the system is out of resources ({why})")
    match error:
        case ClientLeft():
            context.left = True
            return
        case ApplianceError():
            info = errors.describe(error, dialect)
            headers = errors.headers(error, close=not context.body.complete)
        case _:
            bug = secrets.token_hex(4)
            log.error("internal error %s at %s %r; this is a bug", bug, request.method, request.path, exc_info=error)
            info, headers = errors.describe_bug(bug, dialect), errors.headers(None, close=True)
    if sink.status is not None:
        context.fault, context.record.fault = info.code, info.message
    if sink.ended:
        return
    if sink.status is None:
        await send_whole(sink, info.code, headers, errors.body(info, dialect))
    elif sink.event_stream:
        await sink.write(ending(sink, dialect, info))
        await sink.end()
    else:
        sink.abort()


async def refuse(sink: Sink, info: ErrorInfo, headers: Headers = ()) -> None:
    """Answer a request whose body has not been read: the connection is closed."""
    await send_whole(sink, info.code, (*errors.headers(None, close=True), *headers), errors.body(info))
