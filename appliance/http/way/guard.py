"""The checks of Host, Origin and API key, and the CORS headers for browsers."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable

from msgspec import structs

from appliance.core.settings import Cors, HttpSettings, Listen, UnixSocket, is_loopback
from appliance.errors import Forbidden, Unauthorized
from appliance.http.way.routes import RELOAD, changes_by_get, is_for_windows, is_inference
from appliance.traffic.request import TRUSTED, Request

Headers = list[tuple[bytes, bytes]]

MAX_GOOD_HOSTS = 100
"""Host headers remembered as good; every address is one."""
WINDOWS = ("app://", "file://", "tauri://", "vscode-webview://", "vscode-file://")
"""The schemes of a desktop application's own windows, in Origin; a saved page can have one also. No page of a site has
one of these.
"""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
HERE = (".localhost", ".local", ".internal")
"""The ends of names that no name server outside answers: of this machine (RFC 6761), of its network (RFC 6762), and of
private use (ICANN, 2024), such as those of containers for their host. So no page of another site can be bound to them.
"""
_HOST = re.compile(r"(?:\[([0-9a-f:.]+(?:%[\w.-]+)?)\]|((?:[^\[\]:/@.]{1,63}\.)*[^\[\]:/@.]{1,63}\.?))(?::[0-9]*)?")
"""A Host header in lower case: an address of IPv6, or any other name, then perhaps a port."""
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#\s]+)")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The name of a header (RFC 9110, 5.6.2)."""
BROWSER = "Mozilla/"
"""The beginning of every browser's User-Agent."""
UNIX = "unix"
"""The usual Host from clients of a socket in a file, if not localhost; no web page can have this name."""


class Guard:
    """The rules of one server. ``bound`` are the addresses it listens on."""

    def __init__(self, settings: HttpSettings, bound: Iterable[Listen]) -> None:
        self._settings = settings
        self._keys = [key.encode() for key in settings.api_keys]
        self.adopted = 0
        """The number of changes of the rules."""
        machine = socket.gethostname().lower()
        names = [UNIX if isinstance(place, UnixSocket) else place[0] for place in (*settings.places, *bound)]
        self._own_names = {name.lower() for name in (*names, machine, machine.partition(".")[0]) if name}
        self._allowed = tuple(name.lower() for name in settings.allow_hosts)
        hosts = [place[0] for place in (*settings.places, *bound) if not isinstance(place, UnixSocket)]
        self._everybody = structs.replace(settings.cors, origins="*") if settings.open_inference else None
        self._any_host = not all(map(is_loopback, hosts))
        self._good_hosts: set[str] = set()
        self._plain_hosts: set[bytes] = set()  # the same, as they are sent
        listed = settings.cors.origins
        self._origins = () if listed in ("*", "localhost") else tuple(o.strip().lower() for o in listed.split(","))
        self._own_names |= {name for origin in self._origins if (name := _origin_name(origin))}

    def adopt(self, keys: Iterable[str]) -> Callable[[Request], bool]:
        """These keys let in from now on; none lets everybody in. Return whether a request came with another one's key.

        The request that asks for the change itself has to get its answer.
        """
        before, self._keys = self._keys, [key.encode() for key in keys]
        self.adopted += 1
        gone = set(before).difference(self._keys) if self._keys else ()
        return lambda request: request.path != RELOAD and _credential(request).encode("latin-1") in gone

    @property
    def asks_for_key(self) -> bool:
        return bool(self._keys)

    def check_place(self, request: Request) -> None:
        """Refuse a Host that is not ours (DNS rebinding) and an Origin that is a foreign page. Raises Forbidden.

        A request without Host can only be HTTP/1.0, which no browser speaks. Browsers say no Origin when they GET an
        image, a script or a link; then they say whether another site asks (``Sec-Fetch-Site``), but only to HTTPS and
        to this machine. Links of other sites may lead here, but not to what changes something, and their pages may hold
        nothing from here.
        """
        first = request.first
        changes = request.method != "POST" and changes_by_get(request)
        if first.get(b"host") in self._plain_hosts and not (
            b"origin" in first or b"sec-fetch-site" in first or changes
        ):
            return  # no browser's, and a name that was found to be ours before
        cors = self._cors(request)
        host = request.header(b"host")
        if host and host not in self._good_hosts and not self._is_good(host) and not self._is_for_any_host(cors):
            raise Forbidden(
                f"the Host '{_shown(host)}' is not a name of this server; start it with --allow-host "
                f"{_shown(_host_name(host) or 'NAME')} to let this name in"
            )
        origin = request.header(b"origin")
        if origin and cors.origins != "*" and not self._may_come_from(origin, host, request):
            if _is_window(origin) and self._settings.single is None:
                raise Forbidden(
                    f"windows of applications ('{_shown(origin)}') may ask models and list them, and nothing else; "
                    f"start the server with --api-key KEY or --cors-origins '{_shown(origin)}'"
                )
            raise Forbidden(
                f"requests from web pages of '{_shown(origin)}' are not let in; start the server with "
                f"--allow-host {_shown(_origin_name(origin) or 'NAME')} or --cors-origins '{_shown(origin)}'"
            )
        if not origin and cors.origins != "*" and _is_of_another_site(request):
            raise Forbidden(
                "what belongs to pages of other sites is not let in without their Origin; use fetch with CORS, and "
                "start the server with --allow-host NAME or --cors-origins ORIGIN"
            )
        if not origin and changes and self._may_be_led(request, host):
            raise Forbidden(
                f"a page of another site must not lead a browser to {_shown(request.target)}; type the address or open "
                "it from a page of this server, on the server's own machine or over HTTPS: else browsers tell neither"
            )

    def answers_alone(self, request: Request) -> bool:
        """Return whether a window asks that may use models, but no tool or plugin of this server through them."""
        origin = request.header(b"origin") or ""
        return _is_window(origin) and not (self._keys or self._settings.cors.origins == "*" or self._is_listed(origin))

    def check_key(self, request: Request) -> None:
        """Raises Unauthorized unless the first credential is one of the keys, or no keys are configured."""
        if not self.knows(request):
            raise Unauthorized

    def knows(self, request: Request) -> bool:
        """True if the request carries a good key, or none is needed. Takes the same time for every wrong key."""
        if not self._keys or request.peer == TRUSTED:
            return True
        given = _credential(request).encode("latin-1")
        good = False
        # No early end: the time must not tell which key was nearly right, or how many there are before it.
        for key in self._keys:
            good |= hmac.compare_digest(given, key)
        return good

    def holder(self, request: Request) -> str:
        """Return a digest of the client's key; "" where no key is needed, and for the program's home without one."""
        given = _credential(request).encode("latin-1") if self._keys else b""
        return hashlib.blake2b(given, digest_size=16).hexdigest() if given in self._keys else ""

    def cors_headers(self, request: Request) -> Headers:
        """Return the headers of every answer, refusals included, in the case that llama-server's clients look for."""
        cors = self._cors(request)
        origin = request.first.get(b"origin", b"")
        if not origin and cors.origins == "localhost" and request.method != "OPTIONS":
            return []
        headers: Headers = []
        let_in = bool(origin) and self._may_come_from(origin.decode("latin-1"), request.header(b"host"), request)
        match cors.origins:
            case "*":
                headers.append((b"Access-Control-Allow-Origin", origin if cors.credentials else b"*"))
            case "localhost":
                if let_in:
                    headers.append((b"Access-Control-Allow-Origin", origin))
            case listed:
                headers.append((b"Access-Control-Allow-Origin", origin if let_in else listed.encode()))
        # Credentials are for pages that somebody has named: beside "*" any page could use those of a proxy in front.
        named = bool(headers and origin) and cors.origins != "*" and cors.credentials
        if origin:
            headers.append((b"Vary", b"Origin"))
        if request.method == "OPTIONS":
            allowed = cors.headers.encode()
            if named and allowed == b"*":  # beside credentials it would be the name of a header
                asked = request.first.get(b"access-control-request-headers", b"").split(b",")
                allowed = b", ".join(name for each in asked if _TOKEN.fullmatch(name := each.strip())) or allowed
            headers += [
                (b"Access-Control-Allow-Credentials", b"true" if cors.credentials else b"false"),
                (b"Access-Control-Allow-Methods", cors.methods.encode()),
                (b"Access-Control-Allow-Headers", allowed),
            ]
        elif named:
            headers.append((b"Access-Control-Allow-Credentials", b"true"))
        return headers

    def _cors(self, request: Request) -> Cors:
        return self._everybody if self._everybody is not None and is_inference(request) else self._settings.cors

    def _may_be_led(self, request: Request, host: str | None) -> bool:
        """Return whether another site may have led a browser here, by a link or by what its page holds.

        A browser that does not say so (an older one, or any one on plain HTTP) says from which page it comes.
        """
        site = request.header(b"sec-fetch-site")
        if site is not None:
            return site == "cross-site"
        if not (request.header(b"user-agent") or "").startswith(BROWSER):
            return False
        page = _ORIGIN.match((request.header(b"referer") or "").lower())
        return page is None or not self._may_come_from(page[0], host, request)

    def _is_good(self, host: str) -> bool:
        """Return whether a Host is a name of ours, and remember it. Raises Forbidden."""
        name = _host_name(host)
        if _is_unspecified(name):
            raise Forbidden(f"the Host '{_shown(host)}' is not an address of any machine; use 127.0.0.1")
        good = self._is_ours(name)
        if good and len(self._good_hosts) < MAX_GOOD_HOSTS:
            self._good_hosts.add(host)
            self._plain_hosts.add(host.encode("latin-1"))
        return good

    def _is_for_any_host(self, cors: Cors) -> bool:
        return cors is self._everybody and self._any_host

    def _is_ours(self, name: str) -> bool:
        return (
            _is_address(name)
            or name == "localhost"
            or name.endswith(HERE)
            or name in self._own_names
            or self._is_allowed(name)
        )

    def _may_come_from(self, origin: str, host: str | None, request: Request) -> bool:
        if self._is_listed(origin):
            return True
        if _is_window(origin):
            return self._is_for_windows(request)
        name = _origin_name(origin)
        return name is not None and (
            name in LOCAL_NAMES
            or name.endswith(".localhost")
            or (host is not None and origin.lower().partition("://")[2] == host.lower())
            or self._is_allowed(name)
        )

    def _is_listed(self, origin: str) -> bool:
        return origin.lower() in self._origins

    def _is_for_windows(self, request: Request) -> bool:
        """Windows may ask models, as Ollama lets them; llama-server's single mode does not. Where a key is needed they
        may do everything with it, because a page that somebody has saved does not know it.
        """
        return self._settings.single is None and (bool(self._keys) or is_for_windows(request))

    def _is_allowed(self, name: str) -> bool:
        return any(name == allowed or (allowed[:2] == "*." and name.endswith(allowed[1:])) for allowed in self._allowed)


def _credential(request: Request) -> str:
    """The first that is there: Authorization (Bearer, the password of Basic, or the bare key), then x-api-key."""
    given = (request.header(b"authorization") or "").strip()
    scheme, _, rest = given.partition(" ")
    match scheme.lower():
        case "bearer":
            given = rest.strip()
        case "basic" if rest:
            try:
                given = base64.b64decode(rest.strip(), validate=True).decode("latin-1").partition(":")[2]
            except (binascii.Error, ValueError):
                given = rest.strip()
        case _:
            pass
    if given:
        return given
    other = (request.header(b"x-api-key") or "").strip()
    return other.removeprefix("Bearer ").strip()


def _host_name(host: str) -> str:
    """Without port, brackets and final dot; empty for what cannot be a host."""
    found = _HOST.fullmatch(host.lower())
    return (found[1] or found[2].rstrip(".")) if found else ""


def _origin_name(origin: str) -> str | None:
    """The host of an Origin; None for ``null`` and anything else that has none."""
    found = _ORIGIN.fullmatch(origin.lower())
    return (_host_name(found[2]) or None) if found else None


def _is_of_another_site(request: Request) -> bool:
    """Return whether a page of another site asks by itself. A link that somebody follows does not count."""
    if request.header(b"sec-fetch-site") != "cross-site" or request.public:
        return False
    followed = request.header(b"sec-fetch-mode") == "navigate" and request.header(b"sec-fetch-dest") == "document"
    return not (followed and request.method in ("GET", "HEAD"))


def _is_window(origin: str) -> bool:
    return origin.lower().startswith(WINDOWS)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_unspecified(name: str) -> bool:
    """Some systems take such an address for this machine, and browsers do not count it among local ones."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_unspecified


def _shown(text: str) -> str:
    """A header value in a message: short, and nothing but printable ASCII without quotes."""
    return "".join(c if " " <= c <= "~" and c not in "'\"<>" else "?" for c in text[:100])
