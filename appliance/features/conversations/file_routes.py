"""Conversations as files, and the text of documents: the routes below ``/api/conversations`` that take or give a file.

Answered by the gateway itself and not by Quart, which would copy a file of 100 MB several times. What is made of a file
counts against the budget of all bodies until it is stored or sent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import ClassVar
from urllib.parse import parse_qs, quote

import msgspec
import trio

from appliance.features.conversations.apart import MAX_DOCUMENT, Task, read_apart, room_in
from appliance.features.conversations.owner import Conversations
from appliance.features.conversations.paths import file_route
from appliance.http.bytes.body import Bodies
from appliance.http.errors import JSON_TYPE
from appliance.http.way.context import RequestContext
from appliance.traffic.request import Headers, send_whole

SLICE = 1 << 18
"""Bytes of an answer that are written at once: the part that a client does not take is copied with each try."""


class FileRoutes:
    """Answers these routes. The key and where the request comes from are checked already."""

    def __init__(self, conversations: Conversations, bodies: Bodies) -> None:
        self._conversations = conversations
        self._bodies = bodies

    async def answer(self, context: RequestContext) -> None:
        """Raises what `Conversations`, `read_apart` and reading the body raise."""
        await self.ROUTES[file_route(context.request)](self, context)

    async def _import(self, context: RequestContext) -> None:
        """A file of this program or of others; its content shows the format."""
        from appliance.features.conversations.core.files import each_arrived  # with what opens archives; few ask for it

        with room_in(self._bodies) as room:
            _, output = await read_apart("import", await context.body.read(), room)
            added, skipped = await self._conversations.add(each_arrived(output.take))
        content = msgspec.json.encode({"imported": added, "skipped": skipped})
        await send_whole(context.sink, 200, (JSON_TYPE,), content)

    async def _make(self, context: RequestContext, what: Task, most: int | None = None) -> None:
        """Answer with what another process makes of the body. Nothing is stored.

        ``unpack`` reads a file as `_import` does. ``document`` is the text of a PDF or Word document, for the question
        that it is attached to. ``pack`` is the file that `_export` gives, for a browser that keeps its conversations.
        """
        with room_in(self._bodies) as room:
            name, output = await read_apart(what, await context.read_body(most), room)
            await _send(context, _headers(name) if what == "pack" else (JSON_TYPE,), output.size, output.next)

    async def _export(self, context: RequestContext) -> None:
        """``?id=`` (repeatable) chooses; else everything. One is a JSON Lines file, several are a ZIP of them."""
        from appliance.features.conversations.core.files import named_files, write_export

        context.stay()
        kept = self._conversations
        chosen = parse_qs(context.request.target.partition("?")[2]).get("id")
        wholes = [await kept.read(each) for each in chosen or [each.id for each in (await kept.list()).conversations]]
        files = {each: await kept.attachment(each) for each in named_files(wholes)}
        name, content = await trio.to_thread.run_sync(write_export, wholes, files)
        await _send(context, _headers(name), len(content), partial(BytesIO(content).read, SLICE))

    ROUTES: ClassVar = {
        ("GET", "export"): _export,
        ("HEAD", "export"): _export,
        ("POST", "import"): _import,
        ("POST", "pack"): partial(_make, what="pack"),
        ("POST", "pdf"): partial(_make, what="document", most=MAX_DOCUMENT),
        ("POST", "text"): partial(_make, what="document", most=MAX_DOCUMENT),
        ("POST", "unpack"): partial(_make, what="unpack"),
    }
    """By `FILES`."""


def _headers(name: str) -> Headers:
    kind = b"application/zip" if name.endswith(".zip") else b"application/jsonl; charset=utf-8"
    named = f"attachment; filename*=UTF-8''{quote(name)}".encode()
    return (b"Content-Type", kind), (b"Content-Disposition", named), (b"Cache-Control", b"no-store")


async def _send(context: RequestContext, headers: Headers, size: int, read: Callable[[], bytes]) -> None:
    """Answer with what ``read`` returns, until it is nothing; ``size`` bytes in all."""
    context.sink.start(200, (*headers, (b"Content-Length", b"%d" % size)))
    while piece := read():
        await context.sink.write(piece)
    await context.sink.end()
