"""One connection to one server of the bus, from the handshake to its end, and the reason of that end in words.

One task writes. A caller that is cancelled while it sends would else leave half a command behind, which ends the
connection for everybody. So commands go whole into a buffer, and nobody but that task waits to send.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from typing import Never

import trio
from nacl.signing import SigningKey

from appliance import __version__
from appliance.features.pool.core.bus_words import BusAccess, BusPlace, Fault
from appliance.features.pool.core.nats import (
    PING,
    NatsEvent,
    NatsGarbage,
    NatsReader,
    ServerInfo,
    ServerRefusal,
    connect_line,
)

ENTER_TIME = 3.0  # seconds for each of connecting and logging in
PING_EVERY = 1.5  # seconds between two pings of this side, so that a live server has something to say
SILENCE = 3.5  # seconds without a byte after which a server is taken for dead; also the longest that it may take none
MOST_WAITING = 4 << 20  # Bytes of commands that wait to be sent. A server that takes no more is lost within `SILENCE`.
RECEIVE_SIZE = 1 << 16


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
