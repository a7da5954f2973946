"""A request on its way to its model, and who takes it there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from appliance.core.ollama.answering import Translator
from appliance.http.way.outgoing import JSON, Format
from appliance.http.way.routes import Route
from appliance.traffic.record import Record
from appliance.traffic.request import Request, Sink


class Job(Struct, frozen=True, kw_only=True):
    """``name`` is the model's as the request has it; ``path`` is the path and query that its server gets."""

    request: Request
    route: Route
    name: str
    body: bytes
    format: Format = JSON
    edits: bool = True
    """The configuration's edits of bodies apply."""
    streams: bool = False
    extended: bool = False
    """The client's body had the member `appliance.core.bodies.head.EXTENSION`."""
    told: bool = True
    """A client that waits for its stream may be told so in the answer; else somebody else tells it."""
    path: str
    sink: Sink
    record: Record
    keep_alive: float | None = None
    """Seconds that the model is to stay after the request, infinity for ever; None leaves it as it is."""
    translator: Translator | None = None
    """Turns the answer into Ollama's, on its way out of ``sink``."""


Ask = Callable[[Job], Awaitable[None]]
"""Has the model answer a request; returns when the answer is over and the model's lease given back."""
