"""Requests to models that are under way: who asked, what came back so far, and a way to end one from outside."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

import trio
from msgspec import UNSET, Struct, UnsetType

from appliance.core.captures import captured_headers
from appliance.errors import RequestCancelled
from appliance.traffic.request import Request

UPDATE_INTERVAL = 0.25
"""Seconds between two reports of how many bytes one request has had."""
HELD_CHANGES = 128
"""A reader that is further behind gets a snapshot instead; llama-swap's number."""


class InFlightRequest(Struct, frozen=True, kw_only=True):
    """One request as it is shown; of headers that occur twice, the first."""

    id: str
    timestamp: str
    model: str
    req_path: str
    method: str
    req_headers: dict[str, str]
    remote_ip: str
    resp_headers: dict[str, str]
    resp_bytes: int
    elapsed_ms: int
    metadata: dict[str, str] | UnsetType = UNSET


class Change(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message to a reader: ``snapshot`` with all requests (absent when there are none), ``upsert``, ``remove``."""

    operation: str
    requests: list[InFlightRequest] = []
    request: InFlightRequest | UnsetType = UNSET
    id: str | UnsetType = UNSET


class Asked(NamedTuple):
    """What is known of a request when it begins; ``at`` is in Unix seconds."""

    request: Request
    model: str
    remote_ip: str
    metadata: Mapping[str, str] | None
    at: float


class Entry:
    """One request under way, made by `InFlight.begin`; its pipeline reports what goes back to the client.

    Nothing is put into words before somebody reads it: most requests come and go while nobody looks.
    """

    def __init__(self, owner: InFlight, request_id: str, asked: Asked, cancel: Callable[[Exception], None]) -> None:
        self.id = request_id
        self.told_at = trio.current_time()
        self.cancel = cancel
        self._owner = owner
        self._asked = asked
        self._began = self.told_at
        self._headers: Sequence[tuple[bytes, bytes]] = ()
        self._bytes = 0

    def started(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The answer's head has gone out."""
        self._headers = headers
        self._owner.tell(self)

    def wrote(self, count: int) -> None:
        """So many more bytes of body have gone out. Called for every chunk: it has to be cheap."""
        self._bytes += count
        if trio.current_time() - self.told_at >= UPDATE_INTERVAL:
            self._owner.tell(self)
        else:
            self._owner.tell_later(self)

    def shown(self) -> InFlightRequest:
        asked, request = self._asked, self._asked.request
        return InFlightRequest(
            id=self.id,
            timestamp=datetime.fromtimestamp(asked.at, UTC).isoformat().replace("+00:00", "Z"),
            model=asked.model,
            req_path=request.path,
            method=request.method,
            req_headers=captured_headers(request.headers),
            remote_ip=asked.remote_ip,
            resp_headers=captured_headers(self._headers),
            resp_bytes=self._bytes,
            elapsed_ms=round(1000 * (trio.current_time() - self._began)),
            metadata=dict(asked.metadata) if asked.metadata else UNSET,
        )


class InFlight:
    """Owns the registry. Every method that is not async is atomic."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._late: dict[str, Entry] = {}
        self._ids = itertools.count(1)
        self._changes: deque[tuple[int, str]] = deque(maxlen=HELD_CHANGES)
        self._next = 0
        self._news = trio.Event()

    @contextmanager
    def begin(
        self,
        request: Request,
        model: str,
        remote_ip: str,
        metadata: Mapping[str, str] | None = None,
        *,
        cancel: Callable[[Exception], None],
    ) -> Generator[Entry]:
        """Show the request for the length of the block; what is added to ``metadata`` meanwhile shows, too.

        Raises RequestCancelled when `cancel` has ended the block.
        """
        request_id = str(next(self._ids))
        asked = Asked(request, model, remote_ip, metadata, time.time())
        entry = self._entries[request_id] = Entry(self, request_id, asked, cancel)
        self.tell(entry)
        try:
            yield entry
        finally:
            del self._entries[entry.id]
            self._late.pop(entry.id, None)
            self._add(entry.id)

    def cancel(self, request_id: str) -> bool:
        """End a request; its client gets an error, in its stream where that has begun. False: there is none such."""
        entry = self._entries.get(request_id)
        if entry is None:
            return False
        entry.cancel(RequestCancelled())
        return True

    def snapshot(self) -> list[InFlightRequest]:
        """All requests under way, oldest first."""
        return [entry.shown() for entry in self._entries.values()]

    def follow(self) -> Reader:
        """A reader of what changes from now on; its first `Reader.take` is a snapshot."""
        return Reader(self)

    # ---- between entries and readers ---------------------------------------------------------------------------------

    def tell(self, entry: Entry) -> None:
        """Let all readers see the entry as it is now."""
        entry.told_at = trio.current_time()
        self._late.pop(entry.id, None)
        self._add(entry.id)

    def tell_later(self, entry: Entry) -> None:
        """Let readers see it when its interval is over."""
        if entry.id not in self._late:
            self._late[entry.id] = entry
            self._wake()

    def changes_since(self, number: int) -> tuple[list[Change], int]:
        """What a reader at ``number`` has to hear, and where it is then."""
        now = trio.current_time()
        for entry in [late for late in self._late.values() if now - late.told_at >= UPDATE_INTERVAL]:
            self.tell(entry)
        oldest = self._changes[0][0] if self._changes else self._next
        if number < oldest:
            return [Change(operation="snapshot", requests=self.snapshot())], self._next
        ids = dict.fromkeys(request_id for at, request_id in self._changes if at >= number)
        return [self._change(request_id) for request_id in ids], self._next

    async def wait_changed(self, number: int) -> None:
        """Wait until `changes_since` may have something for a reader at ``number``."""
        while self._next <= number:
            with trio.move_on_after(UPDATE_INTERVAL if self._late else math.inf) as patience:
                await self._news.wait()
            if patience.cancelled_caught and self._late:
                return

    def _change(self, request_id: str) -> Change:
        entry = self._entries.get(request_id)
        if entry is None:
            return Change(operation="remove", id=request_id)
        return Change(operation="upsert", request=entry.shown())

    def _add(self, request_id: str) -> None:
        self._changes.append((self._next, request_id))
        self._next += 1
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()


class Reader:
    """One reader of the registry's changes."""

    def __init__(self, owner: InFlight) -> None:
        self._owner = owner
        self._position = -1

    def take(self) -> list[Change]:
        """Everything that has happened since the last time, several changes of one request as one."""
        changes, self._position = self._owner.changes_since(self._position)
        return changes

    async def wait(self) -> None:
        """Wait until there is probably something to take."""
        await self._owner.wait_changed(self._position)
