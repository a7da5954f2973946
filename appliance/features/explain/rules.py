"""The shape of ``GET /api/explain``, what a body holds, and the place where two prompts part; pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, islice

from msgspec import Raw, Struct

from appliance.core.bodies.blocks import HEAD, TEXT, blocks_of
from appliance.core.lenient_json import decoded
from appliance.core.records.activity import Row

MOST = 1000  # messages, tools and other members that are listed of a body, each; a client may send a million
SHOWN = 80  # characters or bytes of a name, of a value, and of each side of a difference
_TEXTS = ("system", "instructions", "prompt", "input_prefix", "input_suffix", "suffix")
_PLACES = {HEAD: "tools, system prompt or template options", TEXT: "the prompt"}


class Outline(Struct, frozen=True):
    """A body of ``size`` bytes: roles of ``messages`` with the bytes of each, the beginning of its ``others``."""

    path: str
    size: int
    messages: list[tuple[str, int]]
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

    ``body``, outlined in ``translated``, is what a dialect made of it, if one did; ``repaired``, outlined in ``sent``,
    is what the engine took instead, if that was repaired. ``ignored`` are members without effect. ``prompt`` is the
    engine's: ``cached`` ends what came from the cache, and ``read`` follows. ``differs`` is where it parts from the
    request ``previous``; None: one begins with all of the other. ``unknown`` has reasons.
    """

    row: Row
    came: Outline
    translated: Outline | None
    body: str
    sent: Outline | None
    repaired: str
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
    messages = [(name, len(members.pop(name))) for name in _TEXTS if name in members]
    given = members.pop("messages", None) or members.pop("input", Raw(b"[]"))
    items = decoded(list[Raw], given)
    for item in items[:MOST] if items is not None else [given]:
        named = decoded(_Named, item) or _Named()
        messages.append(((named.role or named.type or "input")[:SHOWN], len(item)))
    tools = [decoded(_Named, tool) or _Named() for tool in decoded(list[Raw], members.pop("tools", b"")) or ()]
    names = [decoded(str, one.function.get("name", b"")) or one.name or one.type or "?" for one in tools[:MOST]]
    shown = ((name[:SHOWN], bytes(value)[:SHOWN].decode("utf-8", "replace")) for name, value in members.items())
    return Outline(path, len(body), messages, [name[:SHOWN] for name in names], dict(islice(shown, MOST)))


def compared(earlier: Sequence[tuple[int, bytes]], body: bytes) -> tuple[int | None, Difference | None]:
    """Return which of these requests begins most like this one, the first of several, and where their prompts part."""
    new, tried = _Prompt(body), [(id, _Prompt(each)) for id, each in earlier]
    id, old = max(tried, key=lambda one: one[1].shared(new), default=(None, new))
    at = old.shared(new)
    if at == min(len(old.text), len(new.text)):
        return id, None
    number = min(old.message_at(at), new.message_at(at))
    sides = [one.text[max(0, at - SHOWN // 2) : at + SHOWN // 2].decode("utf-8", "replace") for one in (old, new)]
    return id, Difference(_PLACES.get(number, f"message {number}"), at, *sides)


class _Prompt:
    """The parts of a body that reach the prompt, in the prompt's order."""

    def __init__(self, body: bytes) -> None:
        self._blocks = blocks_of(body)
        self.text = b"".join(block for _, block in self._blocks)

    def shared(self, other: _Prompt) -> int:
        both = range(min(len(self.text), len(other.text)))
        return bisect_left(both, True, key=lambda at: self.text[: at + 1] != other.text[: at + 1])

    def message_at(self, at: int) -> int:
        ends = accumulate(len(block) for _, block in self._blocks)
        return next(number for (number, _), end in zip(self._blocks, ends, strict=True) if at < end)
