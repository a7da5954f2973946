"""Fields of earlier llama-server releases: asked of today's engines, and written into their answers.

`rules` decides; here is what has to be asked and held for it.
"""

from __future__ import annotations

from msgspec import Struct

from appliance.core.headers import is_event_stream, without
from appliance.core.lenient_json import decoded
from appliance.errors import BadRequest, UpstreamFailed
from appliance.features.older import rules
from appliance.fleet.status import ChildStatus
from appliance.traffic.request import Headers, Passing, Request, Sink, push_whole, send_whole
from appliance.upstream.address import Address
from appliance.upstream.client import HttpCall, Outgoing
from appliance.upstream.pool import Pool

METRICS = "/metrics"
_LENGTHS = (b"content-length", b"transfer-encoding")
MAX_TOLD = 16 << 20  # bytes of an engine's answer about itself
MAX_HELD = 128 << 20  # bytes of an answer without words: it repeats the prompt, which is not longer than a body may be


class OlderBodies:
    """An `EngineTranslate`."""

    def is_for(self, route: str, build: str) -> bool:
        return route in rules.ROUTES

    def wants(self, route: str, body: bytes, build: str | None) -> bool:
        """Raises BadRequest for pictures that no engine could be asked for, before a model is loaded."""
        if build is not None or not rules.is_older(route, body):
            return rules.is_older(route, body)
        return rules.has_images(route, body) or rules.wants_no_words(route, body)

    async def body(self, route: str, body: bytes, there: Address, build: str, pool: Pool) -> bytes:
        """Raises BadRequest for pictures where this engine has no text that means one, and UpstreamFailed."""
        if not rules.has_images(route, body):
            return body
        props = decoded(_Props, await _ask(there, pool, "/props"))
        if props is None or not props.media_marker:
            why = "this model's server tells no media_marker in /props, so nobody knows how to place images"
            raise BadRequest(f"{why}; {rules.NEW_FORM}", param=rules.IMAGES)
        return rules.with_images(route, body, props.media_marker)

    def sink(self, route: str, body: bytes, sink: Sink) -> Sink:
        return Silent(sink) if rules.wants_no_words(route, body) else sink

    async def answer_running(
        self, outgoing: Outgoing, request: Request, sink: Sink, status: ChildStatus | None
    ) -> bool:
        """Pass an engine's metrics on, and behind them how full its cache is. Raises UpstreamFailed.

        An engine that sleeps is not asked for its slots, because that would wake it: its cache is empty.
        """
        if request.method != "GET" or request.path != METRICS:
            return False
        there, pool = outgoing.address, outgoing.pool
        assert pool is not None
        async with HttpCall(there, "GET", outgoing.target, outgoing.headers, b"", pool=pool) as response:
            metrics = await response.read(MAX_TOLD)
            if rules.lacks_cache(metrics) and status is not None:
                props = decoded(_Props, await _ask(there, pool, "/props"))  # its log tells of its sleep a moment later
                is_asleep = props is not None and props.is_sleeping
                slots = b'[{"n_ctx":0}]' if is_asleep else await _ask(there, pool, "/slots")
                metrics += rules.cache_lines(slots, status.argv)
            await send_whole(sink, response.status, without(response.headers, _LENGTHS), metrics)
        return True


class _Props(Struct):
    media_marker: str = ""
    is_sleeping: bool = False


async def _ask(there: Address, pool: Pool, path: str) -> bytes:
    """Return the engine's answer; nothing where it refuses."""
    async with HttpCall(there, "GET", path, pool=pool) as response:
        content = await response.read(MAX_TOLD)
        return content if response.status == 200 else b""


class Silent(Passing):
    """Takes the one token out of an answer that was to have none. Refusals pass as they are."""

    def __init__(self, inner: Sink) -> None:
        super().__init__(inner)
        self._head: Headers | None = None  # of an answer that is held
        self._held = bytearray()

    def start(self, status: int, headers: Headers) -> None:
        if status == 200 and not is_event_stream(headers):
            self._head = headers
        else:
            self.inner.start(status, headers)

    def push(self, data: bytes) -> bool:
        if self._head is not None:
            if len(self._held) <= MAX_HELD:
                self._held += data
            return True
        if self.inner.event_stream:
            data = rules.silenced_records(data)
        return self.inner.push(data) if data else True

    def finish(self) -> bool:
        """Raises UpstreamFailed for an answer that is too long to be held."""
        if self._head is None:
            return self.inner.finish()
        head, self._head = self._head, None
        if len(self._held) > MAX_HELD:
            raise UpstreamFailed("the model", f"its answer is longer than {MAX_HELD} bytes")
        return push_whole(self.inner, 200, without(head, _LENGTHS), rules.silenced(bytes(self._held)))

    def abort(self) -> None:
        """Drop a held answer: nothing of it has left, so that the error can be sent instead."""
        if self._head is not None:
            self._head = None
        else:
            self.inner.abort()
