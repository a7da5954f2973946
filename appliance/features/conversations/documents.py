"""The texts of documents for other features: `appliance.feature.ServerParts.texts`.

A client sends the documents of a conversation again with each request, so the last texts are kept. That also keeps the
prompt the same: a PDF that takes too long is read as far as the time goes, which differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from sys import getsizeof
from typing import TYPE_CHECKING

import msgspec
import trio

from appliance.errors import BadRequest, shortened
from appliance.features.conversations.apart import MAX_DOCUMENT, read_apart, room_in
from appliance.features.conversations.file_process import FileText

if TYPE_CHECKING:
    from appliance.feature import Assembled

MAX_KEPT = 16 << 20  # bytes of texts


class DocumentTexts:
    """Reads documents apart. ``assembled`` gives the program, whose budget of all bodies counts what is being read."""

    def __init__(self, assembled: Callable[[], Awaitable[Assembled]]) -> None:
        self._assembled = assembled
        self._kept: dict[bytes, str] = {}
        self._size = 0  # bytes of all that are kept

    async def __call__(self, name: str, data: bytes) -> str:
        """A `core.turns.documents.ReadText`."""
        try:
            return await self._text(data)
        except BadRequest as error:
            raise BadRequest(f"{shortened(name)}: {error}" if name else str(error)) from None

    async def _text(self, data: bytes) -> str:
        if len(data) > MAX_DOCUMENT:
            raise BadRequest(f"the file is larger than {MAX_DOCUMENT >> 20} MiB; take a part of it")
        key = await trio.to_thread.run_sync(lambda: hashlib.sha256(data).digest())
        if (text := self._forget(key)) is None:
            bodies = (await self._assembled()).kernel.edge.bodies
            with room_in(bodies) as room:
                _, output = await read_apart("document", data, room)
                found = msgspec.json.decode(output.take(output.size), type=FileText)
            cut = f"\n\n[the first {found.read} of {found.pages} pages]" if found.read < found.pages else ""
            text = found.text + cut
            self._forget(key)  # another request may have read it meanwhile
        self._kept[key] = text
        self._size += getsizeof(text)
        while self._size > MAX_KEPT:
            self._forget(next(iter(self._kept)))
        return text

    def _forget(self, key: bytes) -> str | None:
        text = self._kept.pop(key, None)
        self._size -= getsizeof(text) if text is not None else 0
        return text
