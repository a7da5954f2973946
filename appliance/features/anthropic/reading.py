"""A Messages request read for the model that it names: see `appliance.http.way.dialect`."""

from __future__ import annotations

from functools import partial

from appliance.core.models.abilities import may_read
from appliance.core.models.model import Model
from appliance.core.turns.documents import ReadText, texts_of
from appliance.http.way.context import ModelRequest
from appliance.http.way.dialect import CHAT_TOKENS, CHATS, Translated

COUNTS = ("/v1/messages/count_tokens", "/v/messages/count_tokens")
MESSAGES = ("/v1/messages", "/v/messages")


class MessagesReader:
    """The `DialectReader` of Anthropic's Messages. ``texts`` reads PDF and Word documents, if anything does."""

    routes = frozenset((*MESSAGES, *COUNTS))

    def __init__(self, texts: ReadText | None) -> None:
        self._texts = texts

    async def read(self, job: ModelRequest, model: Model | None) -> Translated:
        """See `appliance.http.way.dialect.DialectReader`."""
        from appliance.features.anthropic.core.answering import MessageAnswer, MessageTokens  # not for the start
        from appliance.features.anthropic.core.asking import chat_body, read_members

        members, counts = read_members(job.body), job.route.name in COUNTS
        as_chat = partial(chat_body, members, counts=counts, sees=may_read(model, "image"))
        asked = as_chat(texts={})
        if asked.unread:
            asked = as_chat(texts=await texts_of(asked.unread, self._texts))
        answer = MessageTokens() if counts else MessageAnswer(asked.model, asked.stops)
        return Translated(path=CHAT_TOKENS if counts else CHATS, body=asked.body, answer=answer, ignored=asked.ignored)
