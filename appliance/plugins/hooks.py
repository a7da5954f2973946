"""Calls the hooks of a plugin: within its time, in the right thread, with every failure named after plugin and hook.

Besides the message a hook gets a context: its tools in that one request.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

import msgspec
import trio

from appliance.core.bodies.json_text import JsonObject
from appliance.errors import ApplianceError, BadRequest, PluginFailed
from appliance.plugins import Appliance, AskFailed, Context, Event, Pending, Refused, Request, Response
from appliance.plugins.loading import Plugin, PluginHooks

T = TypeVar("T")
Spawn = Callable[[Callable[[], Awaitable[None]]], None]
"""Starts a task that ends with the request."""
THREADS = 16
"""Worker threads of all plugins together; a request waits for a free one."""
FAREWELL = 1.0
"""Seconds that a stream hook gets to leave its ``finally`` blocks when nobody wants its events any more."""
LONGEST = 500
"""Characters of a plugin's exception that its client sees."""


class PluginHost:
    """Shared by all plugins of all requests: the models, and the threads."""

    def __init__(self, appliance_for: Callable[[str], Appliance]) -> None:
        self.appliance_for = appliance_for
        """By the plugin's name."""
        self.threads = trio.CapacityLimiter(THREADS)


class Background(Generic[T]):
    """`Pending`: work in a task of the request."""

    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._value: list[T] = []
        self._error: Exception | None = None

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    async def wait(self) -> T:
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        if not self._value:
            raise AskFailed("it was cancelled, or took too long")
        return self._value[0]

    def cancel(self) -> None:
        self._scope.cancel()

    async def run(self, work: Callable[[], Awaitable[T]], within: float) -> None:
        """Run the task, and keep the exception of the work."""
        try:
            with self._scope:
                self._scope.deadline = trio.current_time() + within
                self._value.append(await work())
        except Exception as error:  # noqa: BLE001  it is the plugin's, and `wait` raises it
            self._error = error
        finally:
            self._ended.set()

    async def wait_ended(self) -> None:
        await self._ended.wait()


class PluginContext:
    """`appliance.plugins.Context`."""

    def __init__(self, plugin: Plugin, model: str, host: PluginHost, spawn: Spawn) -> None:
        self.logger = logging.getLogger(f"appliance.plugins.{plugin.name}")
        self.settings = plugin.settings
        self.model = model
        self.appliance = host.appliance_for(plugin.name)
        self.folder = plugin.folder
        self.state: dict[str, object] = {}
        self._data = plugin.data
        self._host = host
        self._spawn = spawn

    @property
    def data(self) -> Path:
        self._data.mkdir(0o700, parents=True, exist_ok=True)  # what is kept there comes from requests and documents
        return self._data

    def begin(self, work: Callable[[], Awaitable[T]], *, within: float | None = None) -> Pending[T]:
        begun = Background[T]()
        self._spawn(partial(begun.run, work, math.inf if within is None else within))
        return begun

    async def wait_any(self, pending: Sequence[Pending[object]]) -> None:
        if not pending or any(each.done for each in pending):
            await trio.lowlevel.checkpoint()
            return
        async with trio.open_nursery() as nursery:
            for each in pending:
                nursery.start_soon(_end_with, each, nursery.cancel_scope)

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._host.threads)


async def _end_with(pending: Pending[object], scope: trio.CancelScope) -> None:
    if not isinstance(pending, Background):
        raise TypeError("wait_any waits for what Context.begin has returned")
    await pending.wait_ended()
    scope.cancel()


Message = TypeVar("Message", Request, Response)


class PluginStep:
    """One plugin's part in one request."""

    def __init__(self, plugin: Plugin, hooks: PluginHooks, model: str, host: PluginHost, spawn: Spawn) -> None:
        self.plugin = plugin
        self.hooks = hooks
        self.spawn = spawn
        self.context: Context = PluginContext(plugin, model, host, spawn)

    async def request(self, request: Request) -> tuple[Request, bytes]:
        """Return the request after the plugin's change, and its body as bytes. Raises PluginFailed, and BadRequest."""
        model = request.body.get("model")
        changed = await self._whole("on_request", self.hooks.on_request, request)
        if changed.body.get("model") != model:
            self.fail("on_request", "it changed 'model', which is fixed before plugins run")
        return changed, self._encoded("on_request", changed.body)

    async def response(self, response: Response) -> Response:
        """Return the answer after the plugin's change. Raises as `request`."""
        changed = await self._whole("on_response", self.hooks.on_response, response)
        self._encoded("on_response", changed.body)
        return changed

    def stream(self, events: AsyncIterator[Event]) -> HookedStream:
        return HookedStream(self, events)

    def fail(self, hook: str, why: str, cause: BaseException | None = None) -> NoReturn:
        self.context.logger.warning("%s: %s", hook, why, exc_info=cause)
        raise PluginFailed(self.plugin.name, hook, why) from None

    def explain(self, hook: str, error: BaseException) -> NoReturn:
        """Raise the program's error for a plugin's exception."""
        error = _alone(error)
        if isinstance(error, PluginFailed):
            raise error
        if isinstance(error, Refused):
            raise BadRequest(f"plugin '{self.plugin.name}': {error}") from None
        self.fail(hook, f"{type(error).__name__}: {error}"[:LONGEST].rstrip(": "), error)

    def late(self, hook: str) -> NoReturn:
        self.fail(hook, f"it took longer than {self.plugin.timeout:g} s ('timeout' in its config.json)")

    async def _whole(self, hook: str, function: Callable[..., object] | None, message: Message) -> Message:
        if function is None:
            return message
        returned: object = None
        with trio.move_on_after(self.plugin.timeout) as scope:
            try:
                returned = await self._call(function, message)
            except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin may raise anything
                self.explain(hook, error)
        if scope.cancelled_caught:
            self.late(hook)
        changed = message if returned is None else returned
        if not isinstance(changed, type(message)) or not isinstance(changed.body, dict):  # pyright: ignore[reportUnnecessaryIsInstance]  a plugin may do anything
            kind = type(message).__name__
            self.fail(hook, f"it must return a {kind} whose body is a dict, or None, and returned {_kind_of(returned)}")
        return changed

    async def _call(self, function: Callable[..., object], message: Request | Response) -> object:
        if inspect.iscoroutinefunction(function):
            return await function(message, self.context)
        return await self.context.in_thread(partial(function, message, self.context))

    def _encoded(self, hook: str, body: JsonObject) -> bytes:
        try:
            return msgspec.json.encode(body)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            self.fail(hook, f"its result is not JSON: {error}")


class Replayed:
    """Turn existing events into a stream."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._events = iter(events)

    def __aiter__(self) -> Replayed:
        return self

    async def __anext__(self) -> Event:
        await trio.lowlevel.checkpoint()
        for event in self._events:
            return event
        raise StopAsyncIteration


class HookedStream:
    """The events that an ``on_stream`` makes out of others. Only its own work counts towards its time, from event to
    event.

    The hook runs in a task of its own: what it opens in one event and closes in another (a nursery, the stream of a
    model) would else be torn between the scopes of the tasks that take its events.
    """

    def __init__(self, step: PluginStep, events: AsyncIterator[Event]) -> None:
        self._step = step
        self._source = _Source(events, self)
        self._scope = trio.CancelScope()
        self._give, self._take = trio.open_memory_channel[Event](0)
        self._begun = self._sending = self._closed = False
        self._ended = trio.Event()
        self._error: ApplianceError | None = None
        self._waiting = 0

    def __aiter__(self) -> HookedStream:
        return self

    async def __anext__(self) -> Event:
        """Return the next event. Raises PluginFailed, BadRequest."""
        if not self._begun:
            self._begun = True
            self._step.spawn(self._run)
        try:
            return await self._take.receive()
        except trio.EndOfChannel:
            pass
        if self._error is not None:
            raise self._error.with_traceback(None)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Let the hook clean up after itself, even while the request is being cancelled."""
        self._closed = True
        self._take.close()
        if self._begun and not self._ended.is_set():
            if not self._sending:
                self._scope.cancel()
            with trio.move_on_after(FAREWELL, shield=True):  # cleanup alone, and not for long
                await self._ended.wait()

    def paused(self, *, more: bool) -> None:
        """Note whether the hook waits for an event: its time runs only when it has one."""
        self._waiting += 1 if more else -1
        self._scope.deadline = self._deadline()

    async def _run(self) -> None:
        """Run the hook in its task. Its exception waits for the reader of the events."""
        try:
            with self._scope:
                await self._pass_on()
            if self._scope.cancelled_caught and not self._closed:
                self._step.late("on_stream")
        except ApplianceError as error:
            self._error = error
        finally:
            self._give.close()
            self._ended.set()

    async def _pass_on(self) -> None:
        made = self._made()
        try:
            while True:
                self._scope.deadline = self._deadline()
                event = await anext(made)
                self._scope.deadline = math.inf
                self._sending = True
                await self._give.send(self._checked(event))
                self._sending = False
        except (StopAsyncIteration, trio.BrokenResourceError):
            pass  # its end, or that of its reader
        except ApplianceError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin may raise anything
            self._step.explain("on_stream", error)
        finally:
            await self._farewell(made)

    async def _farewell(self, made: AsyncIterator[object]) -> None:
        close = getattr(made, "aclose", None)
        if close is None:
            return
        self._scope.shield, self._scope.deadline = True, trio.current_time() + FAREWELL
        try:
            await close()
        except (Exception, SystemExit) as error:
            self._step.context.logger.warning("on_stream does not end in order", exc_info=error)

    def _deadline(self) -> float:
        return math.inf if self._waiting else trio.current_time() + self._step.plugin.timeout

    def _checked(self, event: object) -> Event:
        if not isinstance(event, Event) or not (event.data is None or isinstance(event.data, dict)):  # pyright: ignore[reportUnnecessaryIsInstance]
            self._step.fail(
                "on_stream", f"it must yield Events whose data is a dict or None, and yielded {_kind_of(event)}"
            )
        return event

    def _made(self) -> AsyncIterator[object]:
        function = self._step.hooks.on_stream
        made: object = function(self._source, self._step.context) if function is not None else None
        if not isinstance(made, AsyncIterator):
            if inspect.iscoroutine(made):
                made.close()
            self._step.fail("on_stream", f"it must be an asynchronous generator, and returned {_kind_of(made)}")
        return made  # pyright: ignore[reportUnknownVariableType]  what it yields is looked at one by one


class _Source:
    """The hook's input events."""

    def __init__(self, events: AsyncIterator[Event], stream: HookedStream) -> None:
        self._events = events
        self._stream = stream

    def __aiter__(self) -> _Source:
        return self

    async def __anext__(self) -> Event:
        self._stream.paused(more=True)
        try:
            return await anext(self._events)
        finally:
            self._stream.paused(more=False)


def _alone(error: BaseException) -> BaseException:
    """Return the exception that the plugin's nursery has wrapped, if there is only one."""
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return _alone(inside[0]) if issubclass(type(error), BaseExceptionGroup) and len(inside) == 1 else error


def _kind_of(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
