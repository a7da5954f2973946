"""Proxies of a network: the one that the environment names for an address, and the addresses that go without.

The variables are those of curl and Python: ``https_proxy``, ``http_proxy``, ``all_proxy``, ``no_proxy``, in small
letters first. This machine is never reached through a proxy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Literal
from urllib.parse import unquote, urlsplit

from msgspec import Struct

KINDS: dict[str, Literal["http", "socks"]] = {"http": "http", "socks": "socks", "socks5": "socks", "socks5h": "socks"}
PORTS = {"http": 80, "socks": 1080}


class Proxy(Struct, frozen=True, kw_only=True):
    """A proxy, written without its password. ``error`` says why it cannot be used."""

    shown: str
    kind: Literal["http", "socks"] = "http"
    host: str = ""
    port: int = 0
    user: str = ""
    password: str = ""
    resolves: bool = True
    """It is given names, and looks them up itself."""
    error: str | None = None

    def __str__(self) -> str:
        return self.shown


def read_proxy(text: str) -> Proxy:
    """Read ``[http://|socks5://|socks5h://][USER:PASSWORD@]HOST[:PORT]``."""
    url = text.strip() if "://" in text else f"http://{text.strip()}"
    scheme, _, rest = url.partition("://")
    shown = f"{scheme}://{rest.rpartition('@')[2].partition('/')[0]}"
    try:
        parts = urlsplit(url)
        kind, port = KINDS.get(parts.scheme), parts.port
    except ValueError as error:
        return Proxy(shown=shown, error=f"it is not an address ({error})")
    if kind is None:
        return Proxy(shown=shown, error="name it as http://, socks5:// or socks5h://, if it speaks one of these")
    if not parts.hostname:
        return Proxy(shown=shown, error="it names no host")
    return Proxy(
        shown=shown,
        kind=kind,
        host=parts.hostname,
        port=port or PORTS[kind],
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        resolves=parts.scheme != "socks5",
    )


def proxy_in(environ: Mapping[str, str], scheme: str, host: str, port: int) -> Proxy | None:
    """Return the proxy that variables name for a server; None for a direct connection."""
    if is_here(host):
        return None
    found = _variable(environ, f"{scheme}_proxy")
    found = _variable(environ, "all_proxy") if found is None else found
    if not found or goes_without(host, port, _variable(environ, "no_proxy") or ""):
        return None
    return read_proxy(found)


def is_here(host: str) -> bool:
    """True for this machine."""
    name, address = _parsed(host)
    if address is None:
        return name == "localhost" or name.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def goes_without(host: str, port: int, rules: str) -> bool:
    """True if ``NO_PROXY`` lists a server: by a name or its end, an address, a network, with or without a port."""
    return any(_fits(rule, *_parsed(host), port) for rule in re.split(r"[\s,;]+", rules.lower()) if rule)


def _fits(rule: str, name: str, address: IPv4Address | IPv6Address | None, port: int) -> bool:
    match = re.fullmatch(r"\[(?P<v6>[^]]*)\](:(?P<p6>\d+))?|(?P<host>[^:]*):(?P<port>\d+)", rule)
    if match is not None:
        wanted = match["p6"] or match["port"]
        if wanted and int(wanted) != port:
            return False
        rule = match["v6"] if match["v6"] is not None else match["host"]
    if address is not None:
        try:
            network = ip_network(rule, strict=False)
        except ValueError:
            return "*" in rule and fnmatchcase(name, rule)
        return address.version == network.version and address in network
    end = rule.removeprefix("*").strip(".")
    if "*" in end or rule == "*":
        return fnmatchcase(name, rule)
    return bool(end) and (name == end or name.endswith(f".{end}"))


def _parsed(host: str) -> tuple[str, IPv4Address | IPv6Address | None]:
    name = host.strip("[]").rstrip(".").lower()
    try:
        address = ip_address(name)
    except ValueError:
        return name, None
    return name, getattr(address, "ipv4_mapped", None) or address


def _variable(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(name, environ.get(name.upper()))
