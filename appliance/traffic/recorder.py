"""Requests that are over are written down, as a row of the activity log and a capture, and followers are called.

This is made of their records (`appliance.traffic.record`) in batches: when the loop has time, or when too much waits.
Every look at rows, captures or counters settles what is waiting first, so that nobody can tell. Counters and traces
are made by followers; `Recorder` names neither.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import trio
from msgspec import UNSET, structs

from appliance.core.bodies.head import RequestHead
from appliance.core.followers import Followers
from appliance.core.records.accounting import Usage
from appliance.core.records.activity import CLIENT_LEFT, NO_TOKENS, ActivityPage, Query, Row, with_captures
from appliance.core.records.cache_misses import MAX_NAME, CacheRoom, CacheUse, CacheUses, CacheVerdict
from appliance.core.records.captures import Capture, CaptureBuffer
from appliance.core.records.ended import EndedRequest, parts_text
from appliance.core.records.progress import client_words
from appliance.store.activity import Activity
from appliance.traffic.packing import Load, Packer
from appliance.traffic.record import Record, RecordingSink
from appliance.traffic.request import Request, Sink
from appliance.trio_parts import beside, persist

if TYPE_CHECKING:
    from appliance.store.activity_table import ActivityTable

PAUSE = 0.05
"""Seconds between two looks whether the loop has time for what waits to be written down."""
BATCH = 128
"""Requests that are written down before others have a turn; each takes some 3 to 8 us."""
MOST = 2000
"""Requests that wait at most. Each holds some 1.5 KiB beside its bodies. With twice the rows and more bytes than are
usually kept, the oldest are mostly such that newer ones push out: of those only the tokens are counted."""
MOST_BYTES = 8 << 20
"""Bytes of bodies that wait at most."""
_T = TypeVar("_T")
log = logging.getLogger(__name__)


_Ended = tuple[Record, RecordingSink, str, int, float, float, int, int, CacheRoom | None, bool]
"""A request that is over and not written down yet: with its route, its status, when it ended, that in Unix time, the
bytes that it holds, those of them that surely find a place among the captures, its process's room for prompts, and
whether no other request was under way at its end."""


class Recorder:
    """Writes records down, and answers questions about them. Made by `open_recorder`.

    Every question settles first: a client that has its answer and asks then finds its row.
    """

    def __init__(
        self,
        activity: Activity,
        load: Callable[[], Load],
    ) -> None:
        self._activity = activity
        self.rooms: Mapping[str, CacheRoom] = {}
        """The room for prompts that the latest process of each model has, or had."""
        self._packer = Packer(load)
        self._load = load
        self.session_headers: Sequence[bytes] = ()
        """The headers that name a client's conversation, in lower case."""
        self._uses = CacheUses()
        self._ended: deque[_Ended] = deque()
        self._held = 0  # bytes of their bodies
        self._sure = 0  # those of them that surely find a place among the captures
        self._wake = trio.Event()
        self._full = trio.Event()
        self._rows = Followers[Callable[[int], None]]()
        self._requests = Followers[Callable[[EndedRequest], None]]()

    @property
    def captures(self) -> CaptureBuffer:
        """Replaced when the configuration changes its size."""
        return self._packer.captures

    @captures.setter
    def captures(self, captures: CaptureBuffer) -> None:
        self.settle()
        self._packer.captures = captures

    def watch(self, record: Record, sink: Sink) -> RecordingSink:
        return RecordingSink(sink, record, self._packer)

    def finish(self, record: Record, sink: RecordingSink, route: str, status: int) -> None:
        """The request is over, and nothing passes any more; it is written down later."""
        limit = self._packer.captures.limit
        if record.body is not None and len(record.body) + len(record.sent or b"") > limit:
            record.body = record.sent = None
        if record.placed is not None:
            self._learn(record, sink, status)
        room, alone = self.rooms.get(record.model), record.entry is None or record.entry.owner.is_empty
        ended, size = self._ended, sink.release(status)
        sure = size if 2 * size <= limit else 0  # a larger capture may be too large by itself
        ended.append((record, sink, route, status, time.perf_counter(), time.time(), size, sure, room, alone))
        self._held += size
        self._sure += sure
        if len(ended) == 1:
            self._wake.set()
        elif len(ended) >= MOST or self._held >= MOST_BYTES:
            self._full.set()

    def conversation(self, request: Request, head: RequestHead) -> str:
        """Return the id of the request's conversation; empty where it names none."""
        return (head.conversation or next(filter(None, map(request.header, self.session_headers)), ""))[:MAX_NAME]

    def settle(self, most: int | None = None) -> None:
        """Write down what is over, all or the first ``most``. Never raises: a log must not end what it tells of."""
        ended = self._ended
        for _ in range(len(ended) if most is None else min(most, len(ended))):
            one = ended.popleft()
            try:
                self._write_down(one)
            except Exception:
                log.exception("a request for %s could not be written down; this is a bug", one[0].path)
        if self.captures.is_raw:
            self._packer.wake()

    @contextmanager
    def follow_requests(self, on_ended: Callable[[EndedRequest], None]) -> Generator[None]:
        """Call ``on_ended`` with every request that ends in the block, in this order; some time later, see `settle`."""
        self.settle()
        with self._requests.follow(on_ended):
            try:
                yield
            finally:
                self.settle()

    @contextmanager
    def follow(self, on_row: Callable[[int], None]) -> Generator[None]:
        """Call ``on_row`` with the id of every row that comes in the block."""
        self.settle()
        with self._rows.follow(on_row):
            yield

    async def page(self, query: Query) -> ActivityPage:
        """Rows of the activity log. Raises Busy while another program has locked its file."""
        self.settle()
        page = await self._activity.page(query)
        return structs.replace(page, data=with_captures(page.data, self.captures.has))

    async def rows(self, query: Query) -> tuple[Row, ...]:
        """Return the rows of a page alone. Raises as `page`."""
        return with_captures(await self.read(lambda table: table.rows(query)), self.captures.has)

    async def read(self, question: Callable[[ActivityTable], _T]) -> _T:
        """Ask the activity log, with every request that is over. Raises as `page`."""
        self.settle()
        return await self._activity.read(question)

    async def capture(self, row_id: int) -> Capture | None:
        """Return the capture of the request with this row."""
        self.settle()
        read = self.captures.find(row_id)
        return await trio.to_thread.run_sync(read) if read is not None else None

    async def run(self) -> None:
        """Write down what ends, when there is time or too much waits, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(persist, "compressing captures", self._packer.run)
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                while self._ended:
                    # With too much waiting, one batch brings the queue below its limit, and the rest waits for a quiet
                    # moment again. In a quiet moment all is written, in batches, so that requests have their turn in
                    # between.
                    most = BATCH if await self._wait_for_time() else len(self._ended)
                    for _ in range(0, most, BATCH):
                        self.settle(BATCH)
                        await trio.lowlevel.checkpoint()

    async def _wait_for_time(self) -> bool:
        """Wait until the loop has had little to do for a moment, or too much waits: True.

        Rows that outlive the program, and those with readers, wait for that moment only.
        """
        load, self._full = self._load(), trio.Event()
        while True:
            with trio.move_on_after(PAUSE):
                await self._full.wait()
                return True
            if self._activity.keep is None or self._rows.calls or load.is_light():
                return False

    def _write_down(self, one: _Ended) -> None:
        """Newer requests may have pushed out a row or a capture before it is made; then it is not made."""
        record, sink, route, status, now, at, size, sure, room, alone = one
        self._held -= size
        self._sure -= sure
        activity = self._activity
        found = record.cost if record.cost is not None else sink.usage_or_error(status)
        ended = sink.facts(found, route, status, now, at - now)
        cache = self._judged(record, ended, room, alone=alone)
        # Under a load that never ends the queue holds more rows than the log keeps. A row that newer ones would push
        # out is not made at all, and only its number is used up; its tokens are counted anyway. The same holds
        # for captures below.
        if activity.keep is not None and len(self._ended) >= activity.keep:
            row_id = activity.pass_over()
        else:
            row_id = activity.add(_row(record, sink.content_type, ended, cache))
        captures = self._packer.captures
        if self._sure < captures.limit:
            captures.add(row_id, sink.exchange(status))
        for on_row in self._rows.calls:
            on_row(row_id)
        for on_ended in self._requests.calls:
            on_ended(ended)

    def _learn(self, record: Record, sink: RecordingSink, status: int) -> None:
        """Let the table of slots know what the answer says before the next request asks for a slot."""
        placed, record.placed = record.placed, None
        record.cost = sink.usage_or_error(status)
        cost = record.cost if status == 200 else None
        if placed is not None and isinstance(cost, Usage):
            record.news = placed.learn(cost)

    def _judged(self, record: Record, ended: EndedRequest, room: CacheRoom | None, *, alone: bool) -> CacheVerdict:
        """Find the conversation of a request that an engine may have worked on, and how its prompt's cache fared."""
        usage, status = ended.usage, ended.status
        if not record.known or (usage is None and status != CLIENT_LEFT):
            return CacheVerdict()
        use = CacheUse(
            conversation=self.conversation(record.request, record.head),
            prompt=usage.prompt if usage is not None and status == 200 else -1,
            cached=usage.tokens.cache_tokens if usage is not None else -1,
            began=record.began,
            ended=ended.ended,
            build=record.build,
            room=room,
            loaded=record.loaded,
            off=record.head.uncached,
            moved="fallback" in record.metadata,
            alone=alone,
            news=record.news,
        )
        return self._uses.judge(record.model, use)


def _row(record: Record, content_type: str, ended: EndedRequest, cache: CacheVerdict) -> Row:
    """Return the request's row of the activity log."""
    metadata, usage, seconds = ended.metadata, ended.usage, ended.ended - ended.began
    error, tokens, milliseconds = UNSET, NO_TOKENS, round(seconds * 1000)
    if ended.error is not None:
        error = ended.error
    elif usage is not None and ended.status == 200:
        tokens, milliseconds = usage.tokens, usage.duration_ms(seconds * 1000)
        if cache.why:
            metadata = {**metadata, "prompt_cache": cache.why}
    if ended.steps and (parts := parts_text(ended)):  # of a plain request the row says all by itself
        metadata = {**metadata, "parts": parts}
    if ended.status == CLIENT_LEFT:
        error = "the client left before the answer was complete"
    if ended.fault is not None:
        error = ended.fault
    return Row(
        timestamp=datetime.fromtimestamp(ended.epoch + ended.ended, UTC),
        model=ended.model,
        req_path=record.path,
        resp_content_type=content_type,
        resp_status_code=ended.status,
        tokens=tokens,
        duration_ms=milliseconds,
        error_msg=error,
        metadata=metadata or UNSET,
        first_token_ms=ended.first_token_ms(),
        client=client_words(record.request.header(b"user-agent"), record.request.client),
        build=ended.build,
        conversation=cache.conversation,
        cache_miss=cache.miss or "",
        again_tokens=cache.again,
    )


@asynccontextmanager
async def open_recorder(
    activity: Activity,
    load: Callable[[], Load] = Load,
) -> AsyncGenerator[Recorder]:
    """Leaving the block writes down what is waiting. ``load`` makes what tells how busy the loop is."""
    recorder = Recorder(activity, load)
    try:
        async with beside(recorder.run):
            yield recorder
    finally:
        recorder.settle()
