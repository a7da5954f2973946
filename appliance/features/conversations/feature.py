"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING

from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    from appliance.core.turns.documents import ReadText
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import EdgeAnswer, EdgeRoute, Kernel

FILE = "conversations.db"


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    """The configuration may name another file than `FILE`, and ``--no-conversations`` keeps none."""
    from appliance.features.conversations.owner import open_conversations
    from appliance.platform.home import expanded

    kept = ground.config.conversations
    path = expanded(kept.path) if kept.path else ground.data / FILE
    keeps = ground.settings.conversations and kept.enabled

    async with open_conversations(path if keeps else None, kept.max_bytes) as conversations:

        def routes(kernel: Kernel) -> Routes:
            from appliance.features.conversations.routes import conversation_routes

            return conversation_routes(kernel, conversations)

        def edge(kernel: Kernel) -> EdgeRoute:
            from appliance.features.conversations.paths import FILES, file_route
            from appliance.http.late import LateRoute

            def make() -> EdgeAnswer:
                from appliance.features.conversations.file_routes import FileRoutes

                return FileRoutes(conversations, kernel.edge.bodies)

            return LateRoute(lambda request: file_route(request) in FILES, make)

        @cache
        def texts() -> ReadText:
            from appliance.features.conversations.documents import DocumentTexts

            return DocumentTexts(ground.assembled)

        async def read_text(name: str, data: bytes) -> str:
            return await texts()(name, data)

        folders = {"conversations": path} if keeps else {}
        yield ServerParts(routes=routes, edges=(edge,), folders=folders, audience=conversations, texts=read_text)


CONVERSATIONS = Feature(name="conversations", open=_open)
