"""The tools of one plugin's hooks in one request, besides the message."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import trio
from msgspec import Struct

from appliance.core.bodies.json_text import JSON
from appliance.plugins import Appliance, AskFailed, Pending

T = TypeVar("T")
THREADS = 16
"""Worker threads of all plugins together; a request waits for a free one."""


class Plugin(Struct, frozen=True, kw_only=True):
    """The facts about a plugin without running it. ``data``: the folder for its own data, made on first use."""

    name: str
    folder: Path
    data: Path
    settings: Mapping[str, JSON]
    timeout: float
    """Seconds that a hook may take; for a stream, between two events."""


class Host:
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
    """`appliance.plugins.Context`. ``spawn`` starts a task that ends with the request."""

    def __init__(
        self, plugin: Plugin, model: str, host: Host, spawn: Callable[[Callable[[], Awaitable[None]]], None]
    ) -> None:
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
        self._data.mkdir(parents=True, exist_ok=True)
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
