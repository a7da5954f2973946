"""The targets of ``/cors-proxy``: the address that a caller asks for, and the networks that are out of reach."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import quote, urljoin, urlsplit

from msgspec import Struct

PORTS = {"http": 80, "https": 443}
MAX_URL = 1 << 14
REDIRECTS = (301, 302, 303, 307, 308)
LOOPBACK = "loopback"
"""The word that allows this machine's own servers, if they are named as such: localhost, 127.0.0.0/8 or ::1."""
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_ALLOWED_NAME = re.compile(r"(\*\.)?[A-Za-z0-9._-]+")
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"
_NOT_GLOBAL = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "100.64.0.0/10",  # carriers' own
        "192.0.0.0/24",  # protocol assignments
        "192.88.99.0/24",  # 6to4 relays
        "198.18.0.0/15",  # benchmarks
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
"""IPv4 networks about which versions of Python disagree, or that hold no servers (RFC 6890)."""
_GLOBAL_6 = ip_network("2000::/3")
_NOT_GLOBAL_6 = tuple(
    map(ip_network, ("2001::/23", "2001:db8::/32", "3fff::/20"))
)  # protocol assignments (Teredo among them), documentation
"""The same of those; Python is not asked, because its versions disagree about most of them (RFC 6890, RFC 9637)."""
_NAT64 = ip_network("64:ff9b::/96")  # IPv6 addresses that stand for an IPv4 one (RFC 6052)


class BadTarget(ValueError):
    """An address cannot be used; the message is the end of a sentence about it."""


class ProxyTarget(Struct, frozen=True):
    """One http or https address; ``path`` has its query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def parse_target(url: str) -> ProxyTarget:
    """Read an address. Raises BadTarget and nothing else. The fragment is dropped, because servers never see it."""
    if len(url) > MAX_URL:
        raise BadTarget("is too long")
    if any(character < " " or character == "\x7f" for character in url):
        raise BadTarget("contains control characters")
    try:
        parts = urlsplit(url.strip(" "))
        port = parts.port
        host = parts.hostname or ""
        host = host if host.isascii() else host.encode("idna").decode("ascii")
    except ValueError as error:
        raise BadTarget(f"is not an address ({error})") from None
    if parts.scheme not in PORTS:
        raise BadTarget("does not begin with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise BadTarget("contains a user name or password")
    if not _HOST.fullmatch(host) or port == 0:
        raise BadTarget("has no usable host and port")
    path = quote(parts.path or "/", safe=_PATH_SAFE)
    query = f"?{quote(parts.query, safe=_PATH_SAFE + '?')}" if parts.query else ""
    return ProxyTarget(parts.scheme, host.lower(), port or PORTS[parts.scheme], path + query)


def redirected(target: ProxyTarget, location: str) -> ProxyTarget:
    """Return where a redirect of ``target`` leads. Raises BadTarget, also for one that gives up encryption."""
    try:
        url = urljoin(target.url, location)
    except ValueError as error:
        raise BadTarget(f"is not an address ({error})") from None
    found = parse_target(url)
    if target.scheme == "https" and found.scheme != "https":
        raise BadTarget("leads from https to http")
    return found


def is_public(address: str) -> bool:
    """True if an IP address is one of the internet: not this machine, a local network, a link, or many at once."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, IPv6Address):  # one that carries an IPv4 address is as public as that
        carried = IPv4Address(int(found) & 0xFFFFFFFF) if found in _NAT64 else found.sixtofour
        if carried is None:
            return found in _GLOBAL_6 and not any(found in network for network in _NOT_GLOBAL_6)
        found = carried
    return found.is_global and not any(found in network for network in _NOT_GLOBAL)


def names_this_machine(host: str) -> bool:
    """True if a host is this machine by its own spelling, and not by the answer of a name server."""
    return host == "localhost" or _is_loopback(host)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


class Reach:
    """Allowed beside the internet: names, addresses, networks, `LOOPBACK`, or ``*``. Raises BadTarget."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._everything = False
        self._loopback = False
        self._names: list[str] = []
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in allowed:
            text = entry.strip().lower()
            with suppress(ValueError):
                self._networks.append(ip_network(text, strict=False))
                continue
            if text == "*":
                self._everything = True
            elif text == LOOPBACK:
                self._loopback = True
            elif _ALLOWED_NAME.fullmatch(text):
                self._names.append(text)
            else:
                usual = "localhost, 192.168.1.5 or 10.0.0.0/8"
                raise BadTarget(f"'{entry}' is not a name, address or network such as {usual}")

    def allows(self, host: str, addresses: Sequence[str], *, led: bool = False) -> bool:
        """True if a connection to a host at these addresses, which are all of its name's, is allowed.

        ``led``: not the caller but a redirect from a server elsewhere asks for it; it may not reach this machine.
        """
        is_named = any(host == name or (name.startswith("*.") and host.endswith(name[1:])) for name in self._names)
        if self._everything or is_named:
            return True
        if self._loopback and not led and names_this_machine(host) and all(map(_is_loopback, addresses)):
            return True
        found = {address: ip_address(address.partition("%")[0]) for address in addresses}
        return all(is_public(text) or any(ip in network for network in self._networks) for text, ip in found.items())
