"""This box as a client of the bus: one connection, made again for ever, that carries messages, requests and answers.

One task reads, and calls the subscriptions. They must not wait: a slow one would stop all others, until the server
ends the connection.

A bus that is lost says nothing about a request: it may have been carried out. `BusLost` and `BusTimeout` mean unknown.
"""

from __future__ import annotations

import random
import secrets
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from operator import eq
from typing import Never

import trio
from msgspec.structs import replace

from appliance.features.pool.bus_link import SILENCE, BusBroken, BusLink, enter, refused
from appliance.features.pool.core.buckets import BusLost, BusRefused, BusTimeout, NoResponders
from appliance.features.pool.core.bus_words import BusAccess, BusPlace, BusState, Fault, lost_problem, quorum_problem
from appliance.features.pool.core.nats import (
    PING,
    PONG,
    BusMessage,
    ServerInfo,
    ServerRefusal,
    publish_lines,
    subscribe_line,
    unsubscribe_line,
)
from appliance.trio_parts import Changed, beside

ANSWER_TIME = 2.0  # Seconds for the answer to a request. During the election of a leader there is none for up to 11 s.
FIRST_PAUSE, MOST_PAUSE = 0.1, 5.0  # seconds between two rounds over all servers, at first and at last
HOME_EVERY = 2.0  # seconds between two looks for the first server: a client of another box's fails with that box
LEAVE_TIME = 1.0  # seconds for the answers that are still to come from a server that is left

Heard = Callable[[BusMessage], object]


class _Question:
    """A request that waits for its answer. ``link``: the connection on which it was sent."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.answer: BusMessage | None = None
        self.link: BusLink | None = None


class Bus:
    """The client. `open_bus` owns it; every method belongs to its event loop."""

    def __init__(self, access: BusAccess, tls: ssl.SSLContext | None) -> None:
        self.state = BusState()
        self.news = Changed()  # wakes when `state` changes
        self._access, self._tls = access, tls
        self._link: BusLink | None = None
        self._subscriptions: dict[int, tuple[str, Heard]] = {}
        self._questions: dict[str, _Question] = {}
        self._numbers = 0
        self._fault: Fault = "ended"  # the reason for which the last connection ended
        self._inbox = f"_INBOX.{secrets.token_hex(8)}"
        self._subscribe(f"{self._inbox}.*", self._answered)

    @property
    def connected(self) -> bool:
        return self._link is not None

    def publish(self, subject: str, data: bytes = b"") -> bool:
        """Send to all who listen now. False: it was dropped. Raises ValueError for what cannot be a subject."""
        commands = publish_lines(subject, data)
        return self._link is not None and len(data) <= self._link.info.max_payload and self._link.send(commands)

    async def request(
        self, subject: str, data: bytes = b"", *, headers: Mapping[str, str] | None = None, timeout: float = ANSWER_TIME
    ) -> BusMessage:
        """Ask, and return the first answer. A connection that is not there is waited for.

        Raises BusLost and BusTimeout: it is unknown whether the request was carried out. Raises NoResponders and
        BusRefused: it was not.
        """
        token, question = secrets.token_hex(6), _Question()
        commands = publish_lines(subject, data, headers, f"{self._inbox}.{token}")
        self._questions[token] = question
        try:
            with trio.move_on_after(timeout):
                while (link := self._link) is None:
                    await self.news.wait()
                if len(data) > link.info.max_payload:
                    raise BusRefused(f"a message of {len(data)} bytes; the bus takes {link.info.max_payload}")
                if not link.send(commands):
                    raise BusLost(f"the bus at {link.place} takes no more bytes")
                question.link = link
                await question.over.wait()
        finally:
            del self._questions[token]
        if question.answer is None:
            why = self.state.problem.text if self.state.problem is not None else "the bus has no connection yet"
            if question.over.is_set() or question.link is None:
                raise BusLost(why)
            raise BusTimeout(f"no answer on {subject} within {timeout:g} s from {question.link.place}")
        if question.answer.status == "503":
            raise NoResponders(f"nobody listens on {subject}")
        return question.answer

    @contextmanager
    def subscription(self, subject: str, heard: Heard) -> Generator[None]:
        """Call ``heard``, which returns at once and raises nothing, with each message on this subject."""
        sid = self._subscribe(subject, heard)
        try:
            yield
        finally:
            del self._subscriptions[sid]
            if self._link is not None:
                self._link.send(unsubscribe_line(sid))

    def puts_fail(self, why: str) -> None:
        """A bucket says that the server accepts no puts."""
        if self._link is not None:
            self._become(replace(self.state, state="no-quorum", problem=quorum_problem(str(self._link.place), why)))

    def puts_work(self) -> None:
        """A bucket says that a put was answered."""
        if self.state.state == "no-quorum":
            self._become(replace(self.state, state="connected", problem=None))

    async def run(self) -> Never:
        """Keep a connection. Called once, by `open_bus`."""
        pause: float = FIRST_PAUSE
        left: BusPlace | None = None
        while True:
            # The server that was left as it stops comes last: it may still take connections.
            for place in sorted(self._access.places, key=partial(eq, left)):
                if await self._serve(place):
                    pause, left = FIRST_PAUSE, place if self._fault == "stopping" else None
                    break
            else:
                pause, left = min(2 * pause, MOST_PAUSE), None
            if left is None:
                await trio.sleep(pause * random.uniform(0.5, 1.0))

    async def _serve(self, place: BusPlace) -> bool:
        """Use a server until the connection ends. False: it never came to one."""
        link: BusLink | None = None
        try:
            self._link = link = await enter(place, self._access, self._tls)
            for sid, (subject, _) in self._subscriptions.items():
                link.send(subscribe_line(subject, sid))
            self._become(BusState(state="connected", server=str(place)))
            async with beside(link.write, self._look_for_first):
                await self._read(link)
        except* BusBroken as group:
            broken = next(each for each in group.exceptions if isinstance(each, BusBroken))
            self._fault = broken.fault
            problem = lost_problem(str(place), broken.fault, str(broken))
            self._become(BusState(state="lost", server=str(place), problem=problem))
        finally:
            self._link = None
            if link is not None:
                for question in self._questions.values():
                    if question.link is link:
                        question.over.set()
                await trio.aclose_forcefully(link.stream)
        return link is not None

    async def _read(self, link: BusLink) -> Never:
        while True:
            event = await link.event(LEAVE_TIME if link.leaving else SILENCE)
            match event:
                case BusMessage():
                    if (subscription := self._subscriptions.get(event.sid)) is not None:
                        subscription[1](event)
                case "PING":
                    link.send(PONG)
                case ServerInfo():
                    link.info = event
                    if event.ldm:
                        self._leave(link)
                case ServerRefusal():
                    raise refused(event)
                case _:
                    pass
            if link.leaving and not any(question.link is link for question in self._questions.values()):
                raise BusBroken("stopping", "")

    def _leave(self, link: BusLink) -> None:
        """Send nothing more to this server, and let the answers come that are still under way."""
        link.leaving = True
        self._link = None
        link.send(PING)  # its answer lets the reader look

    async def _look_for_first(self) -> Never:
        """Go back to the first server once it is there again, and knows this box."""
        while True:
            await trio.sleep(HOME_EVERY)
            link, places = self._link, self._access.places
            if link is not None and places and link.place != places[0]:
                try:
                    back = await enter(places[0], self._access, self._tls)
                except BusBroken:
                    continue
                await trio.aclose_forcefully(back.stream)
                self._leave(link)

    def _subscribe(self, subject: str, heard: Heard) -> int:
        self._numbers += 1
        line = subscribe_line(subject, self._numbers)
        self._subscriptions[self._numbers] = subject, heard
        if self._link is not None:
            self._link.send(line)
        return self._numbers

    def _answered(self, message: BusMessage) -> None:
        question = self._questions.get(message.subject.rpartition(".")[2])
        if question is not None and question.answer is None:
            question.answer = message
            question.over.set()

    def _become(self, state: BusState) -> None:
        if state != self.state:
            self.state = state
            self.news.wake()


@asynccontextmanager
async def open_bus(access: BusAccess, tls: ssl.SSLContext | None) -> AsyncGenerator[Bus]:
    """Own the client for the length of the block. ``tls`` None: the authorities of the system, and no certificate."""
    bus = Bus(access, tls)
    async with beside(bus.run):
        yield bus
