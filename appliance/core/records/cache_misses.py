"""Decides why an engine had to read a prompt again: from what is known when the request is over, and nothing else.

An engine reuses what an earlier prompt and this one have in common, from their beginning on. The tokens are not known
here, so some reasons stay unknown, and the words say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Literal

from msgspec import Struct, structs

from appliance.core.bodies.blocks import HEAD

MissKind = Literal["off", "moved", "engine", "loaded", "unknown", "new", "busy", "evicted", "others", "changed"]
MAX_CONVERSATIONS = 1000
"""Conversations of a model that are remembered; one whose last use is longer ago counts as new."""
MAX_NAME = 100
"""Characters of a conversation's id that are kept."""


class CacheRoom(Struct, frozen=True):
    """The room of one process for prompts; the next process has another one."""

    since: float
    """Unix time of its model's load."""
    slots: int = 0
    """0: unknown."""
    kept: int = 0
    """Bytes of main memory for prompts that left their slot; it says something only where ``slots`` is known."""


class SlotNews(Struct, frozen=True):
    """The fate of a conversation's context since its last request, as far as it is known."""

    taker: str | None = None
    """The conversation that took its slot; empty: a request that named none."""
    edited: int | None = None
    """The message from which on its prompt is another one, if that is in its first half; `blocks.HEAD`: before them."""
    came_back: str = ""
    """The size of the file that its slot got back, and the time for it, in words."""


class CacheUse(Struct, frozen=True, kw_only=True):
    """One request that an engine has worked on. Times are seconds on any one clock."""

    conversation: str
    """Empty: the request names none."""
    prompt: int = -1
    """Tokens; -1: the engine did not say."""
    cached: int = -1
    began: float
    ended: float
    build: str = ""
    room: CacheRoom | None = None
    """That of its model's latest process, so it never comes back once another one has followed; None for a model
    elsewhere."""
    loaded: bool = False
    """It waited for its model's load."""
    off: bool = False
    """It wants nothing from the cache."""
    moved: bool = False
    """It went on with another engine."""
    alone: bool = True
    """No other request was under way at its end."""
    news: SlotNews = SlotNews()


class CacheVerdict(Struct, frozen=True):
    """The fate of one request's prompt in the cache."""

    conversation: str = ""
    miss: MissKind | None = None
    """None: nothing was missed, or nothing is known."""
    why: str = ""
    """The tokens and the reason in words; empty where the engine did not say."""
    again: int = 0
    """Tokens that the conversation's request before had as well, more or less, and that were not in the cache."""


class CacheUses:
    """The last use of each conversation of each model, in the order of their ends."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, CacheUse]] = {}

    def judge(self, model: str, use: CacheUse) -> CacheVerdict:
        """Return the verdict on this request, which has just ended, and remember it."""
        uses = self._models.setdefault(model, {})
        before = uses.get(use.conversation) if use.conversation else None
        verdict = CacheVerdict(use.conversation)
        if use.prompt > 0 and use.cached >= 0:
            source = f"back from a file ({use.news.came_back})" if use.news.came_back else "from the cache"
            told = f"{use.cached} of {use.prompt} prompt tokens came {source}"
            known = min(before.prompt, use.prompt) if before is not None else 0
            verdict = CacheVerdict(use.conversation, None, told, max(0, known - use.cached))
            # Tokens behind the prompt before are new, and their reading is not a miss. Without a prompt before, half of
            # this one stands for it: the rest is mostly what the conversation has got since.
            if 2 * use.cached < (known if known > 0 else use.prompt):
                others = _others(uses, before)
                kind = _kind(use, before, uses, others)
                why = _words(kind, use, before, others)
                verdict = structs.replace(verdict, miss=kind, why=f"{told}: {why}")
        uses.pop(use.conversation, None)
        uses[use.conversation] = use
        if len(uses) > MAX_CONVERSATIONS:
            del uses[next(iter(uses))]
        return verdict


def _kind(use: CacheUse, before: CacheUse | None, uses: dict[str, CacheUse], others: Sequence[CacheUse]) -> MissKind:
    if use.off:
        return "off"
    if use.moved:
        return "moved"
    is_same = before is not None and before.room == use.room
    if before is not None and not is_same and before.build and use.build and before.build != use.build:
        return "engine"
    is_first = use.room is not None and not any(each.room == use.room for each in reversed(uses.values()))
    if use.loaded or is_first or (before is not None and not is_same):
        return "loaded"
    if not use.conversation:
        return "unknown"
    if before is None:
        return "new"
    if before.ended > use.began:
        return "busy"
    if use.news.edited is not None:
        return "changed"
    if use.news.taker is not None:
        return "evicted"
    room = use.room
    if room is None:
        return "unknown"
    if room.slots == 1 and not room.kept and any(each.prompt > 0 for each in others):
        return "evicted"
    return "others" if others or not use.alone else "changed"


def _others(uses: dict[str, CacheUse], before: CacheUse | None) -> Sequence[CacheUse]:
    """The last uses by others since the conversation's own, the newest first."""
    return [*takewhile(lambda each: each is not before, reversed(uses.values()))] if before is not None else ()


def _words(kind: MissKind, use: CacheUse, before: CacheUse | None, others: Sequence[CacheUse]) -> str:
    match kind:
        case "off":
            return "the request has cache_prompt: false"
        case "moved":
            return "it went on with another engine"
        case "engine":
            old = before.build if before is not None else ""
            return f"the model has moved from the engine {old} to {use.build} since"
        case "loaded" if use.loaded:
            return "the model was loaded for it"
        case "loaded":
            return "the model has been loaded since the conversation's last request, or just before this one"
        case "unknown" if use.conversation:
            return "nothing is known of the process that has the model"
        case "unknown" if use.cached:
            return f"it differs from token {use.cached + 1} on from all that the engine still had"
        case "unknown":
            return "the engine had nothing that begins like it"
        case "new":
            return "its conversation is new here"
        case "busy":
            return "an earlier request of its conversation was still at work"
        case "evicted" if use.news.taker is not None:
            return f"{_named(use.news.taker)} took its slot"
        case "evicted":
            taker = next(each for each in others if each.prompt > 0)  # a client that left may never have had it
            return f"{_named(taker.conversation)} took the model's only slot"
        case "others" if others:
            last = f"{_named(others[0].conversation)}{f' and {len(others) - 1} more' if others[1:] else ''}"
            return f"{last} came in between: its place was taken, or its beginning has changed"
        case "others":
            return "other requests were under way: its place was taken, or its beginning has changed"
        case "changed" if use.news.edited == HEAD:
            return "its tools, system prompt or template options have changed"
        case "changed" if use.news.edited is not None:
            return f"its prompt was edited at message {use.news.edited}"
        case "changed":
            return f"nothing came in between, so its prompt differs from token {use.cached + 1} on"


def _named(conversation: str) -> str:
    return f"conversation '{conversation}'" if conversation else "a request without a conversation"
