"""The turn of a chat that may want tools. The first one that does imports the rest, `chat_tools`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import structs

from appliance.core.bodies.head import RequestHead
from appliance.features.tools.box import OpenToolbox
from appliance.http.way.context import ModelRequest, Use
from appliance.http.way.routes import Route


class ToolChats:
    """Asks a model, with tools where the request wants them. ``timeout`` tells how many seconds one use may take."""

    acts = True

    def __init__(self, toolbox: OpenToolbox, timeout: Callable[[], float], ping_after: float) -> None:
        self._toolbox = toolbox
        self._timeout = timeout
        self._ping_after = ping_after

    def is_for(self, route: Route) -> bool:
        return True

    def wants(self, route: Route, head: RequestHead, body: bytes) -> bool:
        return head.extended

    def take(self, job: ModelRequest, model: str) -> tuple[ModelRequest, Use | None]:
        """Return the request without its member of ours, and what answers it where it wants tools.

        Raises BadRequest and Forbidden. ``Use`` raises as `answer_chat`.
        """
        if not job.extended:
            return job, None
        from appliance.features.tools.chat_tools import answer_chat, read_tool_chat

        body, chat = read_tool_chat(job.body, job.route.name, self._toolbox, honoured=not job.request.inward)
        job = job if body is job.body else structs.replace(job, body=body)
        if chat is None:
            return job, None
        return job, partial(answer_chat, self._toolbox, self._timeout(), self._ping_after, chat)
