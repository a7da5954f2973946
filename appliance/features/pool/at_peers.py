"""A request whose model other servers have. Of configured peers the next one is asked where one cannot be reached."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from appliance.core.exchange import Exchange
from appliance.core.models.model import Model
from appliance.errors import PeerFailed, UpstreamFailed
from appliance.features.pool.peers import Peers
from appliance.fleet.status import Broken
from appliance.http.way.ask import Ask
from appliance.http.way.context import ModelRequest
from appliance.http.way.course import Course, NotTaken
from appliance.http.way.hooks import Placing
from appliance.http.way.outgoing import edited, renamed
from appliance.http.way.to_others import all_failed, for_peers
from appliance.traffic.targets import Target
from appliance.upstream.client import ConnectFailed, Headers, Outgoing, relay


class AtOthers:
    """The `Placing` of a request whose model boxes of the pool have, too, or peers alone."""

    def __init__(self, ask: Ask, peers: Peers, make_at_boxes: Callable[[Ask, Peers], Placing]) -> None:
        """``make_at_boxes`` imports what few programs need, for the first request that boxes can answer."""
        self._ask, self._peers, self._make_at_boxes = ask, peers, make_at_boxes
        self._at_boxes: Placing | None = None

    async def course(self, job: ModelRequest, target: Target, wanted: Model | None) -> Course | None:
        """Raises NotPlaced, and PeerFailed where no peer is left."""
        if target.boxes:
            self._at_boxes = self._at_boxes or self._make_at_boxes(self._ask, self._peers)
            return await self._at_boxes.course(job, target, wanted)
        if target.model is not None:
            return None
        if wanted is not None:
            self._ask.fleet.load_soon(wanted)
        order = self._peers.order(target.peers)
        if not order:
            raise all_failed(target.peers, ())
        places = [_AtPeer(id, model, self._ask, self._peers, job, target) for id, model in order]
        model = Model(id=order[0][1], source="config")
        return Course(places, self._ask.fleet.tell, model, job, job.body, self._ask.continues)


class AskedServer:
    """Another server that is asked for ``model``: a `Place` whose engines are its own, and the hooks of its relay."""

    def __init__(self, name: str, model: str, ask: Ask, peers: Peers, job: ModelRequest, target: Target) -> None:
        self.name = name
        self._model, self._ask, self._peers, self._job, self._target = model, ask, peers, job, target

    def build(self, model: Model) -> str:
        return ""

    def has_fallback(self, model: Model) -> bool:
        return False

    def failure(self, error: UpstreamFailed) -> PeerFailed:
        return PeerFailed(self.name, error.why)

    def began(self, exchange: Exchange) -> None: ...

    def answered(self) -> None: ...

    async def answering(self) -> None:
        self._peers.answered(self.name)

    async def _relay(self, course: Course, path: str, headers: Headers, body: bytes, *, declines: bool) -> None:
        """Send the request, and have the client get the answer.

        Raises NotTaken where the server cannot be reached, else as `relay`.
        """
        job, address = self._job, self._peers.address(self.name)
        course.begin(course.model)
        watch = job.record.watch
        watch.granted(None)
        options = structs.replace(course.relay_options(address.label), declines=declines)
        outgoing = Outgoing(address, job.request.method, path, headers, body, self._ask.pool, watch)
        try:
            await relay(outgoing, options, job.sink, self)
        # Only this failure proves that no byte has left. Behind any other one the server may be at work on the request,
        # and a second one would do the same work again.
        except ConnectFailed as error:
            self._peers.failed(self.name, error.why)
            raise NotTaken(PeerFailed(self.name, error.why)) from None


class _AtPeer(AskedServer):
    """A configured peer. Its engines are its own: nothing else goes on where it broke."""

    is_followed = False

    async def answer(self, course: Course) -> None:
        """Raises Busy, and PeerFailed for a request that goes in circles."""
        job, body, path = self._job, course.body, self._job.path
        headers = for_peers(job.request.headers, self._target.peers)
        if job.edits:
            edits = self._ask.targets.peer_edits(self.name)
            body = edited(job.format, body, edits, self._target.requested, self._model)
            path = renamed(path, self._ask.targets.sent_name(self._target))
        with self._peers.using(self.name):
            await self._relay(course, path, headers, body, declines=False)

    async def answering(self) -> None:
        await super().answering()
        self._job.record.metadata["peer"] = self.name

    async def broke(self, course: Course) -> Broken:
        return Broken()

    def seat(self, model: Model) -> None: ...
