"""The rules of a conversation's tree: what may be written, what becomes of conflicting writes, what a branch is.

A message's parent and role are fixed when it is made, and its parent is there before it, so the tree has no cycle by
construction. Two writers never overwrite each other: a write that has not seen the newest revision becomes a sibling.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, Struct, structs

from appliance.core.lenient_json import decoded
from appliance.core.openai import tool_call
from appliance.core.turns.chat import ChatEvents
from appliance.core.turns.messages import CallDelta, ReasoningDelta, TextDelta, TurnFailed
from appliance.errors import BadRequest
from appliance.features.conversations.shapes import MessageNode, State, WrittenMessage

MAX_TEXT = 8 << 20  # characters of one message with its thoughts; a book has less than one million
MAX_TITLE = 60
UNKNOWN_TYPE = "application/octet-stream"
_SHOWN_TYPE = re.compile(r"image/(?:png|jpeg|gif|webp)|(?:audio|video)/[a-z0-9][a-z0-9.+-]{0,63}")
"""Attachments that a browser may show as what they are; all others it only stores."""
TAIL = 1 << 14  # bytes at the end of a stream in which its timings are looked for
MAX_WORDS = 20  # words of a search; the others are ignored
AROUND = 60  # characters that an excerpt shows before a hit; after it come twice as many
_BLANK = re.compile(r"[\s\2\3]")
_UNSEEN = str.maketrans("\0\2\3", "   ")
"""SQLite would take the first for the end of a text, and excerpts have their own use for the others."""
_FOREIGN = re.compile(r"[^\0-\x7f]{1,4096}")  # bounded, so that other threads run while a long text is folded


def write(known: Mapping[str, MessageNode], sent: MessageNode, new_id: str, now: int) -> WrittenMessage:
    """Decide what a sent message becomes in a conversation of these messages. Raises BadRequest.

    ``sent.revision`` is the newest that its writer has seen, 0 for a message that is new.
    """
    if len(sent.content) + len(sent.reasoning) > MAX_TEXT:
        raise BadRequest(f"a message may have {MAX_TEXT} characters; split it", param="content")
    if sent.parent is not None and sent.parent not in known:
        raise BadRequest(f"the message '{sent.parent}' is not in this conversation; write it first", param="parent")
    before = known.get(sent.id)
    if before is None:
        return WrittenMessage(message=structs.replace(sent, revision=1, created=sent.created or now))
    if (before.parent, before.role) != (sent.parent, sent.role):
        raise BadRequest("a message keeps its parent and its role; write another message", param="parent")
    if before.revision != sent.revision:
        if structs.replace(before, revision=0, created=0) == structs.replace(sent, revision=0, created=0):
            return WrittenMessage(message=before)
        if sent.state == "answering":  # the answer under way is the other one's
            sent = structs.replace(sent, state="done")
        return WrittenMessage(message=structs.replace(sent, id=new_id, revision=1, created=now), branched=True)
    return WrittenMessage(message=structs.replace(sent, revision=before.revision + 1, created=before.created))


def below(parents: Mapping[str, str | None], message: str) -> list[str]:
    """The message and everything that answers it, at any distance; each after its parent."""
    children: dict[str | None, list[str]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found = [message]
    for each in found:
        found += children.get(each, ())
    return found


def path_to(parents: Mapping[str, str | None], leaf: str | None) -> list[str]:
    """The branch that ends with ``leaf``, from its root on; empty for one that is not there."""
    found: list[str] = []
    while leaf is not None and leaf in parents:
        found.append(leaf)
        leaf = parents[leaf]
    return found[::-1]


def shown_type(kind: str) -> str:
    """The Content-Type under which an attachment is given out, without parameters, whatever it was stored as."""
    essence = kind.partition(";")[0].strip().lower()
    return essence if _SHOWN_TYPE.fullmatch(essence) else UNKNOWN_TYPE


def title_of(text: str) -> str:
    """A title made of the first line of what was asked."""
    line = next((" ".join(line.split()) for line in text.splitlines() if line.strip()), "")
    if len(line) <= MAX_TITLE:
        return line
    return line[:MAX_TITLE].rsplit(" ", 1)[0].rstrip(" ,.;:") + "…"


def folded(text: str) -> str:
    """The text without case, accents and other ways to write the same letter: what a search compares.

    Every character is folded by itself, and nothing is composed again. So the folded form of a part of a text is a
    part of the folded form of the text, and a search for any part finds it.
    """
    return _FOREIGN.sub(_fold, text).lower().translate(_UNSEEN)


def _fold(found: re.Match[str]) -> str:
    plain = unicodedata.normalize("NFKD", found[0].casefold())
    return "".join(letter for letter in plain if not unicodedata.combining(letter)).casefold()


def words_of(query: str) -> list[str]:
    """The folded words of a search. A text is found if each of them is a part of it."""
    return folded(query).split()[:MAX_WORDS]


def excerpt(text: str, words: Sequence[str]) -> str:
    """The surroundings of the first hit, on one line, with U+0002 and U+0003 around every hit in them."""
    whole = folded(text)
    first = min((place for word in words if (place := whole.find(word)) >= 0), default=0)
    begin = max(_place(text, first) - AROUND, 0)
    shown = _BLANK.sub(" ", text[begin : begin + 3 * AROUND])
    letters = [(at, letter) for at, each in enumerate(shown) for letter in folded(each)]
    window = "".join(letter for _, letter in letters)
    hit = {
        letters[at][0]
        for word in words
        for found in re.finditer(re.escape(word), window)
        for at in range(found.start(), found.end())
    }
    marked = "".join(f"\2{each}\3" if at in hit else each for at, each in enumerate(shown)).replace("\3\2", "")
    return ("…" if begin else "") + marked + ("…" if begin + 3 * AROUND < len(text) else "")


def _place(text: str, wanted: int) -> int:
    """Return which character of a text has the folded character at ``wanted``."""
    at = 0
    for size in (4096, 1):
        while at < len(text) and (width := len(folded(text[at : at + size]))) <= wanted:
            wanted, at = wanted - width, at + size
    return at


def copied(messages: Sequence[MessageNode], ids: Mapping[str, str]) -> list[MessageNode]:
    """The messages under new ids; an answer under way is copied as far as it is."""
    return [
        structs.replace(
            message, id=ids[message.id], parent=ids.get(message.parent or ""), revision=1,
            state="interrupted" if message.state == "answering" else message.state,
        )
        for message in messages
    ]  # fmt: skip


class StoredMessage(Struct, frozen=True, kw_only=True):
    """A message as the store keeps it: its JSON, the text that is searched, and the files that it names."""

    id: str
    body: bytes
    content: bytes
    hashes: tuple[str, ...]


def stored(message: MessageNode) -> StoredMessage:
    body, hashes = msgspec.json.encode(message), tuple(each.hash for each in message.attachments)
    return StoredMessage(id=message.id, body=body, content=message.content.encode(), hashes=hashes)


class _Timed(Struct):
    timings: dict[str, object] | None = None
    usage: dict[str, object] | None = None
    model: str = ""


class _GatheredCall(Struct):
    id: str = ""
    name: str = ""
    arguments: str = ""


class AnswerText:
    """Gathers a streamed chat answer for the message that it belongs to, behind what the message has already."""

    def __init__(self, message: MessageNode) -> None:
        self._message = message
        self._events = ChatEvents()
        self._text = [message.content]
        self._thoughts = [message.reasoning]
        self._calls: dict[int, _GatheredCall] = {}
        self._tail = b""
        self._failed = ""

    def feed(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL:]
        for event in self._events.feed(data):
            match event:
                case TextDelta(text=text):
                    self._text.append(text)
                case ReasoningDelta(text=text):
                    self._thoughts.append(text)
                case CallDelta(index=index, id=call_id, name=name, arguments=arguments):
                    call = self._calls.setdefault(index, _GatheredCall())
                    call.id, call.name = call.id or call_id, call.name + name
                    call.arguments += arguments
                case TurnFailed(detail=detail):
                    self._failed = detail
                case _:
                    pass

    @property
    def so_far(self) -> MessageNode:
        """The message as it is now, still under way."""
        calls = tuple(
            Raw(msgspec.json.encode(tool_call(c.id, c.name, c.arguments))) for _, c in sorted(self._calls.items())
        )
        return structs.replace(
            self._message, content="".join(self._text), reasoning="".join(self._thoughts), tool_calls=calls
        )

    def ended(self, *, stopped: bool, cut: bool) -> MessageNode:
        """The message for good. ``stopped``: somebody asked for its end; ``cut``: the program or the engine ended."""
        state: State = "failed"
        if self._events.ended and not self._failed:
            state = "done"
        elif stopped:
            state = "stopped"
        elif cut:
            state = "interrupted"
        error = (self._failed or "the answer broke off before its end") if state == "failed" else ""
        timed = self._timed()
        return structs.replace(
            self.so_far, state=state, error=error, model=self._message.model or timed.model,
            timings=timed.timings or timed.usage,
        )  # fmt: skip

    def _timed(self) -> _Timed:
        for line in reversed(self._tail.split(b"\n")):
            has_numbers = line.startswith(b"data:") and (b'"timings"' in line or b'"usage"' in line)
            if has_numbers and (timed := decoded(_Timed, line[5:])) is not None:
                return timed
        return _Timed()
