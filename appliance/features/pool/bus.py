"""This box as a client of the bus: one connection, made again for ever, that carries messages, requests and answers.

One task reads, and calls the subscriptions. They must not wait: a slow one would stop all others, until the server
ends the connection. One task writes. A caller that is cancelled while it sends would else leave half a command behind,
which ends the connection for everybody. So commands go whole into a buffer, and nobody but that task waits to send.

A bus that is lost says nothing about a request: it may have been carried out. `BusLost` and `BusTimeout` mean unknown.
"""

from __future__ import annotations

import base64
import random
import secrets
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from operator import eq
from typing import Never

import trio
from msgspec.structs import replace
from nacl.signing import SigningKey

from appliance import __version__
from appliance.features.pool.core.buckets import BusLost, BusRefused, BusTimeout, NoResponders
from appliance.features.pool.core.bus_words import BusAccess, BusPlace, BusState, Fault, bus_problem
from appliance.features.pool.core.nats import (
    PING,
    PONG,
    BusMessage,
    NatsEvent,
    NatsGarbage,
    NatsReader,
    ServerInfo,
    ServerRefusal,
    connect_line,
    publish_lines,
    subscribe_line,
    unsubscribe_line,
)
from appliance.trio_parts import Changed, beside

ANSWER_TIME = 2.0  # Seconds for the answer to a request. During the election of a leader there is none for up to 11 s.
FIRST_PAUSE, MOST_PAUSE = 0.1, 5.0  # seconds between two rounds over all servers, at first and at last
HOME_EVERY = 2.0  # seconds between two looks for the first server: a client of another box's fails with that box
LEAVE_TIME = 1.0  # seconds for the answers that are still to come from a server that is left
ENTER_TIME = 3.0  # seconds for each of connecting and logging in
PING_EVERY = 1.5  # seconds between two pings of this side, so that a live server has something to say
SILENCE = 3.5  # seconds without a byte after which a server is taken for dead; also the longest that it may take none
MOST_WAITING = 4 << 20  # Bytes of commands that wait to be sent. A server that takes no more is lost within `SILENCE`.
RECEIVE_SIZE = 1 << 16

Heard = Callable[[BusMessage], object]


class Bus:
    """The client. `open_bus` owns it; every method belongs to its event loop."""

    def __init__(self, access: BusAccess, tls: ssl.SSLContext | None) -> None:
        self.state = BusState()
        self.news = Changed()  # wakes when `state` changes
        self._access, self._tls = access, tls
        self._link: BusLink | None = None
        self._questions: dict[str, _Question] = {}
        self._fault: Fault = "ended"  # the reason for which the last connection ended
        self._inbox = f"_INBOX.{secrets.token_hex(8)}"
        self._subscriptions: dict[int, tuple[str, Heard]] = {0: (f"{self._inbox}.*", self._answered)}
        self._numbers = count(1)

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
        sid = next(self._numbers)
        line = subscribe_line(subject, sid)
        self._subscriptions[sid] = subject, heard
        if self._link is not None:
            self._link.send(line)
        try:
            yield
        finally:
            del self._subscriptions[sid]
            if self._link is not None:
                self._link.send(unsubscribe_line(sid))

    def puts_fail(self, why: str) -> None:
        """A bucket says that the server accepts no puts."""
        if self._link is not None:
            self._become(
                replace(self.state, state="no-quorum", problem=bus_problem(str(self._link.place), "no-quorum", why))
            )

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
            problem = bus_problem(str(place), broken.fault, str(broken))
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


class _Question:
    """A request that waits for its answer. ``link``: the connection on which it was sent."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.answer: BusMessage | None = None
        self.link: BusLink | None = None


class BusBroken(Exception):
    """The connection cannot be used (any more). ``fault``: whose fault it is."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(why)
        self.fault: Fault = fault


class BusLink:
    """A connection on which this box has logged in. `enter` makes it; the block that called it closes ``stream``."""

    def __init__(self, place: BusPlace, stream: trio.abc.Stream) -> None:
        self.place = place
        self.stream = stream
        self.info = ServerInfo()
        self.leaving = False  # True if nothing new is sent on it
        self._reader = NatsReader()
        self._out = bytearray()
        self._wake = trio.Event()

    def send(self, commands: bytes) -> bool:
        """Put whole commands into the buffer. False: it is full, and nothing was put there."""
        if len(self._out) + len(commands) > MOST_WAITING + self.info.max_payload:
            return False
        self._out += commands
        self._wake.set()
        return True

    async def event(self, within: float = SILENCE) -> NatsEvent:
        """Return the next event. Raises BusBroken, also after so many seconds without one."""
        with broken_in_words(), trio.fail_after(within):
            while (event := self._reader.next_event()) is None:
                data = await self.stream.receive_some(RECEIVE_SIZE)
                if not data:
                    raise BusBroken("ended", "it closed the connection")
                self._reader.receive(bytes(data))
        return event

    async def write(self) -> Never:
        """Send what is in the buffer, and pings. Raises BusBroken. The only task that writes."""
        ping_at = trio.current_time() + PING_EVERY
        while True:
            if not self._out:
                with trio.move_on_at(ping_at):
                    await self._wake.wait()
                self._wake = trio.Event()
            # A client that only publishes receives nothing, so it pings also while it has commands to send.
            if trio.current_time() >= ping_at:
                self._out += PING
                ping_at = trio.current_time() + PING_EVERY
            part, self._out = self._out, bytearray()
            with broken_in_words(), trio.fail_after(SILENCE):
                await self.stream.send_all(part)

    async def log_in(self, access: BusAccess, tls: ssl.SSLContext | None) -> None:
        """Make the connection secure as ``access`` says, and prove who this is. Raises BusBroken."""
        if access.tls == "first":
            await self._secure(tls)
        info = await self.event(ENTER_TIME)
        if not isinstance(info, ServerInfo):
            raise BusBroken("garbage", "its first words are not INFO")
        if access.tls == "late" or (access.tls == "off" and info.tls_required):
            await self._secure(tls)
        self.info = info
        login = access.login
        if access.seed:
            signature = SigningKey(access.seed).sign(info.nonce.encode()).signature
            login = {"nkey": access.nkey, "sig": base64.urlsafe_b64encode(signature).decode().rstrip("=")}
        hello = connect_line(login, access.client, __version__) + PING
        with broken_in_words(), trio.fail_after(ENTER_TIME):
            await self.stream.send_all(hello)
        while (event := await self.event(ENTER_TIME)) != "PONG":
            if isinstance(event, ServerRefusal):
                raise refused(event)

    async def _secure(self, tls: ssl.SSLContext | None) -> None:
        context = tls if tls is not None else ssl.create_default_context()
        name = self.place.name or self.place.host
        self.stream = stream = trio.SSLStream(self.stream, context, server_hostname=name, https_compatible=True)
        with broken_in_words(), trio.fail_after(ENTER_TIME):
            await stream.do_handshake()


async def enter(place: BusPlace, access: BusAccess, tls: ssl.SSLContext | None) -> BusLink:
    """Connect to a server and log in. Raises BusBroken."""
    with broken_in_words(), trio.fail_after(ENTER_TIME):
        link = BusLink(place, await trio.open_tcp_stream(place.host, place.port))
    try:
        await link.log_in(access, tls)
    except BaseException:
        await trio.aclose_forcefully(link.stream)
        raise
    return link


def refused(refusal: ServerRefusal) -> BusBroken:
    """Return the end that follows these words of the server; it has the same ones for each kind of wrong key."""
    return BusBroken("key" if "authorization" in refusal.words.lower() else "ended", refusal.words)


@contextmanager
def broken_in_words() -> Generator[None]:
    """Make a BusBroken of everything by which a connection may fail."""
    try:
        yield
    except trio.TooSlowError:
        raise BusBroken("silent", "there was no answer in time") from None
    except NatsGarbage as cause:
        raise BusBroken("garbage", str(cause)) from None
    except (trio.BrokenResourceError, trio.ClosedResourceError) as cause:
        raise _broken(cause.__cause__ or cause) from None
    except OSError as cause:  # SSLError is one
        raise _broken(cause) from None


def _broken(cause: BaseException) -> BusBroken:
    match cause:
        case ssl.SSLCertVerificationError():
            return BusBroken("authority", cause.verify_message)
        case ssl.SSLError():
            # In TLS 1.3 the server looks at a client's certificate after the client's handshake is done. So its
            # verdict comes as an alert, with the first bytes that are read.
            reason = (cause.reason or str(cause)).replace("_", " ").lower()
            alert = "alert" in reason and ("certificate" in reason or "unknown ca" in reason)
            return BusBroken("certificate" if alert else "garbage", reason)
        case OSError(__cause__=ExceptionGroup(exceptions=(OSError() as first, *_))):
            return BusBroken("unreachable", first.strerror or str(first))
        case OSError(__cause__=OSError() as first):
            return BusBroken("unreachable", first.strerror or str(first))
        case ConnectionResetError() | BrokenPipeError():
            return BusBroken("ended", cause.strerror or "it broke the connection")
        case OSError():
            return BusBroken("unreachable", cause.strerror or str(cause))
        case _:
            return BusBroken("ended", str(cause) or "the connection broke")
