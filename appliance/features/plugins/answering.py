"""A request on its way through a chain of plugins to the model, and its answer on the way back through them."""

from __future__ import annotations

import msgspec
import trio
from msgspec import structs

from appliance.core.bodies.json_text import OBJECT
from appliance.core.headers import field, without
from appliance.core.lenient_json import decoded
from appliance.errors import ApplianceError, UpstreamFailed
from appliance.features.plugins.chain import MAX_ANSWER, Answer, Chain, ModelEvents, error_of
from appliance.http.errors import JSON_TYPE
from appliance.http.way.context import AskModel, ModelRequest
from appliance.http.way.handover import HandoverReply, answered
from appliance.http.way.progress import Pings, sending
from appliance.plugins import Event, Response
from appliance.traffic.record import aside
from appliance.traffic.request import send_whole

_OF_THE_BODY = (b"content-length", b"content-encoding", b"content-type")


async def answer_through(chain: Chain, job: ModelRequest, model: str, ask: AskModel, pings: Pings) -> None:
    """Answer a request without its commands. Raises what ``ask`` does, and PluginFailed."""
    ping = pings.begin(aside(job.sink)) if job.streams else None
    try:
        body, streams = await chain.request(job.body, stream=job.streams)
    finally:
        if ping is not None:
            ping.stop()
    asked = structs.replace(job, body=body, streams=streams, extended=True)  # plugins may ask for tools
    if not chain.answers and streams == job.streams:
        await ask(asked)
    elif job.streams:
        await _stream(chain, asked, model, ask, pings.after)
    else:
        await _whole(chain, asked, model, ask)


async def _whole(chain: Chain, job: ModelRequest, model: str, ask: AskModel) -> None:
    async with answered(ask, job) as reply:
        if reply.status != 200:
            job.sink.start(reply.status, reply.headers)
            while chunk := await reply.receive():
                await job.sink.write(chunk)
            await job.sink.end()
            return
        events = _EngineEvents(reply, model)
        with events.scope:
            events.made = await chain.respond(await _given(reply, events, model), stream=False)
        error = events.ended()
    if error is not None or not isinstance(events.made, Response):
        raise UpstreamFailed(model, (error and error_of(error)) or "its stream ended with an error")
    kept = without(reply.headers, _OF_THE_BODY)
    await send_whole(job.sink, events.made.status, (*kept, JSON_TYPE), msgspec.json.encode(events.made.body))


async def _stream(chain: Chain, job: ModelRequest, model: str, ask: AskModel, ping_after: float) -> None:
    """Hooks and client each in their own task, so that a client gets a sign of life when the hooks are silent."""
    async with sending(job.sink, ping_after) as sender, answered(ask, job) as reply:
        if reply.status != 200:
            await sender.refuse(reply, MAX_ANSWER, job.route.dialect)
            return
        if reply.event_stream:
            sender.headers = reply.headers
        events = _EngineEvents(reply, model)
        with events.scope:
            answer = await chain.respond(await _given(reply, events, model), stream=True)
            assert not isinstance(answer, Response)
            async for event in answer:
                await sender.send(chain.encode(event))
        if (error := events.ended()) is not None:
            await sender.send(chain.encode(error))


async def _given(reply: HandoverReply, events: _EngineEvents, model: str) -> Answer:
    """Return the engine's answer.

    Hooks are given the end of an answer only when its lease is given back, so that they may ask other models.
    """
    coding = field(reply.headers, b"content-encoding") or b"identity"
    if coding.lower() != b"identity":
        raise UpstreamFailed(model, f"its answer is in the coding {coding.decode('latin-1')}, unasked")
    if reply.event_stream:
        return events
    body = decoded(OBJECT, await reply.read(MAX_ANSWER))
    if body is None:
        raise UpstreamFailed(model, "its answer is not a JSON object, and plugins cannot read it")
    return Response(status=reply.status, body=body)


class _EngineEvents(ModelEvents):
    """The events of an engine's answer. One that breaks off ends all that is done with it: ``scope`` is cancelled."""

    def __init__(self, reply: HandoverReply, model: str) -> None:
        super().__init__(reply, model)
        self.scope = trio.CancelScope()
        self.made: Answer | None = None
        self._failure: ApplianceError | None = None
        self._error: Event | None = None

    async def __anext__(self) -> Event:
        try:
            event = await super().__anext__()
        except ApplianceError as error:
            self._failure = error
        else:
            if error_of(event) is None:
                return event
            self._error = event
        self.scope.cancel()
        await trio.sleep_forever()
        raise AssertionError("it was cancelled")

    def ended(self) -> Event | None:
        """Return the error that the engine's stream ended with. Raises what it broke off with."""
        if self._failure is not None:
            raise self._failure
        return self._error
