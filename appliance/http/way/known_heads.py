"""The heads of requests whose meaning is remembered: nearly every request is like one before it, but for its length.

The meaning of such a head is learnt once, by the functions that every request goes through. Each of their inputs is
part of the key of a known head, or clears all known heads when it changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from appliance.core.answers.families import family_of
from appliance.core.bodies.head import RequestHead
from appliance.core.bodies.http_request import HttpHead, RequestError
from appliance.core.bodies.http_request import read_request as read_head
from appliance.core.exchange import RelayOptions
from appliance.errors import ApplianceError
from appliance.http.way.course import FALLBACK
from appliance.http.way.edge import Edge
from appliance.http.way.hooks import EngineTranslate, Hold, Turn
from appliance.http.way.outgoing import IDENTITY
from appliance.http.way.pipeline import KEEP_ALIVE, MEANWHILE, Pipeline
from appliance.http.way.routes import Route, is_passed
from appliance.traffic.request import Headers, Request, read_request
from appliance.traffic.targets import Target
from appliance.upstream.address import Address

MAX_KNOWN = 512
"""Heads whose meaning is remembered; one more takes the place of the oldest."""
_MEANINGFUL = (FALLBACK, KEEP_ALIVE, MEANWHILE, b"content-encoding")
"""Headers that ask this program for something that is not plain."""
_JSON = b"application/json"


class KnownHead:
    """The meaning of a head, and the head that the model's process gets for it."""

    __slots__ = (
        "address",
        "build",
        "cors",
        "head",
        "holder",
        "identity",
        "options",
        "path",
        "request",
        "route",
        "sent",
        "target",
        "translates",
        "turns",
        "values",
        "varying",
    )

    def __init__(
        self,
        head: HttpHead,
        request: Request,
        route: Route,
        cors: Headers,
        holder: str,
        varying: tuple[bytes, ...],
        turns: Iterable[Turn],
    ) -> None:
        self.head = head
        self.holder = holder
        self.request = request
        self.route = route
        self.cors = cors
        self.path = request.target.removeprefix(route.strip)
        """The path that the model's process is asked for."""
        self.identity = request.header(IDENTITY)
        self.turns = [each for each in turns if each.is_for(route)]
        names = [name.lower() for name, _ in head.headers]
        self.varying = [(names.index(name), name) for name in varying]
        """The headers whose values are not a part of what the head is remembered by: places and names."""
        self.values = [request.first[name] for _, name in self.varying]
        self.target: Target | None = None
        self.address: Address | None = None
        self.sent: tuple[bytes, bytes] | None = None
        """The head for the process of ``target`` at ``address``, in two parts: the body's length goes between them.
        None where such requests are not plain.
        """
        self.build = ""
        """The id of the process's engine."""
        self.translates: Sequence[EngineTranslate] = ()
        """The hooks that may translate for this engine on this route."""
        self.options = RelayOptions(label="", dialect=route.dialect, family=family_of(route.name))

    def is_plain(self, head: RequestHead, body: bytes) -> bool:
        """Return whether a request with this body is for the model alone, and its engine takes it as it is."""
        for turn in self.turns:
            if turn.wants(self.route, head, body):
                return False
        for each in self.translates:  # noqa: SIM110  every request asks, and a generator costs as much as all of them
            if each.wants(self.route.name, body, self.build):
                return False
        return True

    def request_with(self, values: list[bytes]) -> Request:
        """The request with these values in the headers that vary."""
        like = self.request
        if values == self.values:
            return like
        fields, first = list(like.headers), dict(like.first)
        for (at, name), value in zip(self.varying, values, strict=True):
            fields[at] = fields[at][0], value
            first[name] = value
        return Request(
            method=like.method,
            path=like.path,
            target=like.target,
            query=like.query,
            headers=fields,
            http_version=like.http_version,
            client=like.client,
            peer=like.peer,
            first=first,
        )


class KnownHeads:
    """The heads that one server knows."""

    def __init__(self, edge: Edge, pipeline: Pipeline, hold: Hold | None) -> None:
        self._settings = edge.settings
        self._guard = edge.guard
        self._pipeline = pipeline
        self._hold = hold
        self._held = _value_of(hold.header, hold.most) if hold is not None else None
        self._known: dict[tuple[str, bytes, bytes] | tuple[str, bytes, bytes, bytes], KnownHead] = {}
        self._rules = edge.guard.adopted

    def know(self, peer: str, raw: bytes, length: re.Match[bytes]) -> tuple[re.Match[bytes] | None, KnownHead | None]:
        """Return the name under which a request with this head is held, and the meaning of the head.

        It is remembered by its bytes, but for the values that differ each time. ``length`` is the body's.
        """
        held = self._held.search(raw) if self._held is not None else None
        # Whether a head is let in depends on the rules and on the client's address. The address is a part of the key;
        # new rules clear everything. A head that was learnt under old keys would let its sender in for ever.
        if self._rules != self._guard.adopted:
            self._rules = self._guard.adopted
            self._known.clear()
        start, end = length.span(1)
        if held is None:
            key = peer, raw[:start], raw[end:]
        else:
            first, last = held.span(1)
            cut = (start, end, first, last) if start < first else (first, last, start, end)
            key = peer, raw[: cut[0]], raw[cut[1] : cut[2]], raw[cut[3] :]
        known = self._known.get(key)
        if known is None and (known := self._learn(peer, raw, kept=held is not None)) is not None:
            if len(self._known) >= MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key] = known
        return held, known

    def _learn(self, peer: str, raw: bytes, *, kept: bool) -> KnownHead | None:
        """The meaning of the head; None where requests with it are not plain, or not let in."""
        try:
            head = read_head(raw)
            request = read_request(head, self._settings.api_prefix, peer)
            route = self._pipeline.route(request)
            if head.method != "POST" or not head.length or head.upgrade or head.expects or request.query:
                return None
            if route is None or not route.loads or is_passed(request.path) or self._pipeline.translate_of(request):
                return None
            if request.path == self._settings.health:
                return None
            first = request.first
            header = self._hold.header if self._hold is not None else b""
            if (
                (header in first) != kept
                or any(name in first for name in _MEANINGFUL)
                or first.get(b"content-type", _JSON) != _JSON
            ):
                return None
            self._guard.check_place(request)
            if not request.public:
                self._guard.check_key(request)
        except (RequestError, ApplianceError):
            return None
        varying = (b"content-length", header) if kept else (b"content-length",)
        cors, holder = self._guard.cors_headers(request), self._guard.holder(request)
        return KnownHead(head, request, route, cors, holder, varying, self._pipeline.hooks.turns)


def _value_of(header: bytes, most: int) -> re.Pattern[bytes]:
    """Return what finds the value of a header in a head: in small letters, or with the first of each word large."""
    words = b"-".join(b"[%b%b]%b" % (word[:1].upper(), word[:1], word[1:]) for word in header.split(b"-"))
    return re.compile(rb"\r\n%b: ?([!-~]{1,%d})\r\n" % (words, most))
