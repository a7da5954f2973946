"""What a plugin is written against: hooks, what they are given, and how a plugin asks models.

A plugin is a folder with ``agent.py`` and ``config.json``; the folder's name is its slash command. Of these functions,
``agent.py`` has those that it needs:

    async def on_request(request: Request, context: Context) -> Request | None
    async def on_response(response: Response, context: Context) -> Response | None
    async def on_stream(events: AsyncIterator[Event], context: Context) -> AsyncIterator[Event]     # a generator

None means "as I changed it". The first two may be plain functions; they then run in a worker thread. What a hook raises
ends the request with a 502 that names the plugin. Refuses to import anything above core.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

T = TypeVar("T")
JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
JsonObject = dict[str, JSON]


class Request(Struct, kw_only=True):
    """A client's request on its way to the model. ``body`` may be changed in place; ``model`` in it is fixed."""

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
    """The program itself, as a client of its models. Raises AskFailed with what went wrong in words."""

    async def post(self, path: str, body: JsonObject) -> JsonObject:
        """``path`` as in ``/v1/chat/completions``; ``body`` names the model and does not stream."""
        ...

    def stream(self, path: str, body: JsonObject) -> AbstractAsyncContextManager[AsyncIterator[Event]]: ...

    async def chat(self, model: str, messages: Sequence[JsonObject], **params: JSON) -> str:
        """The text of the answer."""
        ...

    async def embed(self, model: str, texts: Sequence[str]) -> list[list[float]]: ...

    def models(self) -> list[str]:
        """The names that can be asked for."""
        ...


class Context(Protocol):
    """What a hook has beside the message. One object for all hooks of one plugin in one request."""

    @property
    def logger(self) -> logging.Logger: ...

    @property
    def settings(self) -> Mapping[str, JSON]:
        """``settings`` of config.json."""
        ...

    @property
    def model(self) -> str:
        """The name of the model that answers this request."""
        ...

    @property
    def appliance(self) -> Appliance: ...

    @property
    def folder(self) -> Path:
        """Of the plugin's files. Not to be written to."""
        ...

    @property
    def data(self) -> Path:
        """A folder for what the plugin keeps; it is there."""
        ...

    @property
    def state(self) -> dict[str, object]:
        """Nobody else's: from the first hook of the request to its last."""
        ...

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do what blocks (files, SQLite, arithmetic on much) without holding up the program."""
        ...


class AskFailed(Exception):
    """A question to a model that was not answered; the message says why."""
