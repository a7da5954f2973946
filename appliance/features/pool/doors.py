"""Asking at the doors of other boxes.

A box is known by its name in a certificate of the pool's authority, never by its address. So a box may be dialled at
any of its addresses, also one that leads to another machine meanwhile: that one does not have the certificate. All
addresses are dialled at once, and the first one that proves to be the box is used. (`trio.open_tcp_stream` would take
the first one that accepts a connection.)

A box that only dials out makes the connections itself. It sends the beginning of an upgrade and waits for its answer. A
request takes the connection by giving that answer, `SWITCHED`, and from then on this program is the client of it. So
the wait costs nothing, no time limit of HTTP applies to it, and the box knows without more words that it is taken.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import trio
from msgspec import Struct
from msgspec.structs import replace

from appliance.core.lenient_json import decoded
from appliance.core.openai import error_text
from appliance.errors import BadRequest, BoxFailed, Busy, Conflict, UpstreamFailed
from appliance.features.pool.core.join_code import JoinCode
from appliance.features.pool.core.keys import PoolKeys, is_signed_by, server_name
from appliance.features.pool.core.roster import Box, Roster
from appliance.platform.tls_socket import TlsSocket
from appliance.trio_parts import Changed
from appliance.upstream.address import Address
from appliance.upstream.client import HttpCall
from appliance.upstream.connect import NotTrusted, SocketWire, connect

DIAL_TIME = 3.0  # seconds to be connected in a local network, handshake included; a box that is off answers nothing
ASK_TIME = 10.0
JOIN_TIME = 25.0  # the roster is written first, and the bus may be growing for another box; a verb waits 30 s
PROTOCOL = 1  # a box refuses one that speaks another, and tells it to upgrade the older one
ROSTER, SECRET, JOIN = "/pool/roster", "/pool/secret", "/pool/join"
MAX_MESSAGE = 1 << 20  # bytes of a body or an answer; a roster has less (`roster.LARGEST`)
REVERSE = "/pool/reverse"
UPGRADE = b"llama-appliance-reverse"  # the name of the protocol, in lower case
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: %b\r\n\r\n" % UPGRADE


HandOver = Callable[[], TlsSocket | None]  # Gives a connection away. None: it has ended.
NOBODY: Mapping[str, Dialled] = {}
_JSON = ((b"Content-Type", b"application/json"),)

T = TypeVar("T")


class JoinRequest(Struct, frozen=True, kw_only=True):
    """Body of ``POST /pool/join``; it needs no key, only the token of a code."""

    token: bytes
    box: Box
    protocol: int = PROTOCOL


class NewSecret(Struct, frozen=True):
    """The answer to a box that has joined, and the body of ``POST /pool/secret``."""

    secret: bytes
    roster: Roster


class OtherKeys(BoxFailed):
    """The other box has not the keys that this one has."""


class Dialled:
    """The connections of one server, which wait for requests of this program."""

    def __init__(self) -> None:
        self._waiting: dict[HandOver, None] = {}
        self._more = Changed()

    @contextmanager
    def waiting(self, hand_over: HandOver) -> Generator[None]:
        """Offer a connection in the block. ``hand_over`` is called once at most."""
        self._waiting[hand_over] = None
        self._more.wake()
        try:
            yield
        finally:
            self._waiting.pop(hand_over, None)

    async def take(self, seconds: float) -> TlsSocket | None:
        """Return a connection, turned round. None: the server has none here, and has made none within the time."""
        with trio.move_on_after(seconds):
            while True:
                while self._waiting:
                    hand_over, _ = self._waiting.popitem()
                    if (sock := hand_over()) is None:
                        continue
                    try:
                        sock.send(memoryview(SWITCHED))
                    except OSError:  # it broke a moment ago
                        sock.close()
                    else:
                        return sock
                await self._more.wait()
        return None


class Ways:
    """The ways to the doors of one pool, with its keys."""

    def __init__(self, keys: PoolKeys, dialled: Mapping[str, Dialled] = NOBODY) -> None:
        """``dialled``: the connections that boxes which dial out have made, by their names."""
        self._keys = ((b"Authorization", f"Bearer {keys.door_key}".encode()),)
        self._context = ssl.create_default_context(cadata=keys.ca_pem)
        self._good: dict[str, Address] = {}
        self._dialled = dialled

    def guess(self, box: Box) -> Address:
        """Return where the box was reached last, or else its best address; or else the connections that it makes."""
        if box.dials_out:
            return replace(self._address(box, server_name(box.name)), dialled=self._dialled.get(box.name, Dialled()))
        found = self._good.get(box.name)
        if found is not None and found.host in box.addresses and found.port == box.port:
            return found
        return self._address(box, box.addresses[0] if box.addresses else "0.0.0.0")

    async def find(self, box: Box) -> Address:
        """Dial all addresses of a box at once; return the one where it answers first. Raises BoxFailed."""
        if box.dials_out:
            return self.guess(box)

        async def dial(host: str) -> Address:
            address = self._address(box, host)
            (await connect(address)).close()
            return address

        self._good.pop(box.name, None)
        found = self._good[box.name] = await _first(box.name, box.addresses, box.port, dial)
        return found

    async def ask(self, box: Box, method: str, path: str, answer: type[T], body: object = None) -> T:
        """Ask a box that is in the pool. Raises BoxFailed, and BadRequest and Conflict in the box's own words."""
        address = self._good.get(box.name) or await self.find(box)
        try:
            return await ask_at(address, method, path, answer, body)
        except BoxFailed:
            self._good.pop(box.name, None)
            raise

    def _address(self, box: Box, host: str) -> Address:
        name = server_name(box.name)
        door = _door(host, box.port, self._context, name)
        return replace(door, label=box.name, tls_name=name, key_headers=self._keys)


async def join_with(code: JoinCode, asked: JoinRequest) -> NewSecret:
    """Ask a box of the pool to be let in. Raises as `Ways.ask`; BoxFailed also where nobody can be reached.

    The joiner knows the authority's key alone. It looks at the certificate that the other side has proved to hold, and
    checks the authority's signature. The token goes out on a second connection, which believes that very certificate
    and no other one.
    """
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE

    async def dial(host: str) -> tuple[str, bytes]:
        wire = await connect(_door(host, code.port, unchecked))
        try:
            assert isinstance(wire, SocketWire)
            shown = wire.certificate
        finally:
            wire.close()
        if not is_signed_by(code.ca_public, shown):
            raise UpstreamFailed(host, "another server, or a box of another pool, answers there")
        return host, shown

    host, certificate = await _first(f"{code.addresses[0]} port {code.port}", code.addresses, code.port, dial)
    checked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    checked.check_hostname = False
    checked.load_verify_locations(cadata=certificate)
    checked.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return await ask_at(_door(host, code.port, checked), "POST", JOIN, NewSecret, asked, JOIN_TIME)


async def ask_at(
    address: Address, method: str, path: str, answer: type[T], body: object = None, within: float = ASK_TIME
) -> T:
    """Send one request to a door. Raises as `Ways.ask`."""
    sent = b"" if body is None else msgspec.json.encode(body)
    try:
        with trio.fail_after(within):
            async with HttpCall(address, method, path, _JSON, sent) as response:
                content = await response.read(MAX_MESSAGE)
    except trio.TooSlowError:
        raise BoxFailed(address.label, f"it did not answer {method} {path} within {within:g} s") from None
    except (UpstreamFailed, Busy) as error:
        raise BoxFailed(address.label, _why(error)) from None
    if response.status == 200:
        if (found := decoded(answer, content)) is None:
            raise BoxFailed(address.label, f"its answer to {method} {path} cannot be read; are the versions the same?")
        return found
    said = error_text(content)
    if said and (refusal := {400: BadRequest, 409: Conflict}.get(response.status)) is not None:
        raise refusal(said)
    if response.status == 401:
        raise OtherKeys(address.label, "it does not let in the key of this box")
    why = said or "it gave no reason"
    raise BoxFailed(address.label, f"it answered {response.status} to {method} {path}: {why}")


def _door(host: str, port: int, context: ssl.SSLContext, name: str = server_name("any")) -> Address:
    return Address(
        host,
        port,
        None,
        f"{host} port {port}",
        tls=True,
        tls_context=context,
        host_header=name.encode(),
        connect_timeout=DIAL_TIME,
        tls_timeout=DIAL_TIME,
    )


async def _first(box: str, hosts: Sequence[str], port: int, dial: Callable[[str], Awaitable[T]]) -> T:
    """Dial all hosts at once, and return the first success. Raises BoxFailed."""
    found: list[T] = []
    failures: list[tuple[str, UpstreamFailed | Busy]] = []

    async def try_one(host: str, others: trio.CancelScope) -> None:
        try:
            found.append(await dial(host))
            others.cancel()
        except (UpstreamFailed, Busy) as error:
            failures.append((host, error))

    with trio.move_on_after(DIAL_TIME):
        async with trio.open_nursery() as nursery:
            for host in hosts:
                nursery.start_soon(try_one, host, nursery.cancel_scope)
    if found:
        return found[0]
    told = "; ".join(f"{host}: {_why(error)}" for host, error in failures)
    told = told or f"no answer from {', '.join(hosts) or 'any address'} within {DIAL_TIME:g} s"
    why = f"it cannot be reached ({told}); is it running, and does its firewall let in TCP port {port}?"
    if failures and all(isinstance(error, NotTrusted) for _, error in failures):
        raise OtherKeys(box, why)
    raise BoxFailed(box, why)


def _why(error: UpstreamFailed | Busy) -> str:
    return error.why if isinstance(error, UpstreamFailed) else str(error)
