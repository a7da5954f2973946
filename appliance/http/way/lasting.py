"""Generations that outlive their requests: kept under the id of a conversation, with the request as first reader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import structs

from appliance.fleet.owner import Fleet
from appliance.http.bytes.body import Bodies
from appliance.http.ollama.sink import speaking_ollama
from appliance.http.way.explaining import explain, followed
from appliance.http.way.job import Job
from appliance.http.way.resumable import be_first_reader, interrupted_record
from appliance.http.way.visit import Visit
from appliance.streams.owner import Streams
from appliance.traffic.record import CLIENT_LEFT, RecordingSink
from appliance.traffic.request import Sink
from appliance.traffic.traffic import Traffic

Serve = Callable[[Visit, Job], Awaitable[None]]


class Lasting:
    """Has requests answered under the owner of streams."""

    def __init__(self, streams: Streams, traffic: Traffic, bodies: Bodies, fleet: Fleet) -> None:
        self._streams = streams
        self._traffic = traffic
        self._bodies = bodies
        self._fleet = fleet

    async def serve(self, conversation: str, visit: Visit, job: Job, serve: Serve) -> None:
        """Do ``serve`` in a task that lasts, and pass its answer on to the client for as long as that is there.

        Raises RequestCancelled, ShuttingDown and Busy.
        """
        request, record = job.request, job.record
        recorder, requests = self._traffic.recorder, self._traffic.lifetime.requests

        async def generate(ring: Sink) -> None:
            sink = recorder.watch(record, followed(speaking_ollama(request, ring), job.route))
            inner = Visit(request, job.route, sink, record, visit.body)
            requests.begin(inner.cancel)
            try:
                with inner.scope:
                    await serve(inner, structs.replace(job, sink=sink))
                if inner.why is not None and inner.scope.cancelled_caught:
                    raise inner.why
            except Exception as error:  # noqa: BLE001  it becomes an answer
                await explain(inner, error)
            finally:
                requests.end(inner.cancel)
                self._bodies.release(reserved)
                recorder.finish(record, sink, job.route.name, ring.status or CLIENT_LEFT)

        def loading() -> bool:
            return self._fleet.known(record.model) is not None and not self._fleet.is_ready(record.model)

        generation = self._streams.begin(
            conversation,
            generate,
            streams=job.streams,
            loading=loading,
            interrupted=interrupted_record(visit.route.dialect if visit.route is not None else job.route.dialect),
        )
        reserved, record.outlives = visit.body.hand_over(), True
        await be_first_reader(generation, job.sink.inner if isinstance(job.sink, RecordingSink) else job.sink)
