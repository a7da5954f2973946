"""The edges of the pool: its state as this box sees it, and files of models for its other boxes.

The pieces of a file are read by a thread, and each is sent before the next is read: a client that reads slowly holds
one of them, and a client that leaves ends the request.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from io import FileIO
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import structs

from appliance.core.settings import HttpSettings
from appliance.errors import BadRequest
from appliance.features.pool.core.blobs import BLOBS, sha256_in, wanted_range
from appliance.features.pool.core.shapes import PoolState
from appliance.http.errors import JSON_TYPE
from appliance.http.route_facts import MAX_CONTROL_BODY
from appliance.http.way.context import RequestContext
from appliance.traffic.request import Headers, send_whole

if TYPE_CHECKING:
    from appliance.features.pool.model_blobs import ModelFilesHere

PIECE = 1 << 18  # bytes that are read and written at once. Of what the system does not take, each try makes a copy.
log = logging.getLogger(__name__)


class PoolStateRoute:
    """``GET /api/pool``: this box's pool as it sees it."""

    def __init__(self, state: Callable[[], PoolState], settings: HttpSettings, url: str) -> None:
        self._state, self._settings, self._url = state, settings, url

    async def answer(self, context: RequestContext) -> None:
        await context.body.read(MAX_CONTROL_BODY)
        state = structs.replace(self._state(), may_change=self._settings.admin, listen=self._url)
        await send_whole(context.sink, 200, (JSON_TYPE,), msgspec.json.encode(state))


class BlobRoutes:
    """GET and HEAD of ``/api/blobs``. ``files`` returns None while this box is in no pool."""

    def __init__(self, files: Callable[[], ModelFilesHere | None]) -> None:
        self._files = files

    async def answer(self, context: RequestContext) -> None:
        """Raises ApplianceError and ClientLeft."""
        files = self._files()
        assert files is not None  # else it is not asked
        await answer_blob(context, files)


async def answer_blob(context: RequestContext, here: ModelFilesHere) -> None:
    request = context.request
    await context.read_body(0)
    if request.path == BLOBS:
        if not (model := request.query.get("model")):
            raise BadRequest(f"name a model, as in {BLOBS}?model=ID", param="model")
        await send_whole(context.sink, 200, (JSON_TYPE,), msgspec.json.encode(await here.files(model)))
        return
    sha256 = sha256_in(request.path)
    with await here.open(sha256) as file:
        await _send(context, sha256, file)


async def _send(context: RequestContext, sha256: str, file: FileIO) -> None:
    """Answer 200, 206 or 416. The hash is the ETag: a file with it never changes."""
    request, sink, tag = context.request, context.sink, f'"{sha256}"'
    size = os.fstat(file.fileno()).st_size
    about: Headers = ((b"ETag", tag.encode()), (b"Accept-Ranges", b"bytes"))
    asks = request.method == "GET" and request.header(b"if-range") in (None, tag)
    part = wanted_range(request.header(b"range") if asks else None, size)
    if part is None:
        await send_whole(sink, 416, (*about, (b"Content-Range", b"bytes */%d" % size)))
        return
    whole = part == range(size)
    if not whole:
        about = (*about, (b"Content-Range", b"bytes %d-%d/%d" % (part.start, part.stop - 1, size)))
    length = len(part)
    kind = (b"Content-Type", b"application/octet-stream")
    sink.start(200 if whole else 206, (kind, (b"Content-Length", b"%d" % length), *about))
    rest = length if request.method == "GET" else 0
    file.seek(part.start)
    while rest:
        try:
            data = await trio.to_thread.run_sync(file.read, min(PIECE, rest))
        except OSError as error:
            log.warning("a file of a model cannot be read to its end: %s (%s)", error.strerror, sha256)
            data = b""
        if not data:
            sink.abort()  # the other box sees that the rest is missing
            return
        await sink.write(data)
        rest -= len(data)
    await sink.end()
