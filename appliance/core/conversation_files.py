"""Conversations as files: reads exports of this program, of llama.cpp's page and of Open WebUI; writes the first two.

The content of a file tells its kind: a ZIP of JSON Lines, JSON Lines of sessions and messages, or one JSON document.
Format of llama.cpp: its web page at b11434. Nothing that a file says of permissions is taken over.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, structs

from appliance.core.parts import UNREADABLE
from appliance.errors import BadRequest
from appliance.wire import Attachment, Conversation, Message, Role, Whole

HARNESS = "llama.app"
MAX_UNPACKED = 256 << 20
"""Bytes of all files of a ZIP."""
MAX_NAME = 255
_DATA_URL = re.compile(r"data:([\w.+/-]{1,127})(?:;[\w=-]+)*;base64,", re.ASCII)
_ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")

_LATEST = 8.64e15
"""Milliseconds since 1970 of JavaScript's last moment (ECMA-262, section 21.4.1.1): pages write these files."""
_Milliseconds = Annotated[float, Meta(ge=-_LATEST, le=_LATEST)]
_Seconds = Annotated[float, Meta(ge=-_LATEST / 1000, le=_LATEST / 1000)]
Files = Mapping[str, tuple[str, bytes]]
"""Attachments by hash: type and content."""


class Found(Struct):
    """The contents of a file. ``files`` are the attachments: type and content."""

    conversations: list[tuple[Conversation, list[Message]]]
    files: list[tuple[str, bytes]]


class _Extra(Struct):
    """An attachment of llama.cpp's page; each type has other members."""

    type: str = ""
    name: str = ""
    content: str = ""
    base64Url: str = ""
    base64Data: str = ""
    mimeType: str = ""


class _TheirMessage(Struct):
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
    extra: list[_Extra] | None = None
    timings: dict[str, object] | None = None


class _TheirConversation(Struct):
    id: str
    name: str = ""
    lastModified: _Milliseconds = 0
    currNode: str | None = None
    pinned: bool | None = None
    folder: str | None = None


class _Line(Struct):
    type: str = ""
    message: _TheirMessage | None = None


class _Pair(Struct):
    conv: _TheirConversation
    messages: list[_TheirMessage]


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


class _Entry(Struct):
    """An entry of any list: llama.cpp's have ``conv``, Open WebUI's do not."""

    conv: Raw | UnsetType = UNSET


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_file(data: bytes) -> Found:
    """Raises BadRequest for what is none of the known files."""
    pairs = _unpacked(data) if data[:2] == b"PK" else _read(data)
    found = Found([], [])
    for pair in pairs:
        found.conversations.append(_taken(pair, found.files))
    return found


def _unpacked(data: bytes) -> list[_Pair]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            names = [each for each in packed.infolist() if each.filename.endswith(".jsonl")]
            if sum(each.file_size for each in names) > MAX_UNPACKED:
                raise BadRequest(f"the files of the ZIP have more than {MAX_UNPACKED} bytes; import fewer at once")
            return [pair for each in names for pair in _lines(packed.read(each))]
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise BadRequest(f"the ZIP cannot be read: {error}") from None


def _read(data: bytes) -> list[_Pair]:
    first = next((line for line in data.splitlines() if line.strip()), b"")
    try:
        if msgspec.json.decode(first, type=_Line).type == "session":
            return _lines(data)
    except UNREADABLE:
        pass
    try:
        match msgspec.json.decode(data, type=_Entry | list[_Entry]):
            case _Entry():
                return [msgspec.json.decode(data, type=_Pair)]
            case [_Entry(conv=Raw()), *_]:
                return msgspec.json.decode(data, type=list[_Pair])
            case _:
                return [_of_open_web_ui(each) for each in msgspec.json.decode(data, type=list[_OpenExport])]
    except UNREADABLE as error:
        raise BadRequest(
            f"the file is not an export of conversations from llama-appliance, llama.cpp or Open WebUI: {error}"
        ) from None


def _lines(data: bytes) -> list[_Pair]:
    pairs: list[_Pair] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            read = msgspec.json.decode(line, type=_Line)
            if read.type == "session":
                pairs.append(_Pair(msgspec.json.decode(line, type=_TheirConversation), []))
            elif read.type == "message" and read.message is not None:
                if not pairs:
                    raise BadRequest(f"line {number} is a message before any conversation")
                pairs[-1].messages.append(read.message)
        except UNREADABLE as error:
            raise BadRequest(f"line {number} cannot be read: {error}") from None
    return pairs


def _of_open_web_ui(export: _OpenExport) -> _Pair:
    messages = [
        _TheirMessage(
            id=each.id,
            parent=each.parentId,
            role=each.role,
            content=each.content or "",
            timestamp=each.timestamp * 1000,
            model=each.model,
        )
        for each in export.chat.history.messages.values()
    ]
    return _Pair(
        _TheirConversation(
            id=export.id,
            name=export.title or export.chat.title,
            lastModified=export.updated_at * 1000,
            currNode=export.chat.history.currentId,
            pinned=export.pinned,
        ),
        messages,
    )


def _taken(pair: _Pair, files: list[tuple[str, bytes]]) -> tuple[Conversation, list[Message]]:
    """In this program's words. Ids are made anew from the old ones, so that importing twice adds nothing.

    llama.cpp's page has a root above the first messages. A parent that is missing, or below its own child, is that
    root: no message gets lost.
    """
    theirs = {each.id: each for each in pair.messages if each.type != "root" and each.role in _ROLES}
    placed: dict[str, str | None] = {}
    for name in theirs:
        chain: list[str] = []
        at: str | None = name
        while at is not None and at in theirs and at not in placed and at not in chain:
            chain.append(at)
            at = theirs[at].parent
        for each in reversed(chain):
            parent = theirs[each].parent
            placed[each] = parent if parent in placed else None
    messages = [_message(pair.conv.id, theirs[name], parent, files) for name, parent in placed.items()]
    last = next(reversed(placed), None)
    leaf = pair.conv.currNode if pair.conv.currNode in placed else last
    when = int(pair.conv.lastModified) or max((message.created for message in messages), default=0)
    made = Conversation(
        id=_renamed(pair.conv.id),
        title=pair.conv.name[:300],
        folder=(pair.conv.folder or "")[:100],
        pinned=bool(pair.conv.pinned),
        created=min((message.created for message in messages), default=when),
        updated=when,
        leaf=_renamed(pair.conv.id, leaf) if leaf else None,
    )
    return made, messages


def _message(conversation: str, theirs: _TheirMessage, parent: str | None, files: list[tuple[str, bytes]]) -> Message:
    content, attachments = theirs.content, list[Attachment]()
    for extra in theirs.extra or ():
        attachment = _attached(extra, files)
        if attachment is not None:
            attachments.append(attachment)
    return Message(
        id=_renamed(conversation, theirs.id),
        parent=_renamed(conversation, parent) if parent else None,
        role=next(role for role in _ROLES if role == theirs.role),
        content=content,
        reasoning=theirs.reasoningContent or theirs.thinking or "",
        tool_calls=_calls(theirs.toolCalls),
        tool_call_id=theirs.toolCallId or "",
        model=theirs.model or "",
        attachments=tuple(attachments),
        timings=theirs.timings,
        created=int(theirs.timestamp),
        revision=1,
    )


def _attached(extra: _Extra, files: list[tuple[str, bytes]]) -> Attachment | None:
    """Text, a data URL, or bare base64; None for what has no content or cannot be read."""
    kind, data = "text/plain", extra.content.encode("utf-8", "replace")
    if extra.type == "PDF" and data:  # its text is what a model can read
        packed = ""
    elif match := _DATA_URL.match(extra.base64Url):
        kind, packed = match[1], extra.base64Url[match.end() :]
    else:
        packed = extra.base64Data
        kind = (
            (extra.mimeType or ("application/pdf" if extra.type == "PDF" else "application/octet-stream"))[:127]
            if packed
            else kind
        )
    if packed:
        try:
            data = base64.b64decode(packed, validate=True)
        except (binascii.Error, ValueError):
            return None
    if not data:
        return None
    files.append((kind, data))
    return Attachment(hash=hashlib.sha256(data).hexdigest(), name=extra.name[:MAX_NAME], type=kind, size=len(data))


def _calls(raw: Raw) -> tuple[Raw, ...]:
    """An array, or, in older files, an array as a string."""
    try:
        text = msgspec.json.decode(raw, type=str) if bytes(raw).startswith(b'"') else bytes(raw)
        return tuple(msgspec.json.decode(text or b"[]", type=list[Raw] | None) or ())
    except UNREADABLE:
        return ()


def _renamed(*names: str) -> str:
    """Ids of this program stay; others become a hash, because they may have any characters and any length."""
    if re.fullmatch(r"[0-9a-f-]{32,36}", names[-1]):
        return names[-1]
    return hashlib.sha256("\0".join(names).encode("utf-8", "replace")).hexdigest()[:32]


# ---- writing ---------------------------------------------------------------------------------------------------------


class _Session(Struct, omit_defaults=True):
    harness: str
    type: str
    id: str
    name: str
    lastModified: int
    currNode: str | None
    pinned: bool = False
    folder: str = ""


class _Written(Struct, omit_defaults=True):
    id: str
    convId: str
    type: str
    timestamp: int
    role: str
    content: str
    parent: str | None
    children: list[str]
    reasoningContent: str | UnsetType = UNSET
    toolCalls: list[Raw] | UnsetType = UNSET
    toolCallId: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    extra: list[dict[str, str]] | UnsetType = UNSET
    timings: dict[str, object] | UnsetType = UNSET


def write_file(whole: Whole, files: Files) -> tuple[str, bytes]:
    """One conversation as JSON Lines that llama.cpp's page reads as well: a name for the file, and its content."""
    conversation = whole.conversation
    root = f"{conversation.id}-root"
    children: dict[str, list[str]] = {root: []}
    for message in whole.messages:
        children.setdefault(message.parent or root, []).append(message.id)
    session = _Session(
        HARNESS, "session", conversation.id, conversation.title, conversation.updated, conversation.leaf,
        conversation.pinned, conversation.folder,
    )  # fmt: skip
    top = _Written(root, conversation.id, "root", conversation.created, "system", "", None, children[root])
    lines: list[object] = [session, {"type": "message", "message": top}]
    for message in whole.messages:
        written = _Written(
            message.id, conversation.id, "text", message.created, message.role, message.content,
            message.parent or root, children.get(message.id, []),
        )  # fmt: skip
        given: dict[str, object] = {
            "reasoningContent": message.reasoning or UNSET,
            "toolCalls": list(message.tool_calls) or UNSET,
            "toolCallId": message.tool_call_id or UNSET,
            "model": message.model or UNSET,
            "extra": [_extra(each, files[each.hash][1]) for each in message.attachments] or UNSET,
            "timings": message.timings if message.timings is not None else UNSET,
        }
        lines.append({"type": "message", "message": structs.replace(written, **given)})
    slug = re.sub(r"[^A-Za-z0-9]+", "_", conversation.title)[:20].strip("_") or "conversation"
    content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    return f"{slug}_{conversation.id[:8]}.jsonl", content


def _extra(attachment: Attachment, data: bytes) -> dict[str, str]:
    packed, kind = base64.b64encode(data).decode(), attachment.type
    if kind.startswith("image/"):
        return {"type": "IMAGE", "name": attachment.name, "base64Url": f"data:{kind};base64,{packed}"}
    if kind.startswith(("audio/", "video/")):
        name = kind.partition("/")[0].upper()
        return {"type": name, "name": attachment.name, "base64Data": packed, "mimeType": kind}
    try:
        text = None if kind == "application/pdf" else data.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None:
        return {"type": "TEXT", "name": attachment.name, "content": text}
    return {"type": "PDF", "name": attachment.name, "base64Data": packed, "mimeType": kind, "content": ""}


def write_many(wholes: Sequence[Whole], files: Files) -> bytes:
    """A ZIP of such files."""
    out, names = io.BytesIO(), set[str]()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for whole in wholes:
            name, content = write_file(whole, files)
            name = f"{whole.conversation.id}.jsonl" if name in names else name
            names.add(name)
            packed.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()
