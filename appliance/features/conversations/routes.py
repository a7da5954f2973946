"""The page's conversations over HTTP: ``/api/conversations``. Everything here needs the key."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from quart import Response, request

from appliance.core.bodies.sse import SseEvent, encode
from appliance.core.parameters import read_whole, shown
from appliance.errors import BadRequest, NotFound
from appliance.features.conversations.core.tree import UNKNOWN_TYPE, shown_type
from appliance.features.conversations.owner import Conversations
from appliance.features.conversations.shapes import (
    Conversation,
    ConversationListing,
    Fields,
    Id,
    MessageNode,
    Removed,
    StoredPreset,
    Whole,
    WrittenMessage,
)
from appliance.http.control.answers import (
    EVENT_STREAM,
    endless_answer,
    json_answer,
    packed_answer,
    parse_as,
    read_as,
    read_body,
)
from appliance.http.control.model_feed import ModelEvent, ModelFeed
from appliance.http.control.routes import FOLLOWS, LARGE, Routes, large
from appliance.http.kernel import Kernel
from appliance.http.route_facts import RouteFacts
from appliance.http.way.outgoing import CONVERSATION
from appliance.traffic.inflight import InFlightSum, Wait

MAX_TYPE = 127


class _Changed(ModelEvent, frozen=True, omit_defaults=True):
    """``conversation_changed``; without a ``conversation`` anything may have changed."""

    conversation: str | None = None


class PageFeed(ModelFeed):
    """The records of a `ModelFeed`, and one for each change of a conversation, within its look at models.

    Besides, whenever that is different: ``answers_waiting``, all answers that wait for their model, and ``under_way``,
    how many requests are under way, with the slowest phase.
    """

    def __init__(self, kernel: Kernel, conversations: Conversations) -> None:
        super().__init__(kernel.owners, kernel.traffic.lifetime, everything=True, readme=False)
        self._conversations = conversations
        self._inflight = kernel.traffic.inflight
        self._waits: dict[str, Wait] = {}
        self._under_way = InFlightSum()
        self._told = self._conversations.latest
        self._greeted = False

    def _collect(self) -> bytes:
        records = super()._collect()
        if not self._greeted:  # a proxy passes an answer's head on with its first bytes
            self._greeted, records = True, records or b": hello\n\n"
        changes = self._conversations.changes_since(self._told)
        self._told = self._conversations.latest
        names = dict.fromkeys(change.conversation for change in changes)
        told: list[ModelEvent] = [_Changed("", "conversation_changed", conversation=name) for name in names]
        if (waits := self._inflight.waits(CONVERSATION)) != self._waits:
            self._waits = waits
            told.append(ModelEvent("", "answers_waiting", waits))
        if (under_way := self._inflight.summed()) != self._under_way:
            self._under_way = under_way
            told.append(ModelEvent("", "under_way", under_way))
        return records + b"".join(encode(SseEvent(msgspec.json.encode(each).decode())) for each in told)


class ForkRequest(Struct):
    message: Id


class RestoredMessages(Struct):
    ids: list[Id]
    leaf: Id | None = None
    moved: list[Id] = []


class SeveralIds(Struct):
    ids: list[Id]


def conversation_routes(kernel: Kernel, kept: Conversations) -> Routes:
    routes, one = Routes("conversations", LARGE), "/api/conversations/<conversation>"

    @routes.get("/api/conversations", facts=RouteFacts(gives=ConversationListing))
    async def show_all() -> Response:
        """With ``?since=N`` only what has changed after the change of that number."""
        return await packed_answer(await kept.list(_since()))

    @routes.delete("/api/conversations", facts=large(SeveralIds))
    async def delete_several() -> Response:
        """Delete those of the body, or with ``?all=1`` all of them and for good; to name none may be a mistake."""
        if request.args.get("all") == "1":
            await kept.empty()
            return Response("", 204)
        body = await read_body()
        if not body:
            message = 'name the conversations to delete as {"ids": [...]}, or add ?all=1 to delete all for good'
            raise BadRequest(message, param="ids")
        return json_answer({"ids": await kept.delete(*parse_as(body, SeveralIds).ids)})

    @routes.post("/api/conversations/restore", facts=large(SeveralIds))
    async def restore_several() -> Response:
        await kept.restore(*(await read_as(SeveralIds)).ids)
        return Response("", 204)

    @routes.get("/api/conversations/events", facts=FOLLOWS)
    async def follow_page() -> Response:
        """The events of models and conversations from now on; the models' state comes first."""
        return endless_answer(PageFeed(kernel, kept), EVENT_STREAM, kernel.traffic.lifetime.feeds)

    @routes.get("/api/conversations/search")
    async def search() -> Response:
        return json_answer({"data": await kept.search(request.args.get("q", ""))})

    @routes.put("/api/conversations/presets", facts=large(StoredPreset))
    async def keep_preset() -> Response:
        """Keep settings under a name for every browser; null deletes them."""
        sent = await read_as(StoredPreset)
        if not bytes(sent.settings).startswith(b"{") and bytes(sent.settings) != b"null":
            raise BadRequest("'settings' is a JSON object, or null to delete the preset", param="settings")
        await kept.set_preset(sent)
        return Response("", 204)

    @routes.post("/api/conversations/attachments")
    async def attach() -> Response:
        data = await read_body()
        kind = request.headers.get("Content-Type", "")[:MAX_TYPE] or UNKNOWN_TYPE
        return json_answer({"hash": await kept.attach(kind, data), "size": len(data), "type": kind}, 201)

    @routes.get("/api/conversations/attachments/<digest>")
    async def show_attachment(digest: str) -> Response:
        kind, data = await kept.attachment(digest)
        response = Response(data, content_type=shown_type(kind))
        response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        response.headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    @routes.get(one, facts=RouteFacts(gives=Whole))
    async def show(conversation: str) -> Response:
        """With ``?since=N`` only what has changed after the change of that number."""
        return json_answer(await kept.read(conversation, _since()))

    @routes.put(one, facts=large(Fields, Conversation))
    async def change(conversation: str) -> Response:
        """Change the fields that are given; a conversation that is not there is made."""
        fields = await read_as(Fields)
        if isinstance(fields.settings, msgspec.Raw) and not bytes(fields.settings).startswith(b"{"):
            raise BadRequest("'settings' is a JSON object", param="settings")
        return json_answer(await kept.change(_id(conversation), fields))

    @routes.delete(one)
    async def delete(conversation: str) -> Response:
        if not await kept.delete(conversation):
            raise NotFound(f"there is no conversation '{conversation}'")
        return Response("", 204)

    @routes.post(f"{one}/restore")
    async def restore(conversation: str) -> Response:
        await kept.restore(conversation)
        return Response("", 204)

    @routes.post(f"{one}/fork", facts=large(ForkRequest, Conversation))
    async def fork(conversation: str) -> Response:
        return json_answer(await kept.fork(conversation, (await read_as(ForkRequest)).message), 201)

    @routes.post(f"{one}/messages/restore", facts=large(RestoredMessages))
    async def restore_messages(conversation: str) -> Response:
        asked = await read_as(RestoredMessages)
        await kept.restore_messages(conversation, asked.ids, asked.leaf, asked.moved)
        return Response("", 204)

    @routes.put(f"{one}/messages/<message>", facts=large(MessageNode, WrittenMessage))
    async def write(conversation: str, message: str) -> Response:
        """Write a message; ``revision`` is the newest that the writer has seen, see `WrittenMessage`."""
        sent = await read_as(MessageNode)
        if sent.id != message:
            raise BadRequest("the message's id is not that of the path", param="id")
        return json_answer(await kept.write(conversation, sent))

    @routes.delete(f"{one}/messages/<message>", facts=RouteFacts(gives=Removed))
    async def delete_message(conversation: str, message: str) -> Response:
        """With everything that answers it, or with ``?alone=1`` without."""
        alone = request.args.get("alone") == "1"
        return json_answer(await kept.delete_message(conversation, message, alone=alone))

    return routes


def _since() -> int:
    return read_whole(request.args.get("since", "0"), "since")


def _id(text: str) -> str:
    try:
        return msgspec.convert(text, Id)
    except msgspec.ValidationError:
        message = f"the id of a conversation has letters, digits and any of '_.:-', 128 at most, not {shown(text)}"
        raise BadRequest(message, param="conversation") from None
