"""The running program as its features see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from appliance.catalog.configuration import Files
from appliance.core.config.types import Config
from appliance.core.runs.inward import Asker
from appliance.core.settings import HttpSettings
from appliance.core.turns.documents import ReadText
from appliance.core.turns.tasks import RunTask
from appliance.http.owners import Owners
from appliance.http.route_facts import DescribedRoute
from appliance.http.way.ask import Ask
from appliance.http.way.context import RequestContext
from appliance.http.way.edge import Edge
from appliance.traffic.request import Request, Sink
from appliance.traffic.traffic import Traffic

if TYPE_CHECKING:
    from appliance.core.examination import Examiner
    from appliance.http.way.pipeline import Hooks


Get = Callable[[RequestContext], Awaitable[None]]
"""Answers GET and HEAD of a path. Raises ApplianceError and ClientLeft."""


class Kernel(Struct, frozen=True, kw_only=True):
    """The owners of the program, the parts of its server, and the program as its own client."""

    owners: Owners
    edge: Edge
    ask: Ask
    inward: Asker
    hooks: Callable[[], Hooks]
    """The hooks of features, as soon as the program is put together."""
    gets: Callable[[], Mapping[str, Callable[[], Get]]]
    """By path, what makes the functions of features that answer without Quart, as soon as the program is put together.
    """
    described: Callable[[], Sequence[DescribedRoute]]
    """Describes the routes of features that are neither among ``gets`` nor on Quart, for documents and OpenAPI."""
    data: Path
    """The program's data folder, in which a feature has folders of its own."""
    files: Files | None
    """The configuration's; None without one."""
    examiners: Callable[[], Sequence[Examiner]]
    """Make the parts of features in an examination (`appliance.core.examination`)."""
    defaults: Config = Config()
    """The settings that apply without a configuration."""
    run_task: RunTask | None = None
    """Runs a task of an agent to its end; None in a program without runs."""
    texts: ReadText | None = None
    """Reads PDF and Word documents; None in a program that cannot."""

    def in_force(self) -> Config:
        """The configuration in force, or the defaults."""
        return self.owners.catalog.snapshot.config or self.defaults

    @property
    def traffic(self) -> Traffic:
        """The record of requests."""
        return self.edge.traffic

    @property
    def settings(self) -> HttpSettings:
        """The settings of the server."""
        return self.edge.settings


class FilesInPlace(Protocol):
    """Files that stand in the place of the page."""

    async def answer(self, request: Request, sink: Sink, /) -> bool:
        """False, with nothing sent: the request does not mean a file, and another route may answer it."""
        ...


class EdgeAnswer(Protocol):
    """Answers requests without Quart."""

    async def answer(self, context: RequestContext, /) -> None:
        """Raises ApplianceError and ClientLeft."""
        ...


class EdgeRoute(EdgeAnswer, Protocol):
    """Routes that are answered without Quart: asked often, or with a body or a client that needs more care."""

    def answers(self, request: Request, /) -> bool:
        """Return whether the request is for it. The key and the sender are checked already."""
        ...
