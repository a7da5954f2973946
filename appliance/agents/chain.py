"""The plugins that one request named, run in that order, for its answer too.

An answer is whole or a stream, and a plugin has hooks for one or for both. Where its only hook is for the other form,
the answer changes form in front of it, and once more at the end where the client asked for the other one. An answer
that no plugin looks at is not looked at here either.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec

from appliance.agents.chain_client import ChainClient
from appliance.core.answers.forms import Torn, events_of, whole_of
from appliance.core.bodies import sse
from appliance.core.bodies.json_text import OBJECT, JsonObject
from appliance.core.runs.inward import Asker
from appliance.core.runs.slash import Family, Plan, family_of
from appliance.errors import PluginFailed
from appliance.plugins import Event, Request, Response
from appliance.plugins.context import Host
from appliance.plugins.hooks import HookedStream, PluginStep, Replayed
from appliance.plugins.registry import Plugins
from appliance.trio_parts import plain_nursery

log = logging.getLogger(__name__)

Answer = Response | AsyncIterator[Event]


class Chains:
    """Knows which requests go through plugins. ``models`` returns the names that plugins may ask."""

    def __init__(self, plugins: Plugins, asker: Asker, models: Callable[[], list[str]]) -> None:
        self._plugins = plugins
        self._host = Host(lambda plugin: ChainClient(asker, models, plugin))

    def plan(self, path: str, body: bytes) -> Plan | None:
        """Return None for a request that names no plugin: nearly all. Raises BadRequest."""
        family = family_of(path)
        commands = self._plugins.commands(family) if family is not None else None
        return commands.plan(body) if commands is not None else None

    @asynccontextmanager
    async def open(self, path: str, commands: Sequence[str], model: str) -> AsyncGenerator[Chain]:
        """Open the chain of one request; leaving the block ends the plugins' work. Raises PluginFailed."""
        entries = [self._plugins.entry(name) for name in commands]
        loaded = [(await entry.hooks(), entry.plugin) for entry in entries]  # loading may change what is known
        async with plain_nursery() as nursery:

            def spawn(work: Callable[[], Awaitable[None]]) -> None:
                nursery.start_soon(work)

            steps = [PluginStep(plugin, hooks, model, self._host, spawn) for hooks, plugin in loaded]
            chain = Chain(path, steps)
            log.info("plugins of a request for '%s': %s", model, " ".join(commands))
            try:
                yield chain
            finally:
                await chain.close()
            nursery.cancel_scope.cancel()


class Chain:
    """The chain of one request, made by `Chains.open`. Its methods raise PluginFailed, and BadRequest if a plugin
    refuses the request.
    """

    def __init__(self, path: str, steps: Sequence[PluginStep]) -> None:
        self._path = path
        self._family = family_of(path) or Family.CHAT
        self._steps = steps
        self._streams: list[HookedStream] = []

    @property
    def answers(self) -> bool:
        """True if some plugin has a hook for the answer."""
        return any(step.hooks.on_response or step.hooks.on_stream for step in self._steps)

    async def request(self, body: bytes, *, stream: bool) -> tuple[bytes, bool]:
        """Return the body for the model, and whether it asks for a stream; the very same bytes if no plugin looks at
        it.
        """
        steps = [step for step in self._steps if step.hooks.on_request is not None]
        if not steps:
            return body, stream
        request = Request(path=self._path, body=OBJECT.decode(body), stream=stream)
        for step in steps:
            request, body = await step.request(request)
        return body, request.body.get("stream") is True

    async def respond(self, answer: Answer, *, stream: bool) -> Answer:
        """Return the answer in the client's form. The hooks of a stream run while it is iterated over."""
        for step in self._steps:
            hooks = step.hooks
            if isinstance(answer, Response):
                if hooks.on_response is not None:
                    answer = await step.response(answer)
                elif hooks.on_stream is not None:
                    answer = self._hooked(step, Replayed(self._events(answer.body)))
            elif hooks.on_stream is not None:
                answer = self._hooked(step, answer)
            elif hooks.on_response is not None:
                answer = await step.response(await self._joined(answer))
        if stream:
            return Replayed(self._events(answer.body)) if isinstance(answer, Response) else answer
        return answer if isinstance(answer, Response) else await self._joined(answer)

    def encode(self, event: Event) -> bytes:
        """Encode an event as a record. Data that is not JSON may come from any stream hook."""
        try:
            text = "[DONE]" if event.data is None else msgspec.json.encode(event.data).decode()
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            names = ", ".join(step.plugin.name for step in self._steps if step.hooks.on_stream is not None)
            raise PluginFailed(names, "on_stream", f"an event is not JSON: {error}") from None
        return sse.encode(sse.Event(text, event.name))

    async def close(self) -> None:
        """Let the stream hooks clean up, the last one first."""
        for stream in reversed(self._streams):
            await stream.aclose()

    def _hooked(self, step: PluginStep, events: AsyncIterator[Event]) -> HookedStream:
        stream = step.stream(events)
        self._streams.append(stream)
        return stream

    def _events(self, body: JsonObject) -> Iterable[Event]:
        return (Event(data=data, name=name) for name, data in events_of(self._family, body))

    async def _joined(self, events: AsyncIterator[Event]) -> Response:
        parts = [event.data async for event in events if event.data is not None]
        try:
            return Response(status=200, body=whole_of(self._family, parts))
        except Torn as error:
            names = ", ".join(step.plugin.name for step in self._steps)
            hook = "on_stream" if self._streams else "on_response"
            raise PluginFailed(names, hook, f"the answer cannot be put together: {error}") from None
