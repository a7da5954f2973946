"""Vertex AI's route: one POST holds many requests, each for a route of its own.

Source: llama-server of llama.cpp b11434 and Google's requirements for custom containers (``AIP_*`` variables).
"""

from __future__ import annotations

import msgspec
import trio
from msgspec import Raw

from appliance.core.lenient_json import UNREADABLE
from appliance.core.runs.inward import Asker
from appliance.errors import ApplianceError, BadRequest, UsageError
from appliance.http import errors
from appliance.http.way.context import RequestContext
from appliance.http.way.routes import POSTED
from appliance.traffic.request import PUBLIC_PATHS, Request, send_whole

FORMAT = "@requestFormat"
MAX_INSTANCES = 128
"""At once in one request, as in llama-server."""
MAX_PREDICTION = 16 << 20
_OFF = Raw(b"false")


def alias_of(path: str) -> str:
    """``/v1/chat/completions`` is ``chatCompletions``."""
    first, *rest = path.removeprefix("/v1").strip("/").replace("-", "/").replace("_", "/").split("/")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


class Predict:
    """Answers the route. Raises UsageError when its path is another route's."""

    def __init__(self, path: str, inward: Asker) -> None:
        self.path = path
        self._inward = inward
        if self.path in PUBLIC_PATHS or self.path in POSTED:
            raise UsageError(f"AIP_PREDICT_ROUTE={self.path} is a route of the server already; choose another path")
        # Where two routes share an alias, it means the one with a version.
        self._formats = {alias_of(path): path for path in sorted(POSTED)} | {path: path for path in POSTED}

    def answers(self, request: Request) -> bool:
        return request.path == self.path and request.method == "POST"

    async def answer(self, context: RequestContext) -> None:
        """All at once; a failure of one is its prediction. Raises BadRequest for the whole, and ClientLeft."""
        instances = _instances(await context.read_body())
        predictions: list[object] = [None] * len(instances)

        async def predict(number: int, instance: Raw) -> None:
            predictions[number] = await self._predict(instance)

        async with trio.open_nursery() as nursery:
            for number, instance in enumerate(instances):
                nursery.start_soon(predict, number, instance)
        await send_whole(context.sink, 200, (errors.JSON_TYPE,), msgspec.json.encode({"predictions": predictions}))

    async def _predict(self, instance: Raw) -> object:
        try:
            path, body = self._inner(instance)
            async with self._inward.ask(path, body, origin="predict") as reply:
                answer = await reply.read(MAX_PREDICTION)
        except ApplianceError as error:
            return Raw(errors.body(errors.describe(error)))
        try:
            msgspec.json.decode(answer)
        except UNREADABLE:
            return answer.decode(errors="replace") or None
        return Raw(answer)

    def _inner(self, instance: Raw) -> tuple[str, bytes]:
        """The route and the body that one instance stands for; a stream has no place in an answer of many."""
        try:
            members = msgspec.json.decode(instance, type=dict[str, Raw])
        except msgspec.ValidationError:
            raise BadRequest("each instance must be a JSON object") from None
        try:
            form = msgspec.json.decode(members.pop(FORMAT, b"null"), type=str)
        except msgspec.ValidationError:
            raise BadRequest(f"each instance must include a string {FORMAT}", param=FORMAT) from None
        if form not in self._formats:
            raise BadRequest(f"no handler registered for {FORMAT}: {form}; an example is chatCompletions", param=FORMAT)
        if "stream" in members:
            members["stream"] = _OFF
        return self._formats[form], msgspec.json.encode(members)


class _Body(msgspec.Struct):
    instances: list[Raw]


def _instances(body: bytes) -> list[Raw]:
    try:
        instances = msgspec.json.decode(body, type=_Body).instances
    except msgspec.ValidationError:
        raise BadRequest("request body must include an array field named instances", param="instances") from None
    except UNREADABLE as error:
        raise BadRequest(f"the request body is not JSON: {error}") from None
    if len(instances) > MAX_INSTANCES:
        raise BadRequest(f"instances array exceeds maximum size of {MAX_INSTANCES}", param="instances")
    return instances
