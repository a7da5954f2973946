"""The dialect of the Responses routes: a request as a chat completion, with the translator of its answer."""

from __future__ import annotations

import secrets
import time

from appliance.core.models.model import Model
from appliance.features.responses.core.answering import CountAnswer, ResponseAnswer
from appliance.features.responses.core.asking import Asked, asked_of, read_members
from appliance.http.way.context import ModelRequest
from appliance.http.way.dialect import CHAT_TOKENS, CHATS, Translated

PATHS = ("/v1/responses", "/responses")
COUNTS = tuple(f"{path}/input_tokens" for path in PATHS)
ROUTES = frozenset((*PATHS, *COUNTS, "/v/responses"))


class ResponsesDialect:
    """See `appliance.http.way.dialect.DialectReader`."""

    routes = ROUTES

    async def read(self, job: ModelRequest, model: Model | None) -> Translated:
        """Raises BadRequest that names the member."""
        counts = job.route.name in COUNTS
        asked = asked_of(read_members(job.body), streams=job.streams and not counts)
        path, answer = (CHAT_TOKENS, answer_to(asked, CountAnswer)) if counts else (CHATS, answer_to(asked))
        return Translated(path=path, body=asked.body, answer=answer, ignored=asked.ignored)


def answer_to(asked: Asked, kind: type[ResponseAnswer] = ResponseAnswer) -> ResponseAnswer:
    """Return the translator of the answer to a request that is sent now."""
    return kind(asked, secrets.token_hex(24), time.time)
