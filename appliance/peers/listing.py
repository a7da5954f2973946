"""Reads another server's ``/v1/models``; pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

MAX_MODELS = 10_000
LOADED_STATES = frozenset(("loaded", "ready", "sleeping"))
"""The states, in llama.cpp's, llama-swap's and our own words, in which a model answers without being loaded first."""


class ModelState(Struct, frozen=True, kw_only=True):
    """One model of another server, from a link or a listing."""

    id: str
    state: str = "unloaded"
    busy: int = 0
    """Number of requests under way, queued ones included."""

    @property
    def loaded(self) -> bool:
        return self.state in LOADED_STATES


class _Status(Struct, frozen=True):
    value: str = "unloaded"


class _Entry(Struct, frozen=True):
    id: str
    status: _Status = _Status()
    meta: Mapping[str, object] | None = None

    @property
    def elsewhere(self) -> bool:
        """True if the server would have to ask a peer of its own, which may well be this program."""
        marks = (self.meta or {}).get("llamaswap")
        return isinstance(marks, dict) and "peerID" in marks


class _Listing(Struct, frozen=True):
    data: list[_Entry]


_LISTING = msgspec.json.Decoder(_Listing)


def read_listing(content: bytes) -> dict[str, ModelState]:
    """Return the server's own models, in its order. Raises msgspec.MsgspecError for anything but a listing."""
    entries = [entry for entry in _LISTING.decode(content).data if entry.id and not entry.elsewhere]
    return {entry.id: ModelState(id=entry.id, state=entry.status.value) for entry in entries[:MAX_MODELS]}
