"""The dialect of the Responses routes: a request as a chat completion, with the translator of its answer."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from appliance.core.bodies.json_text import OBJECT, JsonObject
from appliance.core.lenient_json import decoded
from appliance.core.models.model import Model
from appliance.core.turns.documents import ReadText, texts_of
from appliance.http.way.context import ModelRequest
from appliance.http.way.dialect import CHAT_TOKENS, CHATS, Translated

if TYPE_CHECKING:
    from appliance.features.responses.core.answering import ResponseAnswer
    from appliance.features.responses.core.asking import AskedResponse

PATHS = ("/v1/responses", "/responses")
COUNTS = tuple(f"{path}/input_tokens" for path in PATHS)
ROUTES = frozenset((*PATHS, *COUNTS, "/v/responses"))
MAX_KEPT = 4 << 20  # bytes of items


class KeptItems:
    """The items of the last responses, in memory: some clients send their ids back, and not the items themselves.

    Ids are random: nobody can guess those of another client.
    """

    def __init__(self) -> None:
        self._items = OrderedDict[str, bytes]()
        self._size = 0

    def keep(self, id: str, item: bytes) -> None:
        self._items[id] = item
        self._size += len(item)
        while self._size > MAX_KEPT:
            _, oldest = self._items.popitem(last=False)
            self._size -= len(oldest)

    def find(self, id: str) -> JsonObject | None:
        return decoded(OBJECT, self._items.get(id, b""))


class ResponsesDialect:
    """See `appliance.http.way.dialect.DialectReader`. ``texts`` reads PDF and Word files, if anything does."""

    routes = ROUTES

    def __init__(self, texts: ReadText | None) -> None:
        self._texts = texts
        self._items = KeptItems()

    async def read(self, job: ModelRequest, model: Model | None) -> Translated:
        """Raises BadRequest that names the member, and Busy."""
        from appliance.features.responses.core.answering import ResponseTokens  # not for the start
        from appliance.features.responses.core.asking import asked_of, read_members

        counts = job.route.name in COUNTS
        members, streams = read_members(job.body), job.streams and not counts
        as_chat = partial(asked_of, members, streams=streams, known=self._items.find)
        asked = as_chat()
        if asked.unread:
            asked = as_chat(texts=await texts_of(asked.unread, self._texts))
        if counts:
            answer = ResponseTokens(asked, "", time.time)
        else:
            answer = answer_to(asked, self._items if asked.stores else None)
        return Translated(path=CHAT_TOKENS if counts else CHATS, body=asked.body, answer=answer, ignored=asked.ignored)


def answer_to(asked: AskedResponse, items: KeptItems | None = None) -> ResponseAnswer:
    """Return the translator of the answer to a request that is sent now. Its items are kept in ``items``."""
    from appliance.features.responses.core.answering import ResponseAnswer  # not for the start

    return ResponseAnswer(asked, secrets.token_hex(24), time.time, items.keep if items is not None else None)
