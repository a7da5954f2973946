"""The dialect of the Responses routes: a request as a chat completion, with the translator of its answer."""

from __future__ import annotations

import secrets
import time

from appliance.core.models.model import Model
from appliance.errors import BadRequest
from appliance.features.responses.core.answering import CountAnswer, ResponseAnswer
from appliance.features.responses.core.asking import Asked, asked_of, read_members
from appliance.http.way.context import ModelRequest
from appliance.http.way.dialect import CHAT_TOKENS, Translated

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
        for binary in asked.binaries:
            why = "is not a text file; only text files are read here, so send the text of this one"
            raise BadRequest(f"'{binary.path}' ({binary.name}) {why}", param=binary.path)
        if counts:
            return Translated(path=CHAT_TOKENS, body=asked.body, answer=CountAnswer(), ignored=asked.ignored)
        return Translated(body=asked.body, answer=answer_to(asked), ignored=asked.ignored)


def answer_to(asked: Asked) -> ResponseAnswer:
    """Return the translator of the answer to a request that is sent now."""
    return ResponseAnswer(asked, secrets.token_hex(24), time.time)
