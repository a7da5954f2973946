"""The interface for plugins: hooks, their arguments, and a client for models.

A plugin is a folder with ``agent.py`` and ``config.json``; the folder's name is its slash command. Of these functions,
``agent.py`` has those that it needs:

    async def on_request(request: Request, context: Context) -> Request | None
    async def on_response(response: Response, context: Context) -> Response | None
    async def on_stream(events: AsyncIterator[Event], context: Context) -> AsyncIterator[Event]     # a generator

None means "as I changed it". The first two may be plain functions; they then run in a worker thread. An exception of a
hook ends the request with a 502 that names the plugin. Refuses to import anything above core.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from appliance.core.bodies.json_text import JSON as JSON
from appliance.core.bodies.json_text import JsonObject as JsonObject

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Request(Struct, kw_only=True):
    """A client's request on its way to the model. ``body`` may be changed in place; its ``model`` is fixed."""

    path: str
    body: JsonObject
    stream: bool


class Response(Struct, kw_only=True):
    """A whole answer on its way back; ``body`` may be changed in place."""

    status: int
    body: JsonObject


class Event(Struct, kw_only=True):
    """One record of a streamed answer: an object, None for the final ``[DONE]``. ``name`` is its ``event:`` field."""

    data: JsonObject | None
    name: str | None = None


class Appliance(Protocol):
    """The program itself, as a client of its models. Raises AskFailed with the reason in words."""

    async def post(self, path: str, body: JsonObject) -> JsonObject:
        """``path`` as in ``/v1/chat/completions``; ``body`` names the model and does not stream."""
        ...

    def stream(self, path: str, body: JsonObject) -> AbstractAsyncContextManager[AsyncIterator[Event]]: ...

    async def chat(self, model: str, messages: Sequence[JsonObject], **params: JSON) -> str:
        """The text of the answer."""
        ...

    async def embed(self, model: str, texts: Sequence[str]) -> list[list[float]]: ...

    def models(self) -> list[str]:
        """Return the names of the models."""
        ...


class Pending(Protocol[T_co]):
    """Work that continues beside the request (`Context.begin`)."""

    @property
    def done(self) -> bool:
        """True when it has ended, in any way; `wait` then returns or raises at once."""
        ...

    async def wait(self) -> T_co:
        """Return the result of the work. Raises its exception; AskFailed when it was cancelled or took too long."""
        ...

    def cancel(self) -> None: ...


class Context(Protocol):
    """A hook's tools besides the message. One object for all hooks of one plugin in one request."""

    @property
    def logger(self) -> logging.Logger: ...

    @property
    def settings(self) -> Mapping[str, JSON]:
        """The ``settings`` of config.json."""
        ...

    @property
    def model(self) -> str:
        """The name of the model that answers this request."""
        ...

    @property
    def appliance(self) -> Appliance: ...

    @property
    def folder(self) -> Path:
        """The folder of the plugin's files. Do not write to it."""
        ...

    @property
    def data(self) -> Path:
        """An existing folder for the plugin's own data."""
        ...

    @property
    def state(self) -> dict[str, object]:
        """This plugin's own dict, from the first hook of the request to its last."""
        ...

    def begin(self, work: Callable[[], Awaitable[T]], *, within: float | None = None) -> Pending[T]:
        """Start ``work`` beside the request; it is cancelled after ``within`` seconds, and when the request ends.

        Its exception is kept for `Pending.wait` and disturbs nothing else.
        """
        ...

    async def wait_any(self, pending: Sequence[Pending[object]]) -> None:
        """Return when at least one of them is done."""
        ...

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work (files, SQLite, much arithmetic) without holding up the program."""
        ...


class AskFailed(Exception):
    """A question to a model was not answered; the message says why.

    ``status`` and ``body`` are those of the refusal if there was one: llama-server reports in ``body`` how many tokens
    fit.
    """

    def __init__(self, message: str, *, status: int | None = None, body: JsonObject | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class Refused(Exception):
    """A hook raises this when the request or the plugin's settings are wrong: the client gets a 400 with this text."""
