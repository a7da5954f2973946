"""The routes that a model answers: each request as a job for the pipeline, its answer translated on the way out."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field, structs

from appliance.core.bodies.head import read_json
from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.errors import BadRequest
from appliance.features.lm_studio.answering import ChatItems, Unchanged, WithStats
from appliance.features.lm_studio.routes import DescribedModels
from appliance.features.lm_studio.rules import ANSWERED, V1_CHAT, V1_MODELS, read_as
from appliance.http.kernel import Kernel
from appliance.http.way.context import ModelRequest, RequestContext
from appliance.http.way.routes import own_path
from appliance.traffic.record import Record
from appliance.traffic.request import Request, Sink
from appliance.traffic.translated import TranslatedSink, speak

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repeat_penalty", "max_tokens")


class Kept(Struct):
    """``ttl``: the seconds that the model is to stay after the request."""

    ttl: Annotated[float, Meta(ge=0)] | None = None


class InputItem(Struct):
    """A part of the user's message; ``text`` is an older name of ``message``."""

    type: Literal["message", "text", "image"]
    content: str = ""
    data_url: str = ""


class InputChat(Kept, kw_only=True):
    """The body of ``/api/v1/chat``. ``context_length`` and ``store`` have no effect."""

    input: str | list[InputItem]
    system_prompt: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    max_tokens: int | None = field(default=None, name="max_output_tokens")
    reasoning: Literal["off", "low", "medium", "high", "on"] | None = None
    previous_response_id: str | None = None
    integrations: list[str | dict[str, object]] | None = None


class LmStudioReader:
    """Reads requests of one server."""

    def __init__(self, kernel: Kernel) -> None:
        self._known = DescribedModels(kernel)

    def sink(self, request: Request, sink: Sink) -> Sink:
        """See `appliance.http.way.hooks.DialectSpeaker`."""
        return TranslatedSink(sink, Unchanged(request.path))

    async def read(self, context: RequestContext) -> ModelRequest:
        """Return what the model is to be asked. Raises as `Pipeline.answer`."""
        path, record = context.request.path, context.record
        record.body = body = await context.read_body()
        record.head = head = read_json(body)
        record.model = name = head.model or ""
        if not name:
            raise BadRequest(f"'model' is required; GET {V1_MODELS} lists what there is", param="model")
        await self._known.find(name)
        asked = read_as(body, InputChat) if path == V1_CHAT else None
        route, answer = own_path(ANSWERED[path]), Unchanged(path)
        if asked is not None:
            body, route = chat_body(asked, name), structs.replace(route, loading_state=False)
            answer = ChatItems(path, record)
        elif path.endswith("/completions"):
            answer = WithStats(path, lambda: self._about(record))
        return ModelRequest(
            request=context.request,
            route=route,
            name=name,
            body=body,
            streams=head.stream and route.streams,
            extended=head.extended and asked is None,
            path=ANSWERED[path],
            sink=context.sink,
            record=record,
            keep_alive=read_as(record.body, Kept).ttl,
            begin=partial(speak, answer),
        )

    async def translated(self, path: str, body: bytes) -> tuple[str, bytes]:
        """See `appliance.http.way.hooks.DialectSpeaker`."""
        name = read_json(body).model or ""
        return ANSWERED[path], chat_body(read_as(body, InputChat), name) if path == V1_CHAT else body

    def _about(self, record: Record) -> JsonObject:
        facts, model = self._known.now(record.model), self._known.catalog.snapshot.find(record.model)
        engine = self._known.fleet.launches.engine_for(model) if model is not None else None
        told: JsonObject = {"arch": facts.v0["arch"], "quant": facts.v0["quantization"], "format": "gguf"}
        name, version = (engine.name, engine.version) if engine is not None else ("unknown", None)
        runtime: JsonObject = {"name": name, "version": version or "unknown", "supported_formats": ["gguf"]}
        return {"model_info": {**told, "context_length": facts.context}, "runtime": runtime}


def chat_body(asked: InputChat, model: str) -> bytes:
    """Return the body for ``/v1/chat/completions``. Raises BadRequest."""
    advice = "send the whole conversation, and tools, to /v1/chat/completions"
    for member, given in (("previous_response_id", asked.previous_response_id), ("integrations", asked.integrations)):
        if given:
            raise BadRequest(f"'{member}' is not supported here; {advice}", param=member)
    messages: list[JSON] = [{"role": "system", "content": asked.system_prompt}] if asked.system_prompt else []
    sent: JsonObject = {"model": model, "messages": [*messages, {"role": "user", "content": _content(asked.input)}]}
    if asked.stream:
        sent |= {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    wishes = structs.asdict(asked)
    sent |= {name: wishes[name] for name in SAMPLING if wishes[name] is not None}
    if asked.reasoning is not None:
        effort: JsonObject = {} if asked.reasoning in ("off", "on") else {"reasoning_effort": asked.reasoning}
        sent["chat_template_kwargs"] = {"enable_thinking": asked.reasoning != "off", **effort}
    return msgspec.json.encode(sent)


def _content(given: str | list[InputItem]) -> JSON:
    if isinstance(given, str):
        return given
    parts: list[JSON] = []
    for item in given:
        if item.type == "image" and not item.data_url.startswith("data:image/"):
            raise BadRequest("an image of 'input' needs a 'data_url' that begins with data:image/", param="input")
        picture: JsonObject = {"type": "image_url", "image_url": {"url": item.data_url}}
        parts.append(picture if item.type == "image" else {"type": "text", "text": item.content})
    if not parts:
        raise BadRequest("'input' is empty; send a text, or a list of messages and images", param="input")
    return parts
