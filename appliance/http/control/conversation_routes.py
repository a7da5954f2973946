"""The page's conversations over HTTP: ``/api/conversations``. Everything here needs the key."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import quote

import msgspec
import trio
from msgspec import Struct
from quart import Response, request
from quart_trio import QuartTrio

from appliance.conversations import Conversations
from appliance.core.bodies.sse import Event, encode
from appliance.core.conversation_files import Files, read_file, write_file, write_many
from appliance.errors import BadRequest
from appliance.http.control.answers import endless_answer, json_answer, read_as, read_body
from appliance.http.control.model_routes import CONTENT_TYPE, ModelEvent, ModelFeed
from appliance.http.owners import Owners
from appliance.tools.pdf import read_pdf
from appliance.traffic.traffic import Lifetime
from appliance.wire import Carton, Fields, File, Hash, Hit, Id, Message, Preset, Whole


class _Changed(ModelEvent, frozen=True, omit_defaults=True):
    """``conversation_changed``; without a ``conversation`` anything may have changed."""

    conversation: str | None = None


class PageFeed(ModelFeed):
    """The records of a `ModelFeed`, and one for each change of a conversation, within its look at models."""

    def __init__(self, owners: Owners, lifetime: Lifetime) -> None:
        super().__init__(owners.fleet, owners.catalog, owners.downloads, lifetime, everything=True, readme=False)
        self._conversations: Conversations = owners.conversations
        self._told = self._conversations.latest
        self._greeted = False

    def _collect(self) -> bytes:
        records = super()._collect()
        if not self._greeted:  # a proxy passes an answer's head on with its first bytes
            self._greeted, records = True, records or b": hello\n\n"
        changes = self._conversations.changes_since(self._told)
        self._told = self._conversations.latest
        names = dict.fromkeys(change.conversation for change in changes)
        told = (_Changed("", "conversation_changed", conversation=name) for name in names)
        return records + b"".join(encode(Event(msgspec.json.encode(each).decode())) for each in told)


MAX_TYPE = 127
SHOWN_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp", "audio/", "video/")
"""Attachments that a browser may show as what they are; all others it only stores."""

T = TypeVar("T")


class _Fork(Struct):
    message: Id


class _Restored(Struct):
    ids: list[Id]
    leaf: Id | None = None


class _Hits(Struct):
    data: list[Hit]


class _Deleted(Struct):
    ids: list[str]


class _Imported(Struct):
    imported: list[str]
    skipped: list[str]


class _Attached(Struct):
    hash: Hash
    size: int
    type: str


class ConversationRoutes:
    """Every method is one route. Raises what `Conversations` raises."""

    def __init__(self, owners: Owners, lifetime: Lifetime) -> None:
        self._owners = owners
        self._lifetime = lifetime
        self._conversations = owners.conversations

    async def list(self) -> Response:
        return json_answer(await self._conversations.list())

    async def events(self) -> Response:
        """The events of models and conversations from now on; the models' state comes first."""
        if request.method == "HEAD":
            return Response("", content_type=CONTENT_TYPE)
        return endless_answer(PageFeed(self._owners, self._lifetime), CONTENT_TYPE, self._lifetime.feeds)

    async def search(self) -> Response:
        return json_answer(_Hits(await self._conversations.search(request.args.get("q", ""))))

    async def show(self, conversation: str) -> Response:
        """With ``?since=N`` only what has changed after the change of that number."""
        since = request.args.get("since", "0")
        if not since.isdigit():
            raise BadRequest("'since' is the number of a change", param="since")
        return json_answer(await self._conversations.read(conversation, int(since)))

    async def change(self, conversation: str) -> Response:
        """Change the fields that are given; a conversation that is not there is made."""
        fields = await read_as(Fields)
        if isinstance(fields.settings, msgspec.Raw) and not bytes(fields.settings).startswith(b"{"):
            raise BadRequest("'settings' is a JSON object", param="settings")
        return json_answer(await self._conversations.change(_id(conversation), fields))

    async def delete(self, conversation: str) -> Response:
        await self._conversations.delete(conversation)
        return Response("", 204)

    async def restore(self, conversation: str) -> Response:
        await self._conversations.restore(conversation)
        return Response("", 204)

    async def fork(self, conversation: str) -> Response:
        return json_answer(await self._conversations.fork(conversation, (await read_as(_Fork)).message), 201)

    async def write(self, conversation: str, message: str) -> Response:
        """Write a message; ``revision`` is the newest that the writer has seen, see `Written.branched`."""
        sent = await read_as(Message)
        if sent.id != message:
            raise BadRequest("the message's id is not that of the path", param="id")
        return json_answer(await self._conversations.write(conversation, sent))

    async def delete_message(self, conversation: str, message: str) -> Response:
        """With everything that answers it."""
        return json_answer(_Deleted(await self._conversations.delete_message(conversation, message)))

    async def restore_messages(self, conversation: str) -> Response:
        asked = await read_as(_Restored)
        await self._conversations.restore_messages(conversation, list(asked.ids), asked.leaf)
        return Response("", 204)

    async def empty(self) -> Response:
        """All conversations, for good: ``?all=1`` says that this is meant."""
        if request.args.get("all") != "1":
            raise BadRequest("this deletes all conversations for good; add ?all=1 if you mean that", param="all")
        await self._conversations.empty()
        return Response("", 204)

    async def attach(self) -> Response:
        data = await read_body()
        kind = request.headers.get("Content-Type", "")[:MAX_TYPE] or "application/octet-stream"
        return json_answer(_Attached(await self._conversations.attach(kind, data), len(data), kind), 201)

    async def attachment(self, digest: str) -> Response:
        kind, data = await self._conversations.attachment(digest)
        shown = kind if kind.startswith(SHOWN_TYPES) else "application/octet-stream"
        response = Response(data, content_type=shown)
        response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        response.headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    async def export(self) -> Response:
        """``?id=`` (repeatable) chooses; else everything. One is a JSON Lines file, several are a ZIP of them."""
        chosen = request.args.getlist("id") or [each.id for each in (await self._conversations.list()).conversations]
        wholes = [await self._conversations.read(conversation) for conversation in chosen]
        return await _file(wholes, {each: await self._conversations.attachment(each) for each in _hashes(wholes)})

    async def pack(self) -> Response:
        """The same file of the conversations in the body, for a browser that keeps its own. Nothing is stored."""
        sent = await read_as(Carton)
        if missing := _hashes(sent.conversations) - sent.files.keys():
            raise BadRequest(f"the attachment '{min(missing)}' is named, and missing among 'files'", param="files")
        return await _file(sent.conversations, {name: (file.type, file.data) for name, file in sent.files.items()})

    async def unpack(self) -> Response:
        """Read a file as `import_file` does, and answer with its content. Nothing is stored."""
        found = await trio.to_thread.run_sync(read_file, await read_body())
        wholes = tuple(Whole(conversation=each, messages=tuple(messages)) for each, messages in found.conversations)
        files = {hashlib.sha256(data).hexdigest(): File(type=kind, data=data) for kind, data in found.files}
        return json_answer(Carton(conversations=wholes, files=files))

    async def pdf(self) -> Response:
        """The text of a PDF, for the question that it is attached to. Nothing is stored."""
        return json_answer(await read_pdf(await read_body()))

    async def preset(self) -> Response:
        """Keep settings under a name for every browser; null deletes them."""
        sent = await read_as(Preset)
        if not bytes(sent.settings).startswith(b"{") and bytes(sent.settings) != b"null":
            raise BadRequest("'settings' is a JSON object, or null to delete the preset", param="settings")
        await self._conversations.set_preset(sent)
        return Response("", 204)

    async def import_file(self) -> Response:
        """A file of this program, of llama.cpp's page or of Open WebUI; what it is, its content says."""
        found = await trio.to_thread.run_sync(read_file, await read_body())
        added = await self._conversations.add(found.conversations, found.files)
        skipped = [each.id for each, _ in found.conversations if each.id not in added]
        return json_answer(_Imported(added, skipped))


def _hashes(wholes: Sequence[Whole]) -> set[str]:
    return {each.hash for whole in wholes for message in whole.messages for each in message.attachments}


async def _file(wholes: Sequence[Whole], files: Files) -> Response:
    """One conversation as a JSON Lines file, any other number as a ZIP of them."""
    if len(wholes) == 1:
        name, content = await trio.to_thread.run_sync(write_file, wholes[0], files)
        kind = "application/jsonl; charset=utf-8"
    else:
        name, content = "conversations.zip", await trio.to_thread.run_sync(write_many, wholes, files)
        kind = "application/zip"
    response = Response(content, content_type=kind)
    response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(name)}"
    response.headers["Cache-Control"] = "no-store"
    return response


def _id(text: str) -> str:
    try:
        return msgspec.convert(text, Id)
    except msgspec.ValidationError:
        raise BadRequest("an id has letters, digits and any of '_.:-', 128 at most") from None


def add_conversation_routes(app: QuartTrio, routes: ConversationRoutes) -> None:
    """Register everything here on the program's application."""
    app.add_url_rule("/api/conversations", "conversations", routes.list)
    app.add_url_rule("/api/conversations", "empty conversations", routes.empty, methods=["DELETE"])
    app.add_url_rule("/api/conversations/events", "page events", routes.events)
    app.add_url_rule("/api/conversations/search", "search conversations", routes.search)
    app.add_url_rule("/api/conversations/export", "export", routes.export)
    app.add_url_rule("/api/conversations/import", "import", routes.import_file, methods=["POST"])
    app.add_url_rule("/api/conversations/pack", "pack", routes.pack, methods=["POST"])
    app.add_url_rule("/api/conversations/unpack", "unpack", routes.unpack, methods=["POST"])
    app.add_url_rule("/api/conversations/pdf", "text of pdf", routes.pdf, methods=["POST"])
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
