"""The page's conversations over HTTP: ``/api/conversations``. Everything here needs the key."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct
from quart import Response, request

from appliance.features.conversations.owner import Conversations
from appliance.core.bodies.sse import SseEvent, encode
from appliance.features.conversations.core.tree import UNKNOWN_TYPE, shown_type
from appliance.core.parameters import read_whole, shown
from appliance.errors import BadRequest, NotFound
from appliance.http.control.answers import (
    EVENT_STREAM,
    endless_answer,
    json_answer,
    packed_answer,
    parse_as,
    read_as,
    read_body,
)
from appliance.http.control.model_routes import ModelEvent, ModelFeed
from appliance.http.control.routes import FOLLOWS, Routes
from appliance.http.owners import Owners
from appliance.http.way.outgoing import CONVERSATION
from appliance.traffic.inflight import InFlight, InFlightSum, Wait
from appliance.traffic.traffic import Lifetime
from appliance.wire import Fields, Id, MessageNode, StoredPreset

MAX_TYPE = 127
T = TypeVar("T")


class _Changed(ModelEvent, frozen=True, omit_defaults=True):
    """``conversation_changed``; without a ``conversation`` anything may have changed."""

    conversation: str | None = None


class PageFeed(ModelFeed):
    """The records of a `ModelFeed`, and one for each change of a conversation, within its look at models.

    Besides, whenever that is different: ``answers_waiting``, all answers that wait for their model, and ``under_way``,
    how many requests are under way, with the slowest phase.
    """

    def __init__(self, owners: Owners, inflight: InFlight, lifetime: Lifetime) -> None:
        super().__init__(owners, lifetime, everything=True, readme=False)
        self._conversations: Conversations = owners.conversations
        self._inflight = inflight
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


class _Fork(Struct):
    message: Id


class _Restored(Struct):
    ids: list[Id]
    leaf: Id | None = None
    moved: list[Id] = []


class _Several(Struct):
    ids: list[Id]


class ConversationRoutes:
    """Every method is one route. Raises what `Conversations` raises."""

    def __init__(self, owners: Owners, inflight: InFlight, lifetime: Lifetime) -> None:
        self._owners = owners
        self._inflight = inflight
        self._lifetime = lifetime
        self._conversations = owners.conversations

    async def list(self) -> Response:
        """With ``?since=N`` only what has changed after the change of that number."""
        since = read_whole(request.args.get("since", "0"), "since")
        return await packed_answer(await self._conversations.list(since))

    async def events(self) -> Response:
        """The events of models and conversations from now on; the models' state comes first."""
        return endless_answer(
            PageFeed(self._owners, self._inflight, self._lifetime), EVENT_STREAM, self._lifetime.feeds
        )

    async def search(self) -> Response:
        return json_answer({"data": await self._conversations.search(request.args.get("q", ""))})

    async def show(self, conversation: str) -> Response:
        """With ``?since=N`` only what has changed after the change of that number."""
        since = read_whole(request.args.get("since", "0"), "since")
        return json_answer(await self._conversations.read(conversation, since))

    async def change(self, conversation: str) -> Response:
        """Change the fields that are given; a conversation that is not there is made."""
        fields = await read_as(Fields)
        if isinstance(fields.settings, msgspec.Raw) and not bytes(fields.settings).startswith(b"{"):
            raise BadRequest("'settings' is a JSON object", param="settings")
        return json_answer(await self._conversations.change(_id(conversation), fields))

    async def delete(self, conversation: str) -> Response:
        if not await self._conversations.delete(conversation):
            raise NotFound(f"there is no conversation '{conversation}'")
        return Response("", 204)

    async def restore(self, conversation: str) -> Response:
        await self._conversations.restore(conversation)
        return Response("", 204)

    async def restore_several(self) -> Response:
        await self._conversations.restore(*(await read_as(_Several)).ids)
        return Response("", 204)

    async def fork(self, conversation: str) -> Response:
        return json_answer(await self._conversations.fork(conversation, (await read_as(_Fork)).message), 201)

    async def write(self, conversation: str, message: str) -> Response:
        """Write a message; ``revision`` is the newest that the writer has seen, see `Written.branched`."""
        sent = await read_as(MessageNode)
        if sent.id != message:
            raise BadRequest("the message's id is not that of the path", param="id")
        return json_answer(await self._conversations.write(conversation, sent))

    async def delete_message(self, conversation: str, message: str) -> Response:
        """With everything that answers it, or with ``?alone=1`` without."""
        alone = request.args.get("alone") == "1"
        return json_answer(await self._conversations.delete_message(conversation, message, alone=alone))

    async def restore_messages(self, conversation: str) -> Response:
        asked = await read_as(_Restored)
        await self._conversations.restore_messages(conversation, asked.ids, asked.leaf, asked.moved)
        return Response("", 204)

    async def delete_several(self) -> Response:
        """Delete those of the body, or with ``?all=1`` all of them and for good; to name none may be a mistake."""
        if request.args.get("all") == "1":
            await self._conversations.empty()
            return Response("", 204)
        body = await read_body()
        if not body:
            message = 'name the conversations to delete as {"ids": [...]}, or add ?all=1 to delete all for good'
            raise BadRequest(message, param="ids")
        return json_answer({"ids": await self._conversations.delete(*parse_as(body, _Several).ids)})

    async def attach(self) -> Response:
        data = await read_body()
        kind = request.headers.get("Content-Type", "")[:MAX_TYPE] or UNKNOWN_TYPE
        digest = await self._conversations.attach(kind, data)
        return json_answer({"hash": digest, "size": len(data), "type": kind}, 201)

    async def attachment(self, digest: str) -> Response:
        kind, data = await self._conversations.attachment(digest)
        response = Response(data, content_type=shown_type(kind))
        response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        response.headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    async def preset(self) -> Response:
        """Keep settings under a name for every browser; null deletes them."""
        sent = await read_as(StoredPreset)
        if not bytes(sent.settings).startswith(b"{") and bytes(sent.settings) != b"null":
            raise BadRequest("'settings' is a JSON object, or null to delete the preset", param="settings")
        await self._conversations.set_preset(sent)
        return Response("", 204)


def _id(text: str) -> str:
    try:
        return msgspec.convert(text, Id)
    except msgspec.ValidationError:
        message = f"the id of a conversation has letters, digits and any of '_.:-', 128 at most, not {shown(text)}"
        raise BadRequest(message, param="conversation") from None


def add_conversation_routes(app: Routes, routes: ConversationRoutes) -> None:
    """Register everything here on the program's application."""
    app.add_url_rule("/api/conversations", "conversations", routes.list)
    app.add_url_rule("/api/conversations", "delete conversations", routes.delete_several, methods=["DELETE"])
    restore = "/api/conversations/restore"
    app.add_url_rule(restore, "restore conversations", routes.restore_several, methods=["POST"])
    app.add_url_rule("/api/conversations/events", "page events", routes.events, facts=FOLLOWS)
    app.add_url_rule("/api/conversations/search", "search conversations", routes.search)
    app.add_url_rule("/api/conversations/presets", "preset", routes.preset, methods=["PUT"])
    app.add_url_rule("/api/conversations/attachments", "attach", routes.attach, methods=["POST"])
    app.add_url_rule("/api/conversations/attachments/<digest>", "attachment", routes.attachment)
    one = "/api/conversations/<conversation>"
    app.add_url_rule(one, "conversation", routes.show)
    app.add_url_rule(one, "change conversation", routes.change, methods=["PUT"])
    app.add_url_rule(one, "delete conversation", routes.delete, methods=["DELETE"])
    app.add_url_rule(f"{one}/restore", "restore conversation", routes.restore, methods=["POST"])
    app.add_url_rule(f"{one}/fork", "fork", routes.fork, methods=["POST"])
    app.add_url_rule(f"{one}/messages/restore", "restore messages", routes.restore_messages, methods=["POST"])
    app.add_url_rule(f"{one}/messages/<message>", "write message", routes.write, methods=["PUT"])
    app.add_url_rule(f"{one}/messages/<message>", "delete message", routes.delete_message, methods=["DELETE"])
