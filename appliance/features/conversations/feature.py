"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import EdgeRoute, Kernel

FILE = "conversations.db"


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    """The configuration may name another file than `FILE`, and ``--no-conversations`` keeps none."""
    from appliance.features.conversations.documents import DocumentTexts
    from appliance.features.conversations.file_routes import FileRoutes
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
            return FileRoutes(conversations, kernel.edge.bodies)

        folders = {"conversations": path} if keeps else {}
        yield ServerParts(
            routes=routes, edges=(edge,), folders=folders, audience=conversations, texts=DocumentTexts(ground.assembled)
        )


CONVERSATIONS = Feature(name="conversations", open=_open)
