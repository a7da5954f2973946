"""Routes of the past: the activity log, its statistics, captured requests, samples of the machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

import trio
from quart import Response, request

from appliance.core.machine import Hardware
from appliance.core.records.activity import parse_id, parse_models, parse_query
from appliance.errors import BadRequest, Busy, NotFound
from appliance.http.control.answers import json_answer
from appliance.platform.samples import Samples
from appliance.traffic.record import Recorder


class Records:
    """The owners of these facts. ``detect`` looks at the hardware; its answer is kept."""

    def __init__(self, recorder: Recorder, samples: Samples, detect: Callable[[], Awaitable[Hardware | None]]) -> None:
        self.recorder = recorder
        self.samples = samples
        self.detect = detect


class RecordRoutes:
    """Every method is one route."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._hardware: Hardware | None = None
        self._detecting = trio.Lock()

    async def activity(self) -> Response:
        return json_answer(await self._records.recorder.page(parse_query(_parameters())))

    async def stats(self) -> Response:
        return json_answer(await self._records.recorder.stats(parse_models(_parameters())))

    async def capture(self, capture_id: str) -> Response:
        row = parse_id(capture_id)
        capture = await self._records.recorder.capture(row)
        if capture is None:
            raise NotFound(f"there is no capture of request {row}; captureBuffer holds only the latest")
        return json_answer(capture)

    async def performance(self) -> Response:
        if not self._records.samples.enabled:
            return json_answer({"enabled": False}, 503)
        return json_answer(self._records.samples.since(_time(request.args.get("after", ""))))

    async def hardware(self) -> Response:
        async with self._detecting:
            if self._hardware is None:
                self._hardware = await self._records.detect()
        if self._hardware is None:
            raise Busy("the hardware cannot be described; the log says why", retry_after=60)
        return json_answer(self._hardware)


def _parameters() -> dict[str, list[str]]:
    return {name: request.args.getlist(name) for name in request.args}


def _time(text: str) -> datetime | None:
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            raise ValueError
    except ValueError:
        raise BadRequest(
            "after must be an RFC 3339 time such as 2026-11-20T08:30:00Z; write + as %2B in a URL", param="after"
        ) from None
    return when
