"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING

from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    from appliance.core.config.additions import FeatureKeys
    from appliance.core.turns.documents import ReadText
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import EdgeAnswer, EdgeRoute, Kernel
    from appliance.http.route_facts import DescribedRoute

FILE = "conversations.db"


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    """The configuration may name another file than `FILE`, and ``--no-conversations`` keeps none."""
    from appliance.features.conversations.keys import ConversationKeys
    from appliance.features.conversations.owner import open_conversations
    from appliance.platform.home import expanded

    kept = ground.config.keys_of(ConversationKeys).conversations
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


def _described() -> Sequence[DescribedRoute]:
    from appliance.features.conversations.paths import FILES
    from appliance.http.route_facts import AS_MODELS, DescribedRoute, RouteFacts
    from appliance.traffic.request import CONVERSATIONS

    says = {
        "export": "A file of conversations: JSON Lines of one, a ZIP of several.",
        "import": "The conversations in a file, which is the body; nothing is kept yet.",
        "pack": "A ZIP of the conversations in the body.",
        "pdf": "The text of a PDF document, which is the body.",
        "text": "The text of a PDF or Word document, which is the body.",
        "unpack": "The conversations in a ZIP, which is the body.",
    }
    facts = RouteFacts(most=AS_MODELS)
    named = [(method, name) for method, name in sorted(FILES) if method != "HEAD"]
    return [DescribedRoute(method, f"{CONVERSATIONS}/{name}", facts, says[name]) for method, name in named]


def _keys() -> type[FeatureKeys]:
    from appliance.features.conversations.keys import ConversationKeys

    return ConversationKeys


CONVERSATIONS = Feature(name="conversations", keys=_keys, open=_open, described=_described)
