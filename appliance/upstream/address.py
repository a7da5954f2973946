"""The address of a server, the time it may take to be reached, and the key that it asks for."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import SplitResult, quote, urlsplit

from msgspec import Struct, structs

from appliance.core.bodies.http_message import HOP_BY_HOP
from appliance.core.config.types import Timeouts
from appliance.core.proxies import Proxy
from appliance.core.settings import in_url
from appliance.errors import UsageError
from appliance.upstream.proxy import proxy_for

if TYPE_CHECKING:
    from appliance.platform.tls_socket import TlsSocket  # few servers are reached so

_SCHEME_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"

Headers = Iterable[tuple[bytes, bytes]]

OWN_TO_THIS_HOP = HOP_BY_HOP | {
    b"accept-encoding",
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"cookie",
    b"expect",
    b"host",
    b"x-api-key",
}
"""Request headers that speak of the client's connection or prove the client's identity; a child never sees them. Bodies
leave without their coding."""
OF_THE_CLIENT = OWN_TO_THIS_HOP | {b"forwarded", b"origin", b"referer", b"x-real-ip"}
"""More headers that a peer does not see: another server has no need to know the client and its page."""
_OF_THE_CLIENT_PREFIXES = (b"x-forwarded-", b"sec-fetch-")


class DialledIn(Protocol):
    """The connections that a server has made to this program, because this program cannot reach it."""

    async def take(self, seconds: float) -> TlsSocket | None:
        """Return one of them, on which this program asks. None: there is none, and none has come within the time."""
        ...


class Address(Struct, frozen=True):
    """The address of one server. ``key`` is a child's own random API key; ``label`` names the server in errors.

    Times are in seconds; None means no limit.
    """

    host: str
    """An IP address, which is connected to as it is, or a name."""
    port: int
    key: str | None
    label: str
    base_path: str = ""
    """Put before every target; empty, or it begins with a slash and does not end with one."""
    base_query: str = ""
    """Put before every query."""
    tls: bool = False
    tls_context: ssl.SSLContext | None = None
    """The authorities that TLS believes; None: those of the system."""
    tls_name: str | None = None
    """The name that the certificate has to have; None: ``host``."""
    socket: str | None = None
    """The file of a socket, which is connected to instead of ``host`` and ``port``."""
    users: frozenset[int] | None = None
    """The users one of whom must have the program at ``socket``; None: anybody."""
    dialled: DialledIn | None = None
    """The connections that the server has made, which are used instead of new ones. TLS is on them."""
    resolved: str | None = None
    """An IP address of ``host``, looked up before: connected to, while TLS and Host still say ``host``."""
    host_header: bytes | None = None
    """Sent as Host; None sends the address itself."""
    key_headers: tuple[tuple[bytes, bytes], ...] = ()
    """Sent with every request; how a peer learns that it may answer."""
    connect_timeout: float | None = None
    tls_timeout: float | None = None
    header_timeout: float | None = None
    """From the request's last byte to the end of the answer's head."""
    keepalive: int | None = None
    """Whole seconds between TCP keep-alive probes."""
    proxy: Proxy | None = None
    """The way to ``host`` leads through it."""

    @property
    def relayed(self) -> Proxy | None:
        """The proxy that reads the requests itself, because they are HTTP without TLS."""
        return self.proxy if self.proxy is not None and self.proxy.kind == "http" and not self.tls else None

    @property
    def authority(self) -> bytes:
        """The Host header, unless ``host_header`` says something else."""
        host = in_url(self.host)
        return (host if self.tls and self.port == 443 else f"{host}:{self.port}").encode()

    def target(self, target: str) -> str:
        """A request's path and query with those of the address before them, and the address for a proxy."""
        if self.relayed is not None:
            return f"http://{self.authority.decode()}{structs.replace(self, proxy=None).target(target)}"
        if not self.base_path and not self.base_query:
            return target
        path, mark, query = target.partition("?")
        path = self.base_path + (path if path.startswith("/") or not path else f"/{path}")
        query = "&".join(part for part in (self.base_query, query) if part)
        return (path or "/") + (f"?{query}" if mark or query else "")


def address_of(
    url: str, label: str, *, api_key: str = "", timeouts: Timeouts | None = None, proxied: bool = False
) -> Address:
    """The server at ``url``, http or https, which may have a path and a query that all requests begin with.

    ``api_key`` is sent both as a bearer token and as ``x-api-key``. An https server is reached by the proxy of the
    environment or of the system, if there is one; an http server, which mostly is in the same network, if it is
    ``proxied``. Raises UsageError for any other text.
    """
    parts, port = _split(url, label)
    limits = timeouts or Timeouts()
    secret = api_key.encode()
    tls, host = parts.scheme == "https", parts.hostname or ""
    return Address(
        host=host,
        port=port,
        key=None,
        label=label,
        base_path=quote(parts.path.rstrip("/"), safe=_PATH_SAFE),
        base_query=quote(parts.query, safe=_PATH_SAFE + "?"),
        tls=tls,
        key_headers=((b"Authorization", b"Bearer " + secret), (b"x-api-key", secret)) if secret else (),
        connect_timeout=limits.connect or None,
        tls_timeout=limits.tls_handshake or None,
        header_timeout=limits.response_header or None,
        keepalive=limits.keepalive or None,
        proxy=proxy_for(parts.scheme, host, port) if tls or proxied else None,
    )


def _split(url: str, label: str) -> tuple[SplitResult, int]:
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise _unusable(url, label, f"is not a URL ({error})") from None
    if parts.scheme not in _SCHEME_PORTS or not parts.hostname:
        raise _unusable(url, label, "does not begin with http:// or https:// and a host")
    if parts.username is not None or parts.password is not None:
        raise _unusable(url, label, "holds a user name or password; a key belongs into apiKey")
    if parts.fragment:
        raise _unusable(url, label, "has a fragment (#), which no server ever sees")
    if not _HOST.fullmatch(parts.hostname):
        raise _unusable(url, label, f"has the host {parts.hostname!r}; write its ASCII form (punycode)")
    if port == 0:
        raise _unusable(url, label, "has port 0; a port is a number from 1 to 65535")
    return parts, port or _SCHEME_PORTS[parts.scheme]


def _unusable(url: str, label: str, why: str) -> UsageError:
    shown = re.sub(r"//[^/@]*@", "//...@", url)  # a password is nothing for a log
    return UsageError(f"'{shown}' of '{label}' {why}; an example is http://127.0.0.1:5800")


def forwardable_to_peer(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The client's request headers that may travel on to another machine, names as received."""
    return [
        (name, value)
        for name, value in headers
        if (low := name.lower()) not in OF_THE_CLIENT and not low.startswith(_OF_THE_CLIENT_PREFIXES)
    ]
