"""The slots of engines, as their processes tell of them: whole for ``GET /slots``, in short for requests under way."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import msgspec
import trio
from msgspec import Raw, Struct

from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.core.records.progress import EngineSlot, paired
from appliance.errors import UpstreamFailed
from appliance.fleet.owner import Fleet
from appliance.http.control.listing import Object
from appliance.traffic.inflight import InFlight, InFlightEntry, InFlightRequest
from appliance.upstream.client import Address, HttpCall

PATIENCE = 5.0
"""Seconds that an engine has to answer."""
MAX_SLOTS = 16 << 20
KEPT = 1.0
"""Seconds for which an answer serves all who look at requests under way. The engine has as long for it."""
_SLOTS = msgspec.json.Decoder(list[EngineSlot])


class _Kept(Struct):
    until: float
    slots: list[EngineSlot]


class SlotsInShort:
    """Asks a model's process for its slots while somebody looks: once in `KEPT` seconds, however many look."""

    def __init__(self, fleet: Fleet, inflight: InFlight) -> None:
        self._fleet = fleet
        self._inflight = inflight
        self._kept: dict[str, _Kept] = {}
        self._asking = trio.Lock()

    async def requests(self) -> list[InFlightRequest]:
        """Return all requests under way, oldest first, each with its slot where that is sure."""
        models = {entry.model for entry in self._inflight.entries() if entry.held() is None}
        async with self._asking:
            await self._look(models)
        # Requests came and went meanwhile: how many there are now has to fit what the engine has told.
        slots: dict[str, EngineSlot | None] = {}
        for model, entries in _by_model(self._inflight.entries()):
            told = self._kept[model].slots if model in self._kept else []
            found = paired([entry.came for entry in entries], told)
            slots |= {entry.id: slot for entry, slot in zip(entries, found, strict=True)}
        return [entry.shown(slots.get(entry.id)) for entry in self._inflight.entries()]

    async def of(self, models: Iterable[str]) -> dict[str, list[EngineSlot]]:
        """Return the slots of each of these models that is loaded."""
        async with self._asking:
            await self._look(set(models))
            return {model: kept.slots for model, kept in self._kept.items() if self._fleet.address(model) is not None}

    async def _look(self, models: set[str]) -> None:
        now = trio.current_time()
        self._kept = {model: kept for model, kept in self._kept.items() if model in models and kept.until > now}
        async with trio.open_nursery() as nursery:
            for model in models - self._kept.keys():
                if (address := self._fleet.address(model)) is not None:
                    nursery.start_soon(self._ask, model, address)

    async def _ask(self, model: str, address: Address) -> None:
        self._kept[model] = kept = _Kept(trio.current_time() + KEPT, [])
        with trio.move_on_after(KEPT):
            await self._fleet.wait_quiet(model)
            kept.slots = decoded(_SLOTS, await slots_of(address)) or []


async def slots_of(address: Address) -> bytes:
    """Return the engine's own answer; ``[]`` where it does not tell (``--no-slots``, or it is busy dying)."""
    with trio.move_on_after(PATIENCE):
        try:
            async with HttpCall(address, "GET", "/slots") as response:
                return await response.read(MAX_SLOTS)
        except UpstreamFailed:
            pass
    return b"[]"


def every_slot(told: bytes) -> list[Object]:
    """Return the slots in an engine's answer as they are; none where it has another form."""
    try:
        return [dict(slot) for slot in msgspec.json.decode(told, type=list[dict[str, Raw]])]
    except UNREADABLE:
        return []


def _by_model(entries: Iterable[InFlightEntry]) -> Iterable[tuple[str, list[InFlightEntry]]]:
    """The requests that an engine has, by model, in the order in which they came to it."""
    here = sorted((entry for entry in entries if entry.held() is None), key=lambda entry: (entry.model, entry.came))
    return ((model, list(group)) for model, group in groupby(here, key=lambda entry: entry.model))
