"""A request that names plugins: through them to the model, and its answer back through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import trio
from msgspec import structs

from appliance.core.answers.families import family_of
from appliance.core.bodies.head import RequestHead
from appliance.core.bodies.json_text import OBJECT
from appliance.core.headers import field, without
from appliance.core.lenient_json import decoded
from appliance.core.runs.inward import Asker
from appliance.errors import ApplianceError, BadRequest, UpstreamFailed
from appliance.features.plugins.chain import MAX_ANSWER, Answer, Chain, Chains, ModelEvents, error_of
from appliance.features.plugins.registry import Plugins
from appliance.http.errors import JSON_TYPE
from appliance.http.way.context import AskModel, ModelRequest, Use
from appliance.http.way.handover import HandoverReply, answered
from appliance.http.way.progress import Pings, sending
from appliance.http.way.routes import Route
from appliance.plugins import Event, Response
from appliance.traffic.record import aside
from appliance.traffic.request import send_whole

_OF_THE_BODY = (b"content-length", b"content-encoding", b"content-type")


class PluginChains:
    """Takes requests through the plugins that they name. ``models`` tells the names that may be asked for."""

    acts = True

    def __init__(self, plugins: Plugins, asker: Asker, models: Callable[[], list[str]], pings: Pings) -> None:
        self._chains = Chains(plugins, asker, models)
        self._pings = pings

    def is_for(self, route: Route) -> bool:
        """See `appliance.http.way.hooks.Turn`."""
        return family_of(route.name) is not None

    def wants(self, route: Route, head: RequestHead, body: bytes) -> bool:
        """Return whether there is a plan, or a mistake. See `appliance.http.way.hooks.Turn`."""
        try:
            return self._chains.plan(route.name, body) is not None
        except BadRequest:
            return True

    def take(self, job: ModelRequest, model: str) -> tuple[ModelRequest, Use | None]:
        """A request without its commands, and the plugins for them; nearly all requests have none, the program's none.

        Raises BadRequest. The answer raises what its ``ask`` does, and PluginFailed.
        """
        plan = self._chains.plan(job.route.name, job.body) if not job.request.inward else None
        if plan is None:
            return job, None
        return structs.replace(job, body=plan.body), partial(self._run, plan.commands, model) if plan.commands else None

    async def _run(self, commands: Sequence[str], model: str, job: ModelRequest, ask: AskModel) -> None:
        job.record.metadata["plugins"] = " ".join(commands)
        async with self._chains.open(job.route.name, commands, model) as chain:
            ping = self._pings.begin(aside(job.sink)) if job.streams else None
            try:
                body, streams = await chain.request(job.body, stream=job.streams)
            finally:
                if ping is not None:
                    ping.stop()
            asked = structs.replace(job, body=body, streams=streams, extended=True)  # plugins may ask for tools
            if not chain.answers and streams == job.streams:
                await ask(asked)
            elif job.streams:
                await _stream(chain, asked, model, ask, self._pings.after)
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
