"""The shapes in which other programs save conversations, all read as those of llama.cpp's page at b11434.

A list in JSON may have conversations of Open WebUI (0.6), of ChatGPT's export of data (2026) and of llama.cpp's older
forms. Nothing that a file says of permissions is taken over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.errors import BadRequest

PLACE = "root"
_LATEST = 8.64e15
"""Milliseconds since 1970 of JavaScript's last moment (ECMA-262, section 21.4.1.1): pages write these files."""
_Milliseconds = Annotated[float, Meta(ge=-_LATEST, le=_LATEST)]
_Seconds = Annotated[float, Meta(ge=-_LATEST / 1000, le=_LATEST / 1000)]


class SavedFile(Struct):
    """An attachment of llama.cpp's page; each type has other members."""

    type: str = ""
    name: str = ""
    content: str = ""
    base64Url: str = ""
    base64Data: str = ""
    mimeType: str = ""


class SavedMessage(Struct):
    """One of the type `PLACE` is not a message: it only stands above others in the tree."""

    id: str
    parent: str | None = None
    role: str = ""
    type: str = "text"
    content: str = ""
    timestamp: _Milliseconds = 0
    reasoningContent: str | None = None
    thinking: str | None = None
    toolCalls: Raw = Raw(b"null")
    toolCallId: str | None = None
    model: str | None = None
    extra: list[SavedFile] | None = None
    timings: dict[str, object] | None = None


class SavedConversation(Struct):
    id: str
    name: str = ""
    lastModified: _Milliseconds = 0
    currNode: str | None = None
    pinned: bool | None = None
    folder: str | None = None


class SavedLine(Struct):
    type: str = ""
    message: SavedMessage | None = None


class Saved(Struct):
    conv: SavedConversation
    messages: list[SavedMessage]


class _OpenMessage(Struct):
    id: str
    role: str
    parentId: str | None = None
    content: str | None = None
    timestamp: _Seconds = 0
    model: str | None = None


class _OpenHistory(Struct):
    messages: dict[str, _OpenMessage]
    currentId: str | None = None


class _OpenChat(Struct):
    history: _OpenHistory
    title: str = ""


class _OpenExport(Struct):
    id: str
    chat: _OpenChat
    title: str = ""
    updated_at: _Seconds = 0
    pinned: bool | None = None


class _GptMessage(Struct):
    author: _GptAuthor
    content: Raw = Raw(b"null")
    create_time: _Seconds | None = None
    recipient: str | None = None
    metadata: Raw = Raw(b"null")


class _GptAuthor(Struct):
    role: str


class _GptContent(Struct):
    content_type: str = ""
    parts: list[Raw] | None = None


class _GptPart(Struct):
    """An element of ``parts`` that has a shape of its own: words that were spoken, or the name of a picture."""

    content_type: str = ""
    text: str = ""


class _GptMetadata(Struct):
    is_visually_hidden_from_conversation: bool | None = None
    model_slug: str | None = None
    attachments: list[SavedFile] | None = None


class _GptNode(Struct):
    message: _GptMessage | None = None
    parent: str | None = None


class _GptExport(Struct):
    mapping: dict[str, _GptNode]
    title: str | None = None
    conversation_id: str | None = None
    id: str | None = None
    update_time: _Seconds | None = None
    current_node: str | None = None


class _Entry(Struct):
    """A conversation of any program: llama.cpp's have ``conv``, ChatGPT's ``mapping``, and Open WebUI's neither."""

    conv: Raw | UnsetType = UNSET
    mapping: Raw | UnsetType = UNSET


def read_json(data: bytes, where: str = "the file") -> Iterator[Saved]:
    """Read one JSON document. A list is read one by one, so that its conversations are not all held twice."""
    place = where
    try:
        entries = msgspec.json.decode(data, type=list[Raw]) if data.lstrip()[:1] == b"[" else [data]
        for number, entry in enumerate(entries, 1):
            place = f"{where}, conversation {number}," if len(entries) > 1 else where
            match msgspec.json.decode(entry, type=_Entry):
                case _Entry(conv=Raw()):
                    yield msgspec.json.decode(entry, type=Saved)
                case _Entry(mapping=Raw()):
                    yield _of_chatgpt(msgspec.json.decode(entry, type=_GptExport))
                case _:
                    yield _of_open_web_ui(msgspec.json.decode(entry, type=_OpenExport))
    except UNREADABLE as error:
        raise BadRequest(
            f"{place} is not an export of conversations from llama-appliance, llama.cpp, Open WebUI or ChatGPT: {error}"
        ) from None


def read_lines(lines: Iterable[bytes], where: str = "") -> Iterator[Saved]:
    """Read JSON Lines of sessions and messages. ``where`` begins what is said of a wrong line."""
    pair: Saved | None = None
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            read = msgspec.json.decode(line, type=SavedLine)
            if read.type == "session":
                if pair is not None:
                    yield pair
                pair = Saved(msgspec.json.decode(line, type=SavedConversation), [])
            elif read.type == "message" and read.message is not None:
                if pair is None:
                    raise BadRequest(f"{where}line {number} is a message before any conversation")
                pair.messages.append(read.message)
        except UNREADABLE as error:
            raise BadRequest(f"{where}line {number} cannot be read: {error}") from None
    if pair is not None:
        yield pair


def _of_open_web_ui(export: _OpenExport) -> Saved:
    messages = [
        SavedMessage(
            each.id, each.parentId, each.role, content=each.content or "", timestamp=each.timestamp * 1000,
            model=each.model,
        )
        for each in export.chat.history.messages.values()
    ]  # fmt: skip
    name, when = export.title or export.chat.title, export.updated_at * 1000
    return Saved(SavedConversation(export.id, name, when, export.chat.history.currentId, export.pinned), messages)


def _of_chatgpt(export: _GptExport) -> Saved:
    """Take over the words of questions and answers, as ChatGPT's page shows them. The format is not documented.

    Instructions, calls of tools and their results, hidden messages and empty ones only stand above others. A message
    may have the same id in two conversations, so ids are made from both.
    """
    name = export.conversation_id or export.id or export.current_node or ""
    messages = [
        _of_gpt_message(f"{name}/{at}", f"{name}/{node.parent}", node.message) for at, node in export.mapping.items()
    ]
    when = (export.update_time or 0) * 1000
    current = f"{name}/{export.current_node}"
    return Saved(SavedConversation(id=name, name=export.title or "", lastModified=when, currNode=current), messages)


def _of_gpt_message(name: str, parent: str, message: _GptMessage | None) -> SavedMessage:
    if message is None:
        return SavedMessage(id=name, parent=parent, type=PLACE)
    about = decoded(_GptMetadata, message.metadata) or _GptMetadata()
    role, seen = message.author.role, not about.is_visually_hidden_from_conversation
    text = _gpt_text(message.content, [file.name for file in about.attachments or ()])
    seen = seen and bool(text) and role in ("user", "assistant") and message.recipient in (None, "", "all")
    when = (message.create_time or 0) * 1000
    return SavedMessage(name, parent, role, "text" if seen else PLACE, text, when, model=about.model_slug)


def _gpt_text(raw: Raw, files: Sequence[str]) -> str:
    """The words, and the names of files, which the export does not hold."""
    content = decoded(_GptContent, raw) or _GptContent()
    if content.content_type not in ("text", "multimodal_text"):
        return ""
    said = [f"[{file}]" for file in files if file]
    for part in content.parts or ():
        text = decoded(str, part)
        if text is None:
            other = decoded(_GptPart, part) or _GptPart()
            text = other.text or ("[image]" if other.content_type.startswith("image") and not files else "")
        if text:
            said.append(text)
    return "\n\n".join(said)
