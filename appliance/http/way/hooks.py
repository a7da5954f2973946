"""The hooks of a request's way. A feature signs in to those it needs, and the way knows none of them by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from appliance.core.bodies.head import RequestHead
from appliance.core.exchange import Refused
from appliance.core.models.model import Model
from appliance.errors import BadRequest
from appliance.fleet.status import ChildStatus
from appliance.http.way.context import ModelRequest, RequestContext, Use
from appliance.http.way.course import Course
from appliance.http.way.guard import Guard
from appliance.http.way.routes import Route
from appliance.traffic.request import Request, Sink
from appliance.traffic.targets import Target
from appliance.upstream.address import Address
from appliance.upstream.client import Outgoing
from appliance.upstream.pool import Pool

Serve = Callable[[RequestContext, ModelRequest], Awaitable[None]]
"""Has a request answered, to its sink."""
Spoken = Callable[[Request, Sink], Sink]
"""Returns the sink for the answer to a request, in the dialect of that."""


class HoldEnded(Exception):
    """A request has been ended by its hold, which tells its clients."""


class DialectSpeaker(Protocol):
    """Reads requests in another dialect, and says their answers in the same."""

    def sink(self, request: Request, sink: Sink) -> Sink:
        """Return the sink for the answer to a request, errors included; ``sink`` itself where nothing is translated."""
        ...

    async def read(self, context: RequestContext) -> ModelRequest | None:
        """Return what the model is to be asked; None if the request has its answer. Raises as `Pipeline.answer`."""
        ...

    async def translated(self, path: str, body: bytes) -> tuple[str, bytes]:
        """Return path and body of what a model is asked for a request. Loads no model. Raises ApplianceError."""
        ...


class Translate(DialectSpeaker, Protocol):
    """Takes requests in another dialect."""

    def route(self, request: Request) -> Route | None:
        """Return the model's route of a request in this dialect; None for any other request."""
        ...


class Placing(Protocol):
    """Says which servers may answer a request."""

    async def course(self, job: ModelRequest, target: Target, wanted: Model | None) -> Course | None:
        """Return the course of a request through the servers that may answer it, best first; None: it knows of none.

        ``wanted`` is the model for which the target's stands in: it is loaded meanwhile. Raises ApplianceError.
        """
        ...


class Turn(Protocol):
    """Stands around the turns of a chat's model: it may change the request, and answer it itself between turns."""

    @property
    def acts(self) -> bool:
        """The server does something for it, beyond asking the model: windows of applications may not ask for that."""
        ...

    def take(self, job: ModelRequest, model: str) -> tuple[ModelRequest, Use | None]:
        """Return the request as it leaves it, and what answers it; None: it does not.

        ``model`` is the name of the request's target. The program's own requests come here, too (``inward``). The
        answer asks the model through the turns behind this one. Raises BadRequest and Forbidden.
        """
        ...

    def is_for(self, route: Route) -> bool:
        """Return whether `take` may do anything with requests on this route. Asked once for each head of a request."""
        ...

    def wants(self, route: Route, head: RequestHead, body: bytes) -> bool:
        """Return whether `take` would do anything with a request, or refuse it. A plain one is asked here only.

        Not asked where the turn is not for the route.
        """
        ...


class EngineTranslate(Protocol):
    """Says a request in the words of the engine that gets it, and its answer in those of the client."""

    def is_for(self, route: str, build: str) -> bool:
        """Return whether an engine of this build may need anything in other words on this route.

        Asked once for each head of a request and process.
        """
        ...

    def wants(self, route: str, body: bytes, build: str | None) -> bool:
        """Return whether an engine of this build may need the body, or its answer, in other words.

        Every request asks that it is for; ``build`` is None as long as it is not known which one gets it. Raises
        BadRequest for what can be said to none.
        """
        ...

    async def body(self, route: str, body: bytes, there: Address, build: str, pool: Pool) -> bytes:
        """Return the body for the engine at ``there``, of this build. Raises BadRequest and UpstreamFailed."""
        ...

    def sink(self, route: str, body: bytes, sink: Sink) -> Sink:
        """Return the sink for the answer to the client's ``body``."""
        ...

    async def answer_running(
        self, outgoing: Outgoing, request: Request, sink: Sink, status: ChildStatus | None
    ) -> bool:
        """Answer a question to a running model; False: it is not for this one. Raises UpstreamFailed."""
        ...


class Repairing(Protocol):
    """The bodies of one request to an engine that may refuse them: ``body`` is the next one, with these repairs."""

    body: bytes
    names: tuple[str, ...]
    ignored: tuple[str, ...]
    """The parts of the request that the engine passes over in silence."""

    def next_after(self, refused: Refused) -> Refused | None:
        """Change the body, as the engine has refused it; or return the refusal for the client."""
        ...

    def helped(self) -> None:
        """The engine answers the body."""
        ...


class Repair(Protocol):
    """Repairs bodies that engines refuse. A program has one or none; a plain request asks ``remembered`` alone.

    ``remembered`` has each model, with the build of its engine, whose bodies may have to be changed before they leave.
    """

    remembered: Collection[tuple[str, str]]

    def wants(self, model: Model, build: str, body: bytes) -> bool:
        """Return whether the body of a model in ``remembered`` may be one of them."""
        ...

    def holds(self, route: str, model: Model, build: str) -> bool:
        """Return whether `begin` has something to give."""
        ...

    def unable(self, route: str, model: Model, body: bytes) -> BadRequest | None:
        """Return the error for what a model is known not to do. It is asked before the model is loaded.

        A route with an empty body: for what no body changes.
        """
        ...

    def begin(self, route: str, model: Model, build: str, body: bytes) -> Repairing | None:
        """Begin with what has helped before."""
        ...


class Hold(Protocol):
    """Lets requests that ask for it outlive their clients. A program has one or none, and a plain request pays nothing.

    ``header`` is the one that asks for it, in small letters; its value says under which name, in ``most`` bytes.
    """

    header: bytes
    most: int

    def name_in(self, request: Request, guard: Guard, /) -> str | None:
        """Return the name under which a request is held, apart for each key; None: it does not ask. Raises BadRequest.

        Asked for routes whose answers may be streams.
        """
        ...

    async def serve(
        self, name: str, context: RequestContext, job: ModelRequest, serve: Serve, spoken: Spoken, /
    ) -> None:
        """Do ``serve`` to its end, and pass the answer on to the client for as long as that is there.

        What is held is in the client's dialect: ``spoken`` gives the sink for that.

        Raises RequestCancelled, ShuttingDown and Busy.
        """
        ...
