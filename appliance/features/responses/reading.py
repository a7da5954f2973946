"""The dialect of the Responses routes: a request as a chat completion, with the translator of its answer."""

from __future__ import annotations

import secrets
import time
from functools import partial
from typing import TYPE_CHECKING

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


class ResponsesDialect:
    """See `appliance.http.way.dialect.DialectReader`. ``texts`` reads PDF and Word files, if anything does."""

    routes = ROUTES

    def __init__(self, texts: ReadText | None) -> None:
        self._texts = texts

    async def read(self, job: ModelRequest, model: Model | None) -> Translated:
        """Raises BadRequest that names the member, and Busy."""
        from appliance.features.responses.core.answering import ResponseAnswer, ResponseTokens  # not for the start
        from appliance.features.responses.core.asking import asked_of, read_members

        counts = job.route.name in COUNTS
        as_chat = partial(asked_of, read_members(job.body), streams=job.streams and not counts)
        asked = as_chat()
        if asked.unread:
            asked = as_chat(texts=await texts_of(asked.unread, self._texts))
        path, kind = (CHAT_TOKENS, ResponseTokens) if counts else (CHATS, ResponseAnswer)
        return Translated(path=path, body=asked.body, answer=answer_to(asked, kind), ignored=asked.ignored)


def answer_to(asked: AskedResponse, kind: type[ResponseAnswer]) -> ResponseAnswer:
    """Return the translator of the answer to a request that is sent now."""
    return kind(asked, secrets.token_hex(24), time.time)
