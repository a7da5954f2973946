"""Whatever goes wrong in answering a request becomes an answer here."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable

from appliance.core.sse import ErrorInfo, error_record
from appliance.errors import ApplianceError
from appliance.http.bytes.body import BodyReader, ClientLeft
from appliance.http.way import errors
from appliance.http.way.routes import dialect_of
from appliance.traffic.request import Request
from appliance.traffic.sink import Headers, Sink, send_whole

log = logging.getLogger(__name__)


async def explaining(
    work: Callable[[], Awaitable[None]], sink: Sink, request: Request, reader: BodyReader | None = None
) -> bool:
    """Do ``work``, which writes into ``sink``. False: the client left before it had an answer.

    ``reader`` is None once the body has been read to its end.
    """
    dialect = dialect_of(request.path)
    try:
        await work()
    except ClientLeft:
        return False
    except ApplianceError as error:
        headers = errors.headers(error, close=reader is not None and not reader.complete)
        await _explain(sink, request, errors.describe(error, dialect), headers)
    except Exception:
        bug = secrets.token_hex(4)
        log.exception("internal error %s at %s %r; this is a bug", bug, request.method, request.path)
        await _explain(sink, request, errors.describe_bug(bug, dialect), errors.headers(None, close=True))
    return True


async def refuse(sink: Sink, info: ErrorInfo, headers: Headers = ()) -> None:
    """Answer a request whose body has not been read: the connection is closed."""
    await send_whole(sink, info.code, (*errors.headers(None, close=True), *headers), errors.body(info))


async def _explain(sink: Sink, request: Request, info: ErrorInfo, headers: errors.Headers) -> None:
    """Tell an error in the form that the answer's state still allows."""
    dialect = dialect_of(request.path)
    if sink.ended:
        return
    if sink.status is None:
        await send_whole(sink, info.code, headers, errors.body(info, dialect))
    elif sink.event_stream:
        await sink.write(error_record(dialect, info))
        await sink.end()
    else:
        sink.abort()
