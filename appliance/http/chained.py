"""A request that names plugins: through them to the model, and its answer back through them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import msgspec
import trio
from msgspec import structs

from appliance.agents.chain import Answer, Chain, Chains
from appliance.agents.chain_client import MAX_ANSWER, error_of, read_event
from appliance.core import sse
from appliance.core.json_values import OBJECT
from appliance.core.slash import Plan
from appliance.core.sse import PING
from appliance.errors import ApplianceError, UpstreamFailed
from appliance.http.errors import JSON_TYPE
from appliance.http.inward import Handover, Reply
from appliance.http.outgoing import JSON
from appliance.http.record import Aside, RecordingSink
from appliance.http.relay import EVENT_STREAM, UNBUFFERED, Pinger, error_in
from appliance.http.sink import Headers, Sink
from appliance.http.telling import LAST_WORDS, Telling, outcome, telling_while
from appliance.plugins import Event, Response

if TYPE_CHECKING:
    from appliance.http.pipeline import Job

Ask = Callable[["Job"], Awaitable[None]]
"""Has the model answer a request; returns when the answer is over and the model's lease given back."""
_OF_THE_BODY = (b"content-length", b"content-encoding", b"content-type")


async def through_plugins(chains: Chains, job: Job, model: str, ping_after: float, ask: Ask) -> None:
    """Do ``ask``; where the request names plugins, with what they make of it. Raises what ask does, and PluginFailed.

    The program's own requests, those that are passed on as they are, and forms name none.
    """
    named = job.edits and not job.request.inward and job.format == JSON and job.request.method == "POST"
    plan = chains.plan(job.route.name, job.body) if named else None
    if plan is None:
        await ask(job)
    elif not plan.commands:
        await ask(structs.replace(job, body=plan.body))
    else:
        await _Turn(chains, job, model, ping_after, ask).run(plan)


class _Turn:
    """One request with plugins."""

    def __init__(self, chains: Chains, job: Job, model: str, ping_after: float, ask: Ask) -> None:
        self._chains = chains
        self._model = model
        self._ping_after = ping_after
        self._ask = ask
        self._sink = job.sink
        self._aside: Sink = Aside(job.sink) if isinstance(job.sink, RecordingSink) else job.sink
        # What plugins read, nobody may have compressed.
        headers = [(name, value) for name, value in job.request.headers if name.lower() != b"accept-encoding"]
        self._job = structs.replace(job, request=structs.replace(job.request, headers=headers, first={}))

    async def run(self, plan: Plan) -> None:
        job = self._job
        job.record.metadata["plugins"] = " ".join(plan.commands)
        async with self._chains.open(job.route.name, plan.commands, self._model) as chain:
            body, streams = await self._prepared(chain, plan.body)
            asked = structs.replace(job, body=body, streams=streams)
            if not chain.answers and streams == job.streams:
                await self._ask(asked)
            elif job.streams:
                await self._stream(chain, asked)
            else:
                await self._whole(chain, asked)

    async def _prepared(self, chain: Chain, body: bytes) -> tuple[bytes, bool]:
        """What the plugins make of the request, while the client of a stream sees that something is under way."""
        made: list[tuple[bytes, bool]] = []

        async def prepare(telling: Telling | None) -> None:
            made.append(await chain.request(body, stream=self._job.streams))
            if telling is not None:
                await telling.stop()

        pinger = Pinger(self._aside, self._ping_after) if self._job.streams and self._ping_after > 0 else None
        await telling_while(pinger, prepare)
        return made[0]

    async def _whole(self, chain: Chain, job: Job) -> None:
        answers: list[Response] = []

        async def take(answer: Answer) -> None:
            if isinstance(answer, Response):
                answers.append(answer)

        async with answered(self._ask, job) as reply:
            if reply.status != 200:
                await _pass(reply, self._sink)
                return
            error = await self._respond(chain, reply, take)
        if error is not None:
            raise UpstreamFailed(self._model, error_of(error) or "its stream ended with an error")
        content = msgspec.json.encode(answers[0].body)
        length = (b"Content-Length", str(len(content)).encode())
        kept = [(name, value) for name, value in reply.headers if name.lower() not in _OF_THE_BODY]
        await self._sink.start(answers[0].status, [*kept, JSON_TYPE, length])
        await self._sink.write(content)
        await self._sink.end()

    async def _stream(self, chain: Chain, job: Job) -> None:
        """Hooks and client each in their own task, so that a client is told when the hooks are silent."""
        give, take = trio.open_memory_channel[bytes](0)
        sender = Sender(self._sink, self._aside, take, self._ping_after or math.inf)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.run)
            failure = await outcome(partial(self._send, chain, job, sender, give))
            give.close()
            if failure is not None:
                with trio.move_on_after(LAST_WORDS):
                    await sender.done.wait()
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        await sender.begin(self._sink)  # where there was nothing to send
        await self._sink.end()

    async def _send(self, chain: Chain, job: Job, sender: Sender, give: trio.MemorySendChannel[bytes]) -> None:
        async def pass_on(answer: Answer) -> None:
            if not isinstance(answer, Response):
                async for event in answer:
                    await give.send(chain.encode(event))

        async with answered(self._ask, job) as reply:
            if reply.status != 200:
                content = await reply.read(MAX_ANSWER)
                if self._sink.status is not None:
                    content = error_in(content, reply.status, job.route.dialect)
                else:
                    sender.refuse(reply.status, reply.headers)
                await give.send(content)
                return
            if reply.event_stream:
                sender.headers = reply.headers
            error = await self._respond(chain, reply, pass_on)
            if error is not None:
                await give.send(chain.encode(error))

    async def _respond(self, chain: Chain, reply: Reply, take: Callable[[Answer], Awaitable[None]]) -> Event | None:
        """Give ``take`` the answer as the plugins make it; the result is the error that the engine's ended with.

        Hooks are given the end of an answer only when its lease is given back, so that they may ask other models.
        """
        streams = self._job.streams
        coding = next((value for name, value in reply.headers if name.lower() == b"content-encoding"), b"identity")
        if coding.lower() != b"identity":
            raise UpstreamFailed(self._model, f"its answer is in the coding {coding.decode('latin-1')}, unasked")
        if not reply.event_stream:
            try:
                body = OBJECT.decode(await reply.read(MAX_ANSWER))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                raise UpstreamFailed(
                    self._model, "its answer is not a JSON object, and plugins cannot read it"
                ) from None
            await take(await chain.respond(Response(status=reply.status, body=body), stream=streams))
            return None
        events = _EngineEvents(reply, self._model)
        with events.scope:
            await take(await chain.respond(events, stream=streams))
        if events.failure is not None:
            raise events.failure
        return events.error


class _EngineEvents:
    """The events of an engine's answer. One that breaks off ends all that is done with it: ``scope`` is cancelled."""

    def __init__(self, reply: Reply, model: str) -> None:
        self.scope = trio.CancelScope()
        self.failure: ApplianceError | None = None
        self.error: Event | None = None
        self._reply = reply
        self._model = model
        self._decoder = sse.Decoder()
        self._held: deque[sse.Event] = deque()

    def __aiter__(self) -> _EngineEvents:
        return self

    async def __anext__(self) -> Event:
        while not self._held:
            try:
                chunk = await self._reply.receive()
                self._held.extend(self._decoder.feed(chunk))
            except ApplianceError as error:
                await self._end(error)
            except sse.RecordTooLong as error:
                await self._end(UpstreamFailed(self._model, str(error)))
            else:
                if not chunk:
                    raise StopAsyncIteration
        event = read_event(self._held.popleft())
        if event is None:
            await self._end(UpstreamFailed(self._model, "its stream has a record that is not JSON"))
        if error_of(event) is not None:
            self.error = event
            await self._end(None)
        return event

    async def _end(self, failure: ApplianceError | None) -> NoReturn:
        self.failure = failure
        self.scope.cancel()
        await trio.sleep_forever()


class Sender:
    """Writes what it is given into the client's answer, and comments while it is given nothing."""

    def __init__(self, sink: Sink, aside: Sink, records: trio.MemoryReceiveChannel[bytes], interval: float) -> None:
        self.headers: Headers = (EVENT_STREAM, *UNBUFFERED)
        self.done = trio.Event()
        self._status = 200
        self._sink = sink
        self._aside = aside
        self._records = records
        self._interval = interval

    def refuse(self, status: int, headers: Headers) -> None:
        """What follows is no stream."""
        self._status, self.headers, self._interval = status, headers, math.inf

    async def run(self) -> None:
        try:
            while True:
                record: bytes | None = None
                with trio.move_on_after(self._interval):
                    record = await self._records.receive()
                to = self._aside if record is None else self._sink
                await self.begin(to)
                await to.write(PING if record is None else record)
        except trio.EndOfChannel:
            pass
        finally:
            self.done.set()

    async def begin(self, sink: Sink) -> None:
        """Start the answer, unless it has started."""
        if self._sink.status is None:
            await sink.start(self._status, self.headers)


@asynccontextmanager
async def answered(ask: Ask, job: Job) -> AsyncGenerator[Reply]:
    """The model's answer from its head on; its end comes when ``ask`` has returned. Raises what ``ask`` raises."""
    handover = Handover()
    failure: Exception | None = None

    async def work() -> None:
        try:
            await ask(structs.replace(job, sink=handover, told=False))
        except ApplianceError as error:
            handover.fail(error)
        finally:
            handover.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        try:
            await handover.begun.wait()
            if handover.failure is not None and handover.status is None:
                raise handover.failure
            yield Reply(handover, job.record)
        except Exception as error:  # noqa: BLE001  raised below: it leaves the nursery as itself, not as a group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _pass(reply: Reply, sink: Sink) -> None:
    await sink.start(reply.status, reply.headers)
    while chunk := await reply.receive():
        await sink.write(chunk)
    await sink.end()
