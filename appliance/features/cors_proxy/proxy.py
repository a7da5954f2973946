"""``/cors-proxy?url=...``: the program asks a server in the place of a web page that this server would not answer.

Web pages use it for MCP servers. Off unless switched on. It passes on only the headers that are named to it, reaches
only what `Reach` allows, connects to the very address it has checked (so that a name cannot change its meaning in
between), and looks at every redirection as at a new request. Source: llama-server README, ``--ui-mcp-proxy``.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import trio
from msgspec import Struct

from appliance.core.bodies.http_message import HOP_BY_HOP
from appliance.core.headers import Headers, field, fields, without
from appliance.errors import BadRequest, Busy, Forbidden, RouteNotFound, TargetFailed, UpstreamFailed, UsageError
from appliance.features.cors_proxy import rules
from appliance.http import errors
from appliance.http.kernel import Kernel
from appliance.http.way.context import RequestContext
from appliance.http.way.explaining import refuse
from appliance.traffic.request import Sink
from appliance.upstream.client import Address, ConnectFailed, HttpAnswer, HttpCall

PREFIX = b"x-llama-server-proxy-header-"
"""Before the name of each request header that is to be passed on; all others stay here."""
METHODS = ("GET", "HEAD", "POST")
MAX_REDIRECTS = 5
MAX_ADDRESSES = 4  # addresses of one name that are tried
MAX_ANSWER = 256 << 20
MAX_AT_ONCE = 64
RESOLVE_TIME = 10.0
CONNECT_TIME = 10.0
SILENCE = 600.0  # seconds until the answer begins, and between two pieces of it; llama-server's

_NEVER_SENT = HOP_BY_HOP | {b"", b"host", b"content-length", b"expect"}
"""Headers that frame the request; this side sets them, even if a page names them."""
_NEVER_PASSED_ON = frozenset(
    b"alt-svc clear-site-data content-security-policy date nel refresh report-to reporting-endpoints server "
    b"service-worker-allowed set-cookie strict-transport-security x-accel-buffering x-content-type-options".split()
)
"""HttpAnswer headers by which a stranger would speak for this server."""
_HARMLESS = (
    (b"Content-Security-Policy", b"sandbox; default-src 'none'"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"X-Accel-Buffering", b"no"),
)
"""Should a browser take the answer for a page of this server, nothing in it runs."""


class _Asked(Struct, frozen=True):
    """One request to another server."""

    method: str
    target: rules.ProxyTarget
    headers: Headers
    body: bytes
    led: bool = False  # a server that is not this machine has led here


class CorsProxy:
    """Answers the route. Raises UsageError for an entry of ``cors_proxy_allow`` that cannot be used."""

    def __init__(self, kernel: Kernel) -> None:
        self._enabled = kernel.settings.cors_proxy
        self._under_way = 0
        try:
            self._reach = rules.Reach(kernel.settings.cors_proxy_allow)
        except rules.BadTarget as error:
            raise UsageError(f"--cors-proxy-allow: the proxy cannot be allowed to reach what {error}") from None

    async def answer(self, context: RequestContext) -> None:
        """The key and where the request comes from are checked already. Raises ApplianceError and ClientLeft."""
        request, sink = context.request, context.sink
        if not self._enabled:
            await refuse(sink, errors.disabled("--ui-mcp-proxy"))
            return
        if request.method not in METHODS:
            raise RouteNotFound(request.method, request.path)
        # An image, script or link on a foreign page sends no Origin that the guard could check.
        site, mode = request.header(b"sec-fetch-site"), request.header(b"sec-fetch-mode")
        if mode == "navigate" or (site in ("cross-site", "same-site") and request.header(b"origin") is None):
            raise Forbidden("the proxy for web pages answers scripts (fetch), and neither links nor images")
        target = _target(request.query.get("url"))
        headers = forwarded(request.headers)
        if self._under_way >= MAX_AT_ONCE:
            raise Busy(f"the proxy for web pages has {MAX_AT_ONCE} requests under way")
        self._under_way += 1
        try:
            body = await context.read_body() if request.method == "POST" else b""
            context.stay()
            await self._follow(_Asked(request.method, target, headers, body), sink)
        finally:
            self._under_way -= 1

    async def _follow(self, asked: _Asked, sink: Sink) -> None:
        """Ask, and ask again where the answer leads elsewhere; the last answer goes to the sink."""
        for _ in range(MAX_REDIRECTS + 1):
            if (elsewhere := await self._ask(asked, sink)) is None:
                return
            asked = _next(asked, *elsewhere)
        raise TargetFailed(asked.target.host, f"it redirects more than {MAX_REDIRECTS} times")

    async def _ask(self, asked: _Asked, sink: Sink) -> tuple[int, str] | None:
        """Status and location of a redirection; None when the answer went to the sink."""
        with trio.move_on_after(SILENCE) as patience:
            async with self._reached(asked) as response:
                location = field(response.headers, b"location") if response.status in rules.REDIRECTS else None
                if location is not None:
                    return response.status, location.decode("latin-1")
                await _relay(response, sink, asked.target, patience)
                return None
        if sink.status is not None:
            sink.abort()
        raise TargetFailed(asked.target.host, f"it said nothing for {SILENCE:g} s")

    @asynccontextmanager
    async def _reached(self, asked: _Asked) -> AsyncGenerator[HttpAnswer]:
        """The answer of the first address of the target that takes the request."""
        target = asked.target
        refused: ConnectFailed | None = None
        for resolved in await self._addresses(target, led=asked.led):
            address = Address(
                target.host, target.port, None, target.host, tls=target.scheme == "https", resolved=resolved,
                connect_timeout=CONNECT_TIME, tls_timeout=CONNECT_TIME,
            )  # fmt: skip
            try:
                async with HttpCall(address, asked.method, target.path, asked.headers, asked.body) as response:
                    yield response
                    return
            except ConnectFailed as error:
                refused = refused or error
            except UpstreamFailed as error:
                raise TargetFailed(target.host, _cause(error)) from None
        raise TargetFailed(target.host, _cause(refused) if refused is not None else "its name has no address")

    async def _addresses(self, target: rules.ProxyTarget, *, led: bool) -> Sequence[str]:
        """Every address that the name means now, if all of them may be reached. Raises Forbidden and TargetFailed."""
        found: list[str] = []
        with trio.move_on_after(RESOLVE_TIME):
            try:
                infos = await trio.socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not a name"
                raise TargetFailed(target.host, f"its host name is not known: {why}") from None
            found = list(dict.fromkeys(str(info[4][0]) for info in infos))
        if not found:
            raise TargetFailed(target.host, f"its host name was not resolved within {RESOLVE_TIME:g} s")
        if not self._reach.allows(target.host, found, led=led):
            raise Forbidden(
                f"the proxy for web pages does not reach '{target.host}', which is this machine or in a local network; "
                "the server's administrator can allow it"
            )
        return found[:MAX_ADDRESSES]


def forwarded(headers: Headers) -> Headers:
    """The request headers that are meant for the other server, under their own names."""
    found = [(name[len(PREFIX) :], value) for name, value in headers if name.lower().startswith(PREFIX)]
    return without(found, _NEVER_SENT)


def _target(url: str | None) -> rules.ProxyTarget:
    if not url:
        raise BadRequest("the request names no address; add ?url=https://...", param="url")
    try:
        return rules.parse_target(url)
    except rules.BadTarget as error:
        raise BadRequest(f"the address in 'url' {error}", param="url") from None


def _next(asked: _Asked, status: int, location: str) -> _Asked:
    """Return a browser's next request (https://fetch.spec.whatwg.org), without headers meant for the first server."""
    method, headers, body = asked.method, asked.headers, asked.body
    try:
        target = rules.redirected(asked.target, location)
    except rules.BadTarget as error:
        raise TargetFailed(asked.target.host, f"it redirects to what {error}") from None
    if status == 303 or (status in (301, 302) and method == "POST"):
        method, body = "HEAD" if method == "HEAD" else "GET", b""
        headers = without(headers, (), (b"content-",))
    if target.origin != asked.target.origin:
        headers = [(b"Accept", value) for value in fields(headers, b"accept")]
        body = b""
    led = asked.led or (target.origin != asked.target.origin and not rules.names_this_machine(asked.target.host))
    return _Asked(method, target, headers, body, led)


def _cause(error: UpstreamFailed) -> str:
    """Without the hint at settings of a peer, which this server is not."""
    return error.why.partition("; see timeouts.")[0]


async def _relay(response: HttpAnswer, sink: Sink, target: rules.ProxyTarget, patience: trio.CancelScope) -> None:
    """Pass the answer on as it comes. If it breaks off, so does the client's connection: it must not look whole."""
    headers = without(response.headers, _NEVER_PASSED_ON, (b"access-control-",))
    sink.start(response.status, [*headers, *_HARMLESS])
    size = 0
    try:
        while data := await response.receive():
            size += len(data)
            if size > MAX_ANSWER:
                raise TargetFailed(target.host, f"its answer is longer than {MAX_ANSWER} bytes")
            patience.deadline = trio.current_time() + SILENCE
            await sink.write(data)
    except (UpstreamFailed, TargetFailed):
        sink.abort()
        raise
    await sink.end()
