"""A bucket on the bus: keys with revisions, read from any replica, changed by compare-and-set, watched."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Never

import trio

from appliance.features.pool.bus import ANSWER_TIME, Bus
from appliance.features.pool.core.buckets import (
    EXISTS,
    NO_LEADER,
    REVISION_HEADER,
    BucketEntry,
    BusConflict,
    BusError,
    BusRefused,
    BusTimeout,
    NoResponders,
    Watching,
    api_answer,
    bucket_request,
    direct_entry,
    watch_request,
)
from appliance.features.pool.core.nats import BusMessage
from appliance.trio_parts import Changed

WATCH_SILENCE = 4.0  # seconds without a message after which a watch begins anew: four heartbeats
ASK_AGAIN = 0.5  # seconds without an answer after which a question that may come twice is asked again
AGAIN = 0.3  # seconds until a watch that could not begin is tried again


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
            made = api_answer(answer.data).seq
        except BusConflict:
            self._bus.puts_work()  # the leader has compared it
            raise
        except (BusTimeout, NoResponders, BusRefused) as cause:
            if not isinstance(cause, BusRefused) or cause.code == NO_LEADER:
                self._bus.puts_fail(str(cause))
            raise
        self._bus.puts_work()
        return made

    async def watch(self, changed: Callable[[Mapping[str, BucketEntry]], object]) -> Never:
        """Call ``changed`` with all entries, now and after every change, until cancelled.

        It is called by the task that reads the bus: it must return at once. After a gap or a silence the watch begins
        anew, so that a change may come twice, and no last one is missed.
        """
        while True:
            try:
                await self._watch_once(changed)
            except BusError:
                await trio.sleep(AGAIN)

    async def _watch_once(self, changed: Callable[[Mapping[str, BucketEntry]], object]) -> None:
        """Watch until the first gap. Raises BusError."""
        watching, news = Watching(self._name), Changed()
        consumer, inbox = secrets.token_hex(8), f"_INBOX.{secrets.token_hex(8)}"

        def hear(message: BusMessage) -> None:
            heard = watching.hear(message)
            if heard == "changed":
                changed(watching.entries)
            elif heard == "flow":
                self._bus.publish(message.reply)
            news.wake()

        with self._bus.subscription(inbox, hear):
            subject = f"$JS.API.CONSUMER.CREATE.KV_{self._name}.{consumer}.{self._prefix}>"
            made = api_answer((await self._bus.request(subject, watch_request(self._name, consumer, inbox))).data)
            if not made.num_pending and not watching.entries:
                changed(watching.entries)
            while not watching.broken:
                with trio.move_on_after(WATCH_SILENCE) as silence:
                    await news.wait()
                if silence.cancelled_caught:
                    return

    async def _ask_again(self, subject: str, body: bytes, timeout: float) -> BusMessage:
        """Ask until there is an answer: servers that elect a leader give none. The question may come twice."""
        until = trio.current_time() + timeout
        while (left := until - trio.current_time()) > ASK_AGAIN:
            with suppress(BusTimeout):
                return await self._bus.request(subject, body, timeout=ASK_AGAIN)
        return await self._bus.request(subject, body, timeout=left)
