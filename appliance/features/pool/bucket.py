"""A bucket on the bus: keys with revisions, read from any replica, changed by compare-and-set."""

from __future__ import annotations

from contextlib import suppress

import trio

from appliance.features.pool.bus import ANSWER_TIME, Bus
from appliance.features.pool.core.buckets import (
    EXISTS,
    NO_LEADER,
    REVISION_HEADER,
    BucketEntry,
    BusConflict,
    BusRefused,
    BusTimeout,
    NoResponders,
    api_answer,
    bucket_request,
    direct_entry,
)
from appliance.features.pool.core.nats import BusMessage

ASK_AGAIN = 0.5  # seconds without an answer after which a question that may come twice is asked again


class Bucket:
    """One bucket. Its methods raise BusLost and BusTimeout, after which it is unknown whether anything was done."""

    def __init__(self, bus: Bus, name: str) -> None:
        self._bus, self._name, self._prefix = bus, name, f"$KV.{name}."

    async def create(self, replicas: int) -> None:
        """Make the bucket on so many servers, if it is not there yet. Raises BusRefused, NoResponders."""
        try:
            body = bucket_request(self._name, replicas)
            api_answer((await self._ask_again(f"$JS.API.STREAM.CREATE.KV_{self._name}", body, 2 * ANSWER_TIME)).data)
        except BusRefused as refused:
            if refused.code != EXISTS:
                raise

    async def get(self, key: str, *, timeout: float = ANSWER_TIME) -> BucketEntry | None:
        """Return the entry of a key; None: there is none. Raises BusRefused, NoResponders.

        It may be old: a replica that was cut off goes on answering. Only a put with its revision proves it.
        """
        subject = f"$JS.API.DIRECT.GET.KV_{self._name}.{self._prefix}{key}"
        return direct_entry(key, await self._ask_again(subject, b"", timeout))

    async def put(self, key: str, value: bytes, revision: int | None, *, timeout: float = ANSWER_TIME) -> int:
        """Write a key, and return its new revision. ``revision`` 0: only if there is none; None: in any case.

        Raises BusConflict if the key has another revision; BusRefused, NoResponders.
        """
        headers = None if revision is None else {REVISION_HEADER: str(revision)}
        try:
            answer = await self._bus.request(self._prefix + key, value, headers=headers, timeout=timeout)
            made = api_answer(answer.data)
        except BusConflict:
            self._bus.puts_work()  # the leader has compared it
            raise
        except (BusTimeout, NoResponders, BusRefused) as cause:
            if not isinstance(cause, BusRefused) or cause.code == NO_LEADER:
                self._bus.puts_fail(str(cause))
            raise
        self._bus.puts_work()
        return made

    async def _ask_again(self, subject: str, body: bytes, timeout: float) -> BusMessage:
        """Ask until there is an answer: servers that elect a leader give none. The question may come twice."""
        until = trio.current_time() + timeout
        while (left := until - trio.current_time()) > ASK_AGAIN:
            with suppress(BusTimeout):
                return await self._bus.request(subject, body, timeout=ASK_AGAIN)
        return await self._bus.request(subject, body, timeout=left)
