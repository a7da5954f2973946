"""The prompts' cache in figures: which question was asked, its answer, and which conversation sits in which slot.

``routes`` beside this folder computes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal, get_args

from msgspec import Struct, convert, structs

from appliance.core.parameters import read_span, shown
from appliance.core.records.progress import EngineSlot
from appliance.errors import BadRequest
from appliance.features.contexts.core.kept import KeptContext, KeptRow

DEFAULT_SPAN = "1d"
MAX_NAMES = 50  # clients or models with a line of their own, those with the longest prompts
MAX_SESSIONS = 50
MAX_MISSES = 30

CacheBy = Literal["client", "model"]


class CacheQuestion(Struct, frozen=True):
    by: CacheBy
    start: int  # unix seconds; from there up to now


class CacheTotals(Struct, frozen=True):
    """Sums over some requests, in tokens and seconds. The seconds are estimates; None: no speed was measured."""

    name: str
    requests: int
    prompt: int
    cached: int
    again: int  # read again although the conversation's request before had them
    saved_seconds: float | None
    again_seconds: float | None


class CacheSession(Struct, frozen=True):
    """The latest request of one conversation of one model; without a ``conversation``, of one client's others."""

    model: str
    conversation: str
    client: str
    requests: int
    id: int  # the latest request's row
    timestamp: datetime
    tokens: int  # its prompt and its answer together
    cached: int  # the part of its prompt that came from the cache
    prompt: int
    slot: int | None = None  # the slot that has it now, where that is sure


class CacheMissed(Struct, frozen=True):
    """A request whose prompt was mostly read again."""

    id: int
    timestamp: datetime
    model: str
    client: str
    conversation: str
    miss: str
    why: str


class CacheAnswer(Struct, frozen=True):
    """``GET /api/cache``; the newest of sessions and misses come first."""

    start: datetime
    total: CacheTotals
    by: list[CacheTotals]
    reasons: dict[str, int]  # requests by `MissKind`, the most frequent first
    sessions: list[CacheSession]
    misses: list[CacheMissed]
    kept: list[KeptRow] = []  # contexts in files, the one used last first


class ClearedContexts(Struct, frozen=True):
    """``DELETE /api/cache/kept``."""

    contexts: int
    size: int  # bytes that they took


def parse_cache_question(query: Mapping[str, str], now: datetime) -> CacheQuestion:
    """Read the parameters of GET /api/cache. Raises BadRequest, which names the parameter."""
    wanted = query.get("by") or "client"
    by = [each for each in get_args(CacheBy) if each == wanted]
    if not by:
        raise BadRequest(f"by must be one of {', '.join(get_args(CacheBy))}, not {shown(wanted)}", param="by")
    span = read_span(query.get("span") or DEFAULT_SPAN, "span")
    return CacheQuestion(by[0], max(0, int(now.timestamp()) - span))


def kept_rows(contexts: Iterable[KeptContext]) -> list[KeptRow]:
    newest = sorted(contexts, key=lambda each: each.used, reverse=True)
    return convert(newest, list[KeptRow], from_attributes=True, strict=False)


def cleared(contexts: Collection[KeptContext]) -> ClearedContexts:
    return ClearedContexts(len(contexts), sum(each.size for each in contexts))


def seated(
    sessions: Sequence[CacheSession], slots: Mapping[str, Iterable[EngineSlot]], since: Mapping[str, float]
) -> list[CacheSession]:
    """Return the sessions with their slots. ``since`` is the Unix time of each model's load.

    An engine does not name the conversation in a slot. It says how many tokens an idle slot holds, which are all of the
    last prompt and answer but the last one, and in which order slots were used. So a slot is given only where as many
    sessions as slots of a model have this number.
    """
    found: dict[tuple[str, int], list[EngineSlot]] = {}
    for model, told in slots.items():
        for slot in sorted(told, key=lambda slot: slot.id_task, reverse=True):
            if not slot.is_processing and slot.n_prompt_tokens:
                found.setdefault((model, slot.n_prompt_tokens), []).append(slot)
    fitting: dict[tuple[str, int], list[CacheSession]] = {}
    for session in sorted(sessions, key=lambda session: session.id, reverse=True):
        if session.timestamp.timestamp() >= int(since.get(session.model, 0)):
            fitting.setdefault((session.model, session.tokens - 1), []).append(session)
    placed = {
        session.id: slot.id
        for key, alike in fitting.items()
        if len(alike) == len(found.get(key, ()))
        for session, slot in zip(alike, found[key], strict=True)
    }
    return [structs.replace(session, slot=placed.get(session.id)) for session in sessions]
