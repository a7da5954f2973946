"""Conversations as files: reads exports of this program and of others (`formats`), writes its own.

The content of a file tells its kind: a ZIP, JSON Lines of sessions and messages, or one JSON document.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, cast

import msgspec
from msgspec import Raw, Struct

from appliance.core.archives import BadArchive, open_members
from appliance.core.bodies.head import check_json
from appliance.core.lenient_json import UNREADABLE
from appliance.core.parameters import shown
from appliance.errors import BadRequest, shortened
from appliance.features.conversations.core import formats
from appliance.features.conversations.core.tree import UNKNOWN_TYPE, StoredMessage, stored
from appliance.features.conversations.shapes import Attachment, Carton, Conversation, File, MessageNode, Role, Whole

HARNESS = "llama.app"
MAX_UNPACKED = 192 << 20
"""Bytes of all lines of a file. The store gets the text of messages twice, and all of it has to be held at once."""
MAX_LINES = 500_000  # A line is a message. An empty one costs its reader as much as any other.
MAX_FILES = 50_000  # conversations in a ZIP
MAX_PIECE = 16 << 20  # bytes of a message, and of an attachment: what the routes take that write one
_RECORD = struct.Struct(">c3I")
MAX_NAME = 255
_DATA_URL = re.compile(r"data:([\w.+/-]{1,127})(?:;[\w=-]+)*;base64,", re.ASCII)
_JSON = re.compile(r"(?:.*/)?conversations(?:-\d+)?\.json", re.DOTALL)
"""ChatGPT packs its conversations into one such file, or a hundred into each."""
_ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")

FilesIn = list[tuple[str, bytes]]  # attachments: type and content
Files = Mapping[str, tuple[str, bytes]]  # attachments by hash: type and content


class Arrived(Struct):
    """A conversation on its way into the store, with its attachments: type and content."""

    conversation: Conversation
    messages: list[StoredMessage]
    files: FilesIn


def read_file(data: bytes) -> Iterator[tuple[Whole, FilesIn]]:
    """Yield one conversation after the other. Raises BadRequest for what is none of the known files, at any moment."""
    return map(_taken, _unpacked(data) if data[:2] == b"PK" else _read(data))


def for_store(data: bytes) -> Iterator[bytes]:
    """The same as bytes that `each_arrived` reads. Raises BadRequest."""
    for whole, files in read_file(data):
        yield _record(b"c", msgspec.json.encode(whole.conversation))
        for message in map(stored, whole.messages):
            _check_size("a message", len(message.body), whole.conversation.title)
            yield _record(b"m", msgspec.json.encode((message.id, message.hashes)), message.body, message.content)
        for kind, content in files:
            yield _record(b"f", kind.encode(), content)


def each_arrived(take: Callable[[int], bytes]) -> Iterator[Arrived]:
    """Read what `for_store` has made. ``take`` returns the next so many bytes, none at the end."""
    arrived: Arrived | None = None
    while head := take(_RECORD.size):
        kind, *sizes = _RECORD.unpack(head)
        first, second, third = map(take, sizes)
        if kind == b"c":
            if arrived is not None:
                yield arrived
            arrived = Arrived(msgspec.json.decode(first, type=Conversation), [], [])
        elif arrived is not None and kind == b"m":
            name, hashes = msgspec.json.decode(first, type=tuple[str, tuple[str, ...]])
            arrived.messages.append(StoredMessage(id=name, body=second, content=third, hashes=hashes))
        elif arrived is not None:
            arrived.files.append((first.decode(), second))
    if arrived is not None:
        yield arrived


def for_page(data: bytes) -> Iterator[bytes]:
    """The same as the JSON of a `Carton`. Raises BadRequest."""
    files: dict[str, File] = {}
    opened = b'{"conversations":['
    for whole, found in read_file(data):
        yield opened + msgspec.json.encode(whole)
        opened = b","
        files |= {hashlib.sha256(content).hexdigest(): File(type=kind, data=content) for kind, content in found}
    yield (b"" if opened == b"," else opened) + b'],"files":{'
    for number, (name, file) in enumerate(files.items()):
        yield b'%b"%b":' % (b"," if number else b"", name.encode()) + msgspec.json.encode(file)
    yield b"}}"


def _record(kind: bytes, *parts: bytes) -> bytes:
    """One thing of up to three parts."""
    return b"".join((_RECORD.pack(kind, *map(len, parts), *[0] * (3 - len(parts))), *parts))


def _check_size(what: str, size: int, title: str) -> None:
    """Refuse a piece that would keep the store, and so everybody else, busy for too long. Raises BadRequest."""
    if size > MAX_PIECE:
        raise BadRequest(
            f"{what} in the conversation '{shortened(title)}' has {size} bytes, and may have "
            f"{MAX_PIECE}: remove it there, and export again"
        )


def _unpacked(data: bytes) -> Iterator[formats.Saved]:
    lines = _Lines()
    try:
        with open_members(io.BytesIO(data), "zip", MAX_FILES) as members:
            for member in members:
                if member.open is None:
                    continue
                if member.path.endswith(".jsonl"):
                    with member.open() as file:
                        yield from formats.read_lines(lines.each(file), f"{shown(member.path)}, ")
                elif _JSON.fullmatch(member.path):
                    with member.open() as file:
                        content = b"".join(lines.each(file))
                    yield from formats.read_json(content, shown(member.path))
    except BadArchive as error:
        raise BadRequest(f"the ZIP cannot be read: {error}") from None


def _read(data: bytes) -> Iterable[formats.Saved]:
    lines = _Lines()
    first = next((line for line in _Lines().each(io.BytesIO(data)) if line.strip()), b"")
    try:
        if msgspec.json.decode(first, type=formats.SavedLine).type == "session":
            return formats.read_lines(lines.each(io.BytesIO(data)))
    except UNREADABLE:
        pass
    return formats.read_json(data)


class _Lines:
    """The lines of all files of an import, counted against one budget."""

    def __init__(self) -> None:
        self._bytes = MAX_UNPACKED
        self._lines = MAX_LINES

    def each(self, file: IO[bytes]) -> Iterator[bytes]:
        """Raises BadRequest."""
        lines = io.BufferedReader(cast("io.RawIOBase", file), 1 << 16)
        while line := lines.readline(self._bytes + 1):
            self._bytes -= len(line)
            self._lines -= 1
            if self._bytes < 0 or self._lines < 0:
                raise BadRequest(
                    f"unpacked, the file has more than {MAX_UNPACKED} bytes or {MAX_LINES} lines; export fewer "
                    "conversations at once"
                )
            yield line


def _taken(pair: formats.Saved) -> tuple[Whole, FilesIn]:
    """In this program's words. Ids are made anew from the old ones, so that importing twice adds nothing.

    llama.cpp's page has a root above the first messages, and others have more such places. A parent that is missing, or
    below its own child, is that root: no message gets lost.
    """
    theirs = {each.id: each for each in pair.messages}
    placed: dict[str, str | None] = {}
    for name in theirs:
        chain: dict[str, None] = {}
        at: str | None = name
        while at is not None and at in theirs and at not in placed and at not in chain:
            chain[at] = None
            at = theirs[at].parent
        for each in reversed(chain):
            parent = theirs[each].parent
            placed[each] = parent if parent in placed else None
    shown_at: dict[str | None, str | None] = {}
    """The message itself, or the next one above it, where it is only a place."""
    for name, parent in placed.items():
        is_message = theirs[name].type != formats.PLACE and theirs[name].role in _ROLES
        shown_at[name] = name if is_message else shown_at.get(parent)
    shown = [name for name in placed if shown_at[name] == name]
    files: FilesIn = []
    messages = [_message(pair.conv.id, theirs[name], shown_at.get(placed[name]), files) for name in shown]
    leaf = shown_at.get(pair.conv.currNode) or next(reversed(shown), None)
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
    for _, content in files:
        _check_size("a file", len(content), made.title)
    return Whole(conversation=made, messages=tuple(messages)), files


def _message(conversation: str, theirs: formats.SavedMessage, parent: str | None, files: FilesIn) -> MessageNode:
    return MessageNode(
        id=_renamed(conversation, theirs.id),
        parent=_renamed(conversation, parent) if parent else None,
        role=next(role for role in _ROLES if role == theirs.role),
        content=theirs.content,
        reasoning=theirs.reasoningContent or theirs.thinking or "",
        tool_calls=_calls(theirs.toolCalls),
        tool_call_id=theirs.toolCallId or "",
        model=theirs.model or "",
        attachments=tuple(each for extra in theirs.extra or () if (each := _attached(extra, files))),
        timings=theirs.timings,
        created=int(theirs.timestamp),
        revision=1,
    )


def _attached(extra: formats.SavedFile, files: FilesIn) -> Attachment | None:
    """Text, a data URL, or bare base64; None for what has no content or cannot be read."""
    kind, data = "text/plain", extra.content.encode("utf-8", "replace")
    packed = ""
    if extra.type == "PDF" and data:
        pass  # its text is what a model can read
    elif match := _DATA_URL.match(extra.base64Url):
        kind, packed = match[1], extra.base64Url[match.end() :]
    elif packed := extra.base64Data:
        kind = (extra.mimeType or ("application/pdf" if extra.type == "PDF" else UNKNOWN_TYPE))[:127]
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


def write_file(whole: Whole, files: Files) -> tuple[str, bytes]:
    """One conversation as JSON Lines that llama.cpp's page reads as well: a name for the file, and its content."""
    conversation = whole.conversation
    root = f"{conversation.id}-root"
    children: dict[str, list[str]] = {root: []}
    for message in whole.messages:
        children.setdefault(message.parent or root, []).append(message.id)
    session = {
        "harness": HARNESS, "type": "session", "id": conversation.id, "name": conversation.title,
        "lastModified": conversation.updated, "currNode": conversation.leaf,
        **_filled(pinned=conversation.pinned, folder=conversation.folder),
    }  # fmt: skip
    top = {
        "id": root, "convId": conversation.id, "type": "root", "timestamp": conversation.created, "role": "system",
        "content": "", "parent": None, "children": children[root],
    }  # fmt: skip
    lines: list[object] = [session, {"type": "message", "message": top}]
    for message in whole.messages:
        written = {
            "id": message.id, "convId": conversation.id, "type": "text", "timestamp": message.created,
            "role": message.role, "content": message.content, "parent": message.parent or root,
            "children": children.get(message.id, []),
            **_filled(
                reasoningContent=message.reasoning, toolCalls=message.tool_calls, toolCallId=message.tool_call_id,
                model=message.model, extra=[_extra(each, files[each.hash][1]) for each in message.attachments],
                timings=message.timings,
            ),
        }  # fmt: skip
        lines.append({"type": "message", "message": written})
    slug = re.sub(r"[^A-Za-z0-9]+", "_", conversation.title)[:20].strip("_") or "conversation"
    content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    return f"{slug}_{conversation.id[:8]}.jsonl", content


def _filled(**members: object) -> dict[str, object]:
    return {name: value for name, value in members.items() if value or value == {}}


def _extra(attachment: Attachment, data: bytes) -> dict[str, str]:
    packed, kind = base64.b64encode(data).decode(), attachment.type
    if kind.startswith("image/"):
        return {"type": "IMAGE", "name": attachment.name, "base64Url": f"data:{kind};base64,{packed}"}
    if kind.startswith(("audio/", "video/")):
        name = kind.partition("/")[0].upper()
        return {"type": name, "name": attachment.name, "base64Data": packed, "mimeType": kind}
    if kind != "application/pdf":
        with suppress(UnicodeDecodeError):
            return {"type": "TEXT", "name": attachment.name, "content": data.decode()}
    return {"type": "PDF", "name": attachment.name, "base64Data": packed, "mimeType": kind, "content": ""}


def pack(body: bytes) -> tuple[str, bytes]:
    """An export of the `Carton` in a request's body: name and content. Raises BadRequest."""
    check_json(body)
    try:
        sent = msgspec.json.decode(body, type=Carton)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the request body cannot be used: {error}") from None
    if missing := named_files(sent.conversations) - sent.files.keys():
        raise BadRequest(f"the attachment '{min(missing)}' is named, and missing among 'files'", param="files")
    return write_export(sent.conversations, {name: (file.type, file.data) for name, file in sent.files.items()})


def write_export(wholes: Sequence[Whole], files: Files) -> tuple[str, bytes]:
    """One conversation as a JSON Lines file, any other number as a ZIP of them: name and content."""
    if len(wholes) == 1:
        return write_file(wholes[0], files)
    out, names = io.BytesIO(), set[str]()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for whole in wholes:
            name, content = write_file(whole, files)
            name = f"{whole.conversation.id}.jsonl" if name in names else name
            names.add(name)
            packed.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return "conversations.zip", out.getvalue()


def named_files(wholes: Iterable[Whole]) -> set[str]:
    return {each.hash for whole in wholes for message in whole.messages for each in message.attachments}
