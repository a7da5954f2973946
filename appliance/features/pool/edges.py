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

import trio
from msgspec import structs

from appliance.errors import BadRequest
from appliance.features.pool.core.blobs import BLOBS, sha256_in, wanted_range
from appliance.features.pool.core.shapes import PoolState
from appliance.http.control.edge_routes import send_json
from appliance.http.kernel import Get, Kernel
from appliance.http.way.context import RequestContext
from appliance.traffic.request import Headers, send_whole

if TYPE_CHECKING:
    from appliance.features.pool.model_blobs import ModelFilesHere

PIECE = 1 << 18  # bytes that are read and written at once. Of what the system does not take, each try makes a copy.
log = logging.getLogger(__name__)


def state_get(kernel: Kernel, state: Callable[[], PoolState]) -> Get:
    async def show_pool(context: RequestContext) -> None:
        """The pool of boxes as this one sees it."""
        told = structs.replace(state(), may_change=kernel.settings.admin, listen=kernel.edge.url)
        await send_json(context, told)

    return show_pool


async def answer_blob(context: RequestContext, here: ModelFilesHere) -> None:
    """Answer with the list of a model's files, or one of them. Raises ApplianceError and ClientLeft."""
    request = context.request
    await context.read_body(0)
    if request.path == BLOBS:
        if not (model := request.query.get("model")):
            raise BadRequest(f"name a model, as in {BLOBS}?model=ID", param="model")
        await send_json(context, await here.files(model))
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
