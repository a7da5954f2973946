"""Sends finished requests to a collector as traces, by OTLP over HTTP.

A request that ends costs 10 us when its row is written, and nothing before. One task sends what has gathered. A
collector that is away is asked again every `RETRY` seconds, and costs no more than the oldest traces: at most `MOST`
wait.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Never

import trio
from msgspec import structs

from appliance.core.records.ended import EndedRequest
from appliance.errors import Busy, UpstreamFailed, UsageError
from appliance.features.traces.keys import TracingConfig
from appliance.traffic.metrics import Metrics
from appliance.traffic.recorder import Recorder
from appliance.trio_parts import WriteBehind, beside, persist
from appliance.upstream.client import HttpCall, address_of

if TYPE_CHECKING:
    from appliance.features.traces.rules import OwnTrace

PATH = "/v1/traces"
PAUSE, RETRY = 2.0, 10.0  # seconds for which traces gather, and until a collector is asked again that did not take them
TIMEOUT = 10.0  # seconds for one batch
FLUSH = 2.0  # seconds for the last traces when the program ends
BATCH = 256  # requests in one batch: some 100 KB, made in 15 ms in a thread of its own
MOST = 2048  # requests that wait at most, of about 2 KB each
MAX_ANSWER = 64 << 10
PASSING = frozenset((429, 502, 503, 504))  # the statuses after which OTLP wants the same batch again
log = logging.getLogger(__name__)


class _NotTaken(Exception):
    """Why the collector did not take a batch."""


class Tracer:
    """An observer of requests, made by `open_tracer`. It is off until a configuration with ``tracing`` is adopted."""

    def __init__(self, metrics: Metrics) -> None:
        self._config: TracingConfig | None = None
        self.sent = metrics.counter("traces_sent_total", "Requests whose traces a collector has taken.")
        self.dropped = metrics.counter("traces_dropped_total", "Requests whose traces were lost.")
        self._waiting: deque[OwnTrace] = deque()
        self._behind = WriteBehind(PAUSE, RETRY)
        self.failing = ""  # the words for a collector that does not take traces now; empty: it does

    def adopt(self, config: TracingConfig | None) -> None:
        """Follow this from now on. Waiting traces go to the new collector, and are dropped where there is none."""
        if config != self._config:
            self._config, self.failing = config, ""
        if config is None:
            self._waiting.clear()

    def on_request_ended(self, ended: EndedRequest) -> None:
        """Take a finished request, unless its trace is not sampled."""
        if self._config is None:
            return
        from appliance.features.traces.rules import HOST, trace_context  # few have a collector

        context = trace_context(ended.headers, os.urandom(16), self._config.sample)
        if context is not None:
            # All headers would take as much as the rest, and the client's key would wait with them.
            host = [one for one in ended.headers if one[0].lower() == HOST]
            self._waiting.append((context, structs.replace(ended, headers=host), os.urandom(8)))
            self._drop_oldest()
            self._behind.wake()

    async def run(self) -> Never:
        """Send what waits, until cancelled."""
        await self._behind.run(self.send)

    async def flush(self) -> None:
        """Send the last ones, even where everything is cancelled. After `FLUSH` seconds the rest is lost."""
        with trio.move_on_after(FLUSH, shield=True):
            await persist("sending the last traces", self.send)
        self.dropped.value += len(self._waiting)

    async def send(self) -> bool:
        """Send all that waits. False: the collector does not take it now, and it waits on."""
        while self._waiting and (config := self._config) is not None:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            taken = False
            try:
                taken = await self._send(config, batch)
            except (_NotTaken, UpstreamFailed, UsageError, Busy) as error:
                self._fails(config, str(error))
                return False
            finally:
                if not taken:
                    self._waiting.extendleft(reversed(batch))
                    self._drop_oldest()
        return True

    async def _send(self, config: TracingConfig, batch: Sequence[OwnTrace]) -> bool:
        """Return True when the batch has found its end, taken or not. Raises if it is to be sent again."""
        from appliance.features.traces import otlp  # brings protobuf, which only this needs

        body = await trio.to_thread.run_sync(otlp.encode, config.service, batch)
        status, answer = 0, b""
        with trio.move_on_after(TIMEOUT):
            headers = [(b"Content-Type", b"application/x-protobuf")]
            headers += [(name.encode(), value.encode("latin-1")) for name, value in config.headers.items()]
            async with HttpCall(address_of(config.endpoint, "tracing"), "POST", PATH, headers, body) as reply:
                answer, status = await reply.read(MAX_ANSWER), reply.status
        if status in PASSING or not status:
            raise _NotTaken(f"it answered {status}" if status else f"it did not answer within {TIMEOUT:g} s")
        lost, why = otlp.rejection(answer) if status == 200 else (len(batch), f"it answered {status}")
        if lost:
            self.dropped.value += min(lost, len(batch))
            self._fails(config, why or f"it refused {lost} spans")
        elif self.failing:
            self.failing = ""
            log.info("the collector at %s takes traces again", config.endpoint)
        self.sent.value += max(len(batch) - lost, 0)
        return True

    def _drop_oldest(self) -> None:
        while len(self._waiting) > MOST:
            self._waiting.popleft()
            self.dropped.value += 1

    def _fails(self, config: TracingConfig, why: str) -> None:
        """One line for as long as it lasts."""
        before, self.failing = self.failing, f"the collector at {config.endpoint} does not take traces: {why}"
        if not before:
            advice = "start it, or correct 'tracing' in the configuration. The newest %d requests are kept for it"
            log.warning(f"%s; {advice}", self.failing, MOST)


@asynccontextmanager
async def open_tracer(recorder: Recorder, metrics: Metrics) -> AsyncGenerator[Tracer]:
    """Send what ends within the block. Leaving it settles all that is over, and sends the last ones."""
    tracer = Tracer(metrics)
    try:
        with recorder.follow_requests(tracer.on_request_ended):
            async with beside(partial(persist, "sending traces", tracer.run)):
                yield tracer
    finally:
        await tracer.flush()
