"""What others may know of a model process, and who hears what happens to it."""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec import Struct


class ChildStatus(Struct, frozen=True, kw_only=True):
    """One model process, or the last one a model had, as others may see it. Times are unix seconds."""

    model: str
    state: str
    pid: int | None = None
    port: int | None = None
    leases: int = 0
    waiting: int = 0
    argv: tuple[str, ...] = ()
    exit_code: int | None = None
    error: str | None = None
    started_at: float | None = None
    progress: msgspec.Raw | None = None
    """llama-server's own loading progress, JSON."""
    ready_info: msgspec.Raw | None = None
    """llama-server's own description of the loaded model, JSON."""


class Observer(Protocol):
    """Hears what happens to models, for metrics. Times in seconds."""

    def waited(self, model: str, seconds: float) -> None: ...

    def loaded(self, model: str, seconds: float) -> None: ...

    def evicted(self, model: str) -> None: ...

    def load_failed(self, model: str) -> None: ...

    def died(self, model: str) -> None: ...
