"""A request whose model is at several boxes of a pool: which of them answers, and the next one where that cannot.

A box that cannot be reached or declines has not begun, so the next one is asked. One that broke its connection is like
an engine that died: the request's course (`http.way.ask`) replays it, or continues the answer, on the next box.
"""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from appliance.core.answers.families import family_of
from appliance.core.bodies.filters import Edits
from appliance.core.bodies.head import is_object
from appliance.core.exchange import Declined, Exchange, RelayOptions
from appliance.core.models.model import Model
from appliance.core.pool.placing import Affinity, BoxChoice, BoxNow, Need, Prompt, place, prompt_of
from appliance.errors import ModelFailedToStart, NotPlaced, PeerFailed, UpstreamFailed, WillNotFit
from appliance.fleet.hold import RestoreFailed
from appliance.fleet.owner import Fleet
from appliance.fleet.status import Broken, state_of
from appliance.http.way.ask import Ask, Course
from appliance.http.way.at_peers import for_peers
from appliance.http.way.context import ModelRequest
from appliance.http.way.outgoing import IDENTITY, JSON, edited, renamed
from appliance.peers.owner import Peers
from appliance.pool.hands import refuse_eviction, room_for
from appliance.traffic.targets import Target, Targets
from appliance.upstream.address import Address
from appliance.upstream.client import ConnectFailed, Outgoing, relay

NO_EDITS = Edits(by_name={})
_BOX = b"X-Appliance-Box"
_LOADING = frozenset(("loading", "starting", "queued"))
"""The states, in the words of ours and llama-swap's, in which a model will answer soon."""


class AskMembers:
    """Asks this box's models and the other boxes of its pool."""

    def __init__(self, ask: Ask, peers: Peers, targets: Targets) -> None:
        self._ask = ask
        self._targets = targets
        self._fleet = ask.fleet
        self._peers = peers
        self._affinity = Affinity()

    async def ask(self, job: ModelRequest, target: Target, *, wanted: Model | None = None) -> None:
        """Have the best box answer, or the next one. Raises as `Ask.ask`, and PeerFailed for another box."""
        model = target.model or Model(id=target.boxes[0][1], source="config")
        prompt, there = self._prompt(job, target, model), dict(target.boxes)
        boxes = _Boxes(self._fleet, self._peers, await self._order(target, model, prompt))
        # Where one box may follow another, each gets the identity of the model and answers with that one alone: the
        # listing that this box has of it may be a minute old.
        meant = target.identity if boxes.left else ""
        here = (*self._ask.prepared(job, target, target.model), target.model) if target.model is not None else None
        course = Course(boxes, model, job, here[1] if here is not None else job.body)
        before = job.record.headers

        async def attempt() -> None:
            while True:
                box = boxes.now
                self._affinity.sent(box, prompt.blocks)
                job.record.metadata["box"] = box
                job.record.headers = (*before, (_BOX, box.encode("latin-1", "replace")))
                try:
                    if here is not None and box == boxes.me:
                        if meant and not self._targets.is_still(here[2], meant):
                            await self._targets.look()
                            raise Declined("another model has its name here meanwhile")
                        await self._ask.attempt(job, here[0], course, wanted)
                    else:
                        there_is = there.get(box, model.id)
                        await self._relay(job, target, course, box, there_is, meant, last=not boxes.left)
                    return
                except ConnectFailed as error:
                    if box == boxes.me:
                        raise
                    self._peers.failed(box, error.why)
                    if not boxes.left:
                        raise
                except (Declined, ModelFailedToStart, WillNotFit) as error:
                    self._peers.doubted(box)
                    if not boxes.left and isinstance(error, Declined):
                        raise NotPlaced(model.id, str(error)) from None
                    if not boxes.left:
                        raise
                boxes.turn()

        failure: UpstreamFailed | None = None
        try:
            while failure is None or await course.fall(failure):
                try:
                    await attempt()
                    return
                except RestoreFailed:
                    await self._ask.wait_gone(course)
                except UpstreamFailed as error:
                    failure = error
        except UpstreamFailed as error:
            asked = job.record.metadata["box"]
            raise error if asked == boxes.me else PeerFailed(asked, error.why) from None

    def _prompt(self, job: ModelRequest, target: Target, model: Model) -> Prompt:
        """The prompt, where several boxes can answer now: to read it takes half a millisecond for 400 kB."""
        ready = [one for one in self._known(target, model, asks=False) if one.up and one.state in ("loaded", "loading")]
        if len(ready) < 2 or not (job.route.slot and job.format == JSON and is_object(job.body)):
            return Prompt()
        return prompt_of(model.id, job.body)

    async def _order(self, target: Target, model: Model, prompt: Prompt) -> list[str]:
        """The boxes to ask, best first. Where orders are given, one that has to load the model gets one."""
        side = self._peers.side

        def decide() -> list[BoxChoice]:
            known = self._known(target, model)
            return place(model.id, prompt, known, partial(self._affinity.shared, prefix=prompt.blocks))

        found = decide()
        names = [one.box for one in found if one.need is not Need.FETCH]
        if side.orders is not None and (not found or found[0].need is not Need.NOTHING):
            told = await side.orders.place(model.id, lambda: next(iter(decide()), None))
            if told is not None and any(told == one.box for one in found):
                names = [told, *(name for name in names if name != told)]
        if not names:
            raise NotPlaced(model.id, "no box that has it is in the pool now")
        return names if target.identity else names[:1]  # nobody knows a second box that has the same model

    def _known(self, target: Target, model: Model, *, asks: bool = True) -> list[BoxNow]:
        """Every box that has the model, or may fetch it: one that has another model of its name may not. A name that
        says which box is meant leaves no choice.
        """
        side, there = self._peers.side, dict(target.boxes)
        fetches = side.orders is not None and (target.model is not None or target.requested == model.id)
        found: list[BoxNow] = []
        for peer in self._peers.members():
            if peer.id not in there and (not fetches or model.id in peer.models):
                continue
            state = peer.state_of(there.get(peer.id, model.id))
            ready = "loaded" if state.loaded else "loading" if state.state in _LOADING else "stored"
            found.append(
                BoxNow(
                    box=peer.id,
                    state=ready if peer.id in there else "absent",
                    fetchable=fetches,
                    up=peer.up is not False,
                    drained=peer.id in side.drained,
                    queue=peer.load,
                    speed=side.speeds.get(peer.id, 0.0),
                )
            )
        if target.model is not None:
            is_ready = any(one.state == "loaded" and one.up for one in found)
            found.append(self._here(target.model, asks=asks and not is_ready))
        return found

    def _here(self, model: Model, *, asks: bool) -> BoxNow:
        """This box. Whether there is room takes time to find out, and does not matter where the model is loaded."""
        side = self._peers.side
        state = state_of(self._fleet.known(model.id))
        loaded = state in ("loaded", "sleeping")
        return BoxNow(
            box=side.me,
            state="loaded" if loaded else "loading" if state in _LOADING else "stored",
            room=room_for(self._fleet, model) if asks and state == "unloaded" else "free",
            drained=side.me in side.drained,
            queue=sum(one.leases + one.waiting for one in self._fleet.status()),
            speed=side.speeds.get(side.me, 0.0),
        )

    async def _relay(
        self, job: ModelRequest, target: Target, course: Course, box: str, model: str, meant: str, *, last: bool
    ) -> None:
        """Ask another box. Raises ConnectFailed and Declined where it has not begun, UpstreamFailed, PeerFailed."""
        request, address = job.request, self._peers.address(box)
        course.begin(_There(course.model), address)
        body, path = course.body, job.path
        # The model's name is written into the body only where it differs: that reads the body anew, a millisecond.
        if job.edits and (body is not job.body or job.record.head.model != model):
            body = edited(job.format, body, NO_EDITS, target.requested, model)
            path = renamed(path, model)
        headers = for_peers(request.headers, target.boxes)
        if meant:
            headers.append((IDENTITY, meant.encode()))
        watch = job.record.watch
        watch.granted(None)
        options = RelayOptions(
            label=address.label,
            method=request.method,
            dialect=job.route.dialect,
            family=family_of(job.route.name),
            headers=course.headers,
            trail=course.trail,
            splicer=course.splicer,
            declines=not last or course.splicer is not None,
        )
        outgoing = Outgoing(address, request.method, path, headers, body, self._ask.pool, watch)
        with self._peers.attended(box):
            await relay(outgoing, options, job.sink, _BoxHooks(self._peers, box))


class _Boxes:
    """The boxes that one request may go to, as the seats of its course: behind the engines of this one."""

    def __init__(self, fleet: Fleet, peers: Peers, order: list[str]) -> None:
        self.tell = fleet.tell
        self.me = peers.side.me
        self.now = order[0]
        self.left = order[1:]
        self._fleet = fleet
        self._peers = peers

    def turn(self) -> str:
        """It is the next box's turn."""
        self.now = self.left.pop(0)
        return self.now

    def seat_of(self, model_id: str) -> str | None:
        return self._fleet.seat_of(model_id) if self.now == self.me else self.now

    def engine_of(self, model_id: str) -> str | None:
        return self._fleet.engine_of(model_id) if self.now == self.me else None

    def has_fallback(self, model_id: str) -> bool:
        return bool(self.left) or (self.now == self.me and self._fleet.has_fallback(model_id))

    async def broke(self, model_id: str, address: Address, request: int = 0) -> Broken:
        """See `Fleet.broke`. A process that lives, and one that was stopped on purpose, are followed by nobody."""
        broken = Broken()
        if self.now == self.me:
            broken = await self._fleet.broke(model_id, address, request)
            if broken.error is not None or broken.following is not None or broken.ended is None:
                return broken
        else:
            self._peers.failed(self.now, "it broke the connection of a request")  # a look in a second tells more
        return Broken(broken.ended, self.turn()) if self.left else broken


class _There(Struct, frozen=True):
    """Another box that a request is asked of, as `http.way.ask.Held`."""

    model: Model
    request: int = 0


class _BoxHooks:
    def __init__(self, peers: Peers, box: str) -> None:
        self._peers = peers
        self._box = box

    def began(self, exchange: Exchange) -> None:
        pass

    def answered(self) -> None:
        pass

    async def answering(self) -> None:
        self._peers.answered(self._box)


def admit(fleet: Fleet, target: Target) -> None:
    """Let a request of another box in. Raises NotPlaced where its model is not loaded and its load would evict.

    The other box has chosen by what it knew. Only this one knows its memory, and nobody but its own users, or an order
    of the pool, may unload a model here.
    """
    model = target.model
    if model is None or target.asks or model.fetch:
        raise NotPlaced(target.requested, "the box that was asked does not have it")
    refuse_eviction(fleet, model)
