"""The configured peers that have a model, as places of a request: the next one is asked where one cannot be reached."""

from __future__ import annotations

from appliance.core.answers.families import family_of
from appliance.core.exchange import RelayOptions
from appliance.core.models.model import Model
from appliance.errors import PeerFailed
from appliance.features.pool.peers import Peers
from appliance.fleet.status import Broken
from appliance.http.way.ask import Ask
from appliance.http.way.context import ModelRequest
from appliance.http.way.course import Course, NotTaken
from appliance.http.way.hooks import Placing
from appliance.http.way.outgoing import edited, renamed
from appliance.http.way.to_others import AnswersHooks, OtherServer, all_failed, for_peers
from appliance.traffic.targets import Target
from appliance.upstream.client import ConnectFailed, Headers, Outgoing, relay


class AtPeers:
    """The `Placing` of a request whose model is at peers alone."""

    def __init__(self, ask: Ask, peers: Peers) -> None:
        self._ask = ask
        self._peers = peers

    async def course(self, job: ModelRequest, target: Target, wanted: Model | None) -> Course | None:
        """See `Placing`. Raises PeerFailed for a request that goes in circles."""
        if target.model is not None:
            return None
        if wanted is not None:
            self._ask.fleet.load_soon(wanted)
        headers, path = for_peers(job.request.headers, target.peers), job.path
        if job.edits:
            path = renamed(path, self._ask.targets.sent_name(target))
        order = self._peers.order(target.peers)
        if not order:
            raise all_failed(target.peers, ())
        places = [_AtPeer(id, model, self._ask, self._peers, target, path, headers) for id, model in order]
        return Course(places, self._ask.fleet.tell, Model(id=order[0][1], source="config"), job, job.body)


class _AtPeer(OtherServer):
    """A peer, as a `Place`. Its engines are its own: nothing else goes on where it broke."""

    is_followed = False

    def __init__(
        self, name: str, model: str, ask: Ask, peers: Peers, target: Target, path: str, headers: Headers
    ) -> None:
        super().__init__(name)
        self._model = model
        self._ask = ask
        self._peers = peers
        self._target = target
        self._path = path
        self._headers = headers

    async def answer(self, course: Course) -> None:
        """See `Place`. Raises Busy."""
        job, address, body = course.job, self._peers.address(self.name), course.body
        course.begin(course.model)
        if job.edits:
            edits = self._ask.targets.peer_edits(self.name)
            body = edited(job.format, body, edits, self._target.requested, self._model)
        watch = job.record.watch
        watch.granted(None)

        def answers() -> None:
            self._peers.answered(self.name)
            job.record.metadata["peer"] = self.name

        options = RelayOptions(
            label=address.label, method=job.request.method, dialect=job.route.dialect, family=family_of(job.route.name)
        )
        outgoing = Outgoing(address, job.request.method, self._path, self._headers, body, self._ask.pool, watch)
        try:
            with self._peers.using(self.name):
                await relay(outgoing, options, job.sink, AnswersHooks(answers))
        # Only this failure proves that no byte has left. Behind any other one the peer may be at work on the request,
        # and a second peer would do the same work again.
        except ConnectFailed as error:
            self._peers.failed(self.name, error.why)
            raise NotTaken(PeerFailed(self.name, error.why)) from None

    async def broke(self, course: Course) -> Broken:
        """See `Place`."""
        return Broken()

    def seat(self, model: Model) -> None:
        """See `Place`."""


class AtBoxesLater:
    """`AtBoxes`, which few programs need: it is imported for the first request whose model a box of the pool has."""

    def __init__(self, ask: Ask, peers: Peers) -> None:
        self._ask = ask
        self._peers = peers
        self._at_boxes: Placing | None = None

    async def course(self, job: ModelRequest, target: Target, wanted: Model | None) -> Course | None:
        """See `Placing`."""
        if not target.boxes:
            return None
        if self._at_boxes is None:
            from appliance.features.pool.at_boxes import AtBoxes

            self._at_boxes = AtBoxes(self._ask, self._peers)
        return await self._at_boxes.course(job, target, wanted)
