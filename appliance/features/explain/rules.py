"""The shape of ``GET /api/explain``, what a body holds, and the place where two prompts part; pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, islice

from msgspec import Raw, Struct

from appliance.core.bodies.blocks import HEAD, TEXT, blocks_of
from appliance.core.lenient_json import decoded
from appliance.wire import Row

MOST = 1000
"""Messages, tools and other members that are listed of a body, each; a client may send a million."""
SHOWN = 80
"""Characters or bytes that are shown of a name, of a value, and of each side of a difference."""
_TEXTS = ("system", "instructions", "prompt", "input_prefix", "input_suffix", "suffix")
_PLACES = {HEAD: "tools, system prompt or template options", TEXT: "the prompt"}


class Message(Struct, frozen=True):
    """A message, or another item or text of a prompt; ``bytes`` is the length of its JSON."""

    role: str
    bytes: int


class Outline(Struct, frozen=True):
    """A body of ``size`` bytes; ``others`` are all other members, with the beginning of their JSON."""

    path: str
    size: int
    messages: list[Message]
    tools: list[str]
    others: dict[str, str]


class Difference(Struct, frozen=True):
    """The place where two prompts part, ``at`` bytes from their beginning, and what each has there."""

    where: str
    at: int
    before: str
    now: str


class Explained(Struct, frozen=True):
    """One captured request. ``row`` is its row of the activity log, with its repairs and its cache.

    ``translated`` and its ``body`` are what a dialect made of it; empty where it went as it came. ``ignored`` are
    members without effect. ``prompt`` is the one that its engine has; its text ``cached`` came last from the cache, and
    ``read`` follows. ``differs`` is the place where it parts from the request ``previous``; None where one begins with
    all of the other. ``unknown`` says what could not be told, and why.
    """

    row: Row
    came: Outline
    translated: Outline | None
    body: str
    ignored: str
    prompt: str | None
    cached: str
    read: str
    previous: int | None
    differs: Difference | None
    unknown: list[str]


class _Named(Struct):  # a message, another item or a tool, of any dialect
    role: str = ""
    type: str = ""
    name: str = ""
    function: dict[str, Raw] = {}


def outline(path: str, body: bytes) -> Outline:
    """Return the contents of a body of any dialect; of one that is not a JSON object, its size."""
    members = decoded(dict[str, Raw], body) or {}
    messages = [Message(name, len(members.pop(name))) for name in _TEXTS if name in members]
    given = members.pop("messages", None) or members.pop("input", Raw(b"[]"))
    if decoded(list[Raw], given) is None:
        messages.append(Message("input", len(given)))
    messages += [Message((one.role or one.type or "?")[:SHOWN], size) for one, size in _named(given)]
    found = [one for one, _ in _named(members.pop("tools", Raw(b"[]")))]
    tools = [decoded(str, one.function.get("name", b"")) or one.name or one.type or "?" for one in found]
    others = {name[:SHOWN]: _text(bytes(value)[:SHOWN]) for name, value in islice(members.items(), MOST)}
    return Outline(path, len(body), messages, [tool[:SHOWN] for tool in tools], others)


def _named(items: Raw) -> list[tuple[_Named, int]]:
    listed = islice(decoded(list[Raw], items) or (), MOST)
    return [(decoded(_Named, item) or _Named(), len(item)) for item in listed]


def _text(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def compared(earlier: Sequence[tuple[int, bytes]], body: bytes) -> tuple[int | None, Difference | None]:
    """Compare a request with the one of these that begins most like it, the first of several.

    Return the id of that, and the place where the prompts part in what the clients sent.
    """
    new = _prompt(body)
    tried = [(_shared(old, new), id, old) for id, old in ((id, _prompt(each)) for id, each in earlier)]
    at, id, old = max(tried, key=lambda one: one[0], default=(0, None, b""))
    if at == min(len(old), len(new)):
        return id, None
    blocks = blocks_of(body)
    ends = accumulate(len(block) for _, block in blocks)
    number = next(number for (number, _), end in zip(blocks, ends, strict=True) if at < end)
    before, now = (_text(text[max(0, at - SHOWN // 2) : at + SHOWN // 2]) for text in (old, new))
    return id, Difference(_PLACES.get(number, f"message {number}"), at, before, now)


def _prompt(body: bytes) -> bytes:
    return b"".join(block for _, block in blocks_of(body))


def _shared(old: bytes, new: bytes) -> int:
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if old[low:middle] == new[low:middle] else (low, middle - 1)
    return low
