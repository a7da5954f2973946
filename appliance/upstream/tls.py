"""TLS towards a server, verified: its certificate, and its name."""

from __future__ import annotations

import errno
import math
import socket
import ssl
from collections.abc import Callable
from functools import cache
from pathlib import Path

import trio

from appliance.upstream.address import Address
from appliance.upstream.wire import RECEIVE_SIZE, ConnectFailed, each_received

AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""The places where systems keep them. The OpenSSL of a frozen program looks where its build machine had them."""


class TlsWire:
    """TLS over a TCP socket of our own. An end without close_notify is an end: the body says if it is whole."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as cause:
            raise _broken(cause) from None

    async def receive(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(RECEIVE_SIZE))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as cause:
            raise _broken(cause) from None

    async def each(self, heard: Callable[[bytes], bool]) -> None:
        await each_received(self, heard)

    def close(self) -> None:
        self._stream.transport_stream.socket.close()


@cache
def tls_context() -> ssl.SSLContext:
    """Certificates and names are verified, against the system's authorities or those of ``SSL_CERT_FILE``."""
    context = ssl.create_default_context()
    built_in = ssl.get_default_verify_paths()
    if not (built_in.cafile or built_in.capath):
        for path in AUTHORITIES:
            if Path(path).is_file():
                context.load_verify_locations(path)
                break
    return context


async def secure(sock: socket.socket, address: Address) -> TlsWire:
    """Takes the socket over. Raises ConnectFailed with what the certificate or the handshake lacks."""
    try:
        stream = trio.SSLStream(
            trio.SocketStream(trio.socket.from_stdlib_socket(sock)),
            tls_context(),
            server_hostname=address.host,
            https_compatible=True,
        )
        with trio.move_on_after(address.tls_timeout or math.inf):
            await stream.do_handshake()
            return TlsWire(stream)
    except trio.BrokenResourceError as cause:
        sock.close()
        raise ConnectFailed(address.label, _why_not_secure(address, cause.__cause__)) from None
    except BaseException:
        sock.close()
        raise
    sock.close()
    raise ConnectFailed(address.label, f"no TLS handshake within {address.tls_timeout} s; see timeouts.tlsHandshake")


def _why_not_secure(address: Address, cause: BaseException | None) -> str:
    match cause:
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate is not trusted for '{address.host}' ({cause.verify_message}); install the authority "
                "that signed it, or name its file in SSL_CERT_FILE"
            )
        case ssl.SSLError():
            return f"no TLS connection could be made ({cause.reason or cause}); is it https at all?"
        case _:
            return "it closed the connection during the TLS handshake; is it https at all?"


def _broken(cause: Exception) -> OSError:
    return OSError(errno.ECONNRESET, str(cause) or "the connection broke")
