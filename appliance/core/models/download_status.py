"""A download's report about itself, and the events of it that listeners get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal
from urllib.parse import unquote

from msgspec import Struct

from appliance.core.models.download import Location, Remote, WantedModel

ENDED: tuple[State, ...] = ("finished", "failed", "cancelled")


State = Literal["queued", "downloading", "paused", "finished", "failed", "cancelled"]


class FileProgress(Struct, frozen=True):
    """Bytes of one file, in llama-server's words."""

    done: int
    total: int


class DownloadStatus(Struct, frozen=True, kw_only=True):
    """One download at one moment. ``files`` by their addresses."""

    model: str
    repo: str
    state: State
    files: dict[str, FileProgress]
    error: str | None = None
    reason: str | None = None
    callers_fault: bool = False  # true if beginning it again unchanged cannot help
    number: int = 0  # distinguishes one download of a model from the next
    place: int | None = None  # its place in the queue, from 1; None if it does not wait
    speed: float | None = None  # bytes per second while it comes; None until that is known
    left: float | None = None  # seconds until it is here, at this speed

    @property
    def done(self) -> int:
        return sum(file.done for file in self.files.values())

    @property
    def total(self) -> int:
        return sum(file.total for file in self.files.values())

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class UnfinishedSpace(Struct, frozen=True, kw_only=True):
    """The part of a download that has ended, in bytes; ``frees`` are those that its removal gives back."""

    model: str
    done: int
    total: int
    frees: int


def is_for(status: DownloadStatus, wanted: Remote) -> bool:
    """True if this download brings what is wanted."""
    if isinstance(wanted, Location):
        return status.repo == str(wanted)
    if not isinstance(wanted, WantedModel):
        return status.model == str(wanted)
    if status.repo.casefold() != wanted.reference.repo.casefold():
        return False
    if wanted.file:
        return status.model == str(wanted) or any(unquote(url).endswith(f"/{wanted.file}") for url in status.files)
    return wanted.reference.tag is None or status.model.casefold() == str(wanted.reference).casefold()


class DownloadEvent(Struct, frozen=True, omit_defaults=True):
    """One record of llama-server's ``GET /models/sse`` (llama.cpp b11434)."""

    model: str
    event: Literal["model_status", "download_progress", "download_finished", "download_failed"]
    data: dict[str, object] | None = None


def events_between(before: Mapping[str, DownloadStatus], now: Iterable[DownloadStatus]) -> list[DownloadEvent]:
    """Return the events for a listener that knew ``before``, by model. A cancelled download has failed in its words."""
    events: list[DownloadEvent] = []
    for status in now:
        known = before.get(status.model)
        another = known is None or known.number != status.number
        if another:
            events.append(DownloadEvent(status.model, "model_status", {"status": "downloading"}))
        if another or known is None or known.files != status.files:
            events.append(DownloadEvent(status.model, "download_progress", {"progress": status.files}))
        if status.ended and (another or known is None or not known.ended):
            end = "download_finished" if status.state == "finished" else "download_failed"
            events.append(DownloadEvent(status.model, end))
    return events
