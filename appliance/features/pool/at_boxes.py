"""A request whose model is at several boxes of a pool: which of them answers, and the next one where that cannot.

Each is a place of the request's course (`http.way.course`), which asks the next one where one cannot be reached or
declines, and replays the request, or continues the answer, where one broke its connection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import structs

from appliance.core.bodies.filters import Edits
from appliance.core.bodies.head import is_object
from appliance.core.exchange import Declined
from appliance.core.models.model import Model
from appliance.errors import NotPlaced
from appliance.features.pool.at_peers import AskedServer
from appliance.features.pool.core.placing import Affinity, BoxChoice, BoxNow, Prompt, place, prompt_of
from appliance.features.pool.hands import refuse_eviction, room_for
from appliance.features.pool.peers import Peers
from appliance.fleet.owner import Fleet
from appliance.fleet.status import Broken, state_of
from appliance.http.way.ask import Ask
from appliance.http.way.context import ModelRequest
from appliance.http.way.course import Course, NotTaken, Place
from appliance.http.way.outgoing import IDENTITY, JSON, edited, renamed
from appliance.http.way.process import Process
from appliance.http.way.to_others import for_peers
from appliance.traffic.targets import Target, Targets

Sent = Callable[[str], None]  # notes that a box gets the request
NO_EDITS = Edits(by_name={})
_BOX = b"X-Appliance-Box"
_LOADING = frozenset(("loading", "starting", "queued"))  # our words and llama-swap's for: it will answer soon


class AtBoxes:
    """The `Placing` of a request whose model other boxes of the pool have."""

    def __init__(self, ask: Ask, peers: Peers) -> None:
        self._ask, self._fleet, self._peers = ask, ask.fleet, peers
        self._affinity = Affinity()

    async def course(self, job: ModelRequest, target: Target, wanted: Model | None) -> Course:
        """Raises NotPlaced."""
        model = target.model or Model(id=target.boxes[0][1], source="config")
        prompt, there = self._prompt(job, target, model), dict(target.boxes)
        order = await self._order(target, model, prompt)
        here = Process(self._ask, job, target, target.model, wanted) if target.model is not None else None
        body = here.prepare() if here is not None else job.body
        # Where one box may follow another, each gets the identity of the model and answers with that one alone: the
        # listing that this box has of it may be a minute old.
        asked = target if len(order) > 1 else structs.replace(target, identity="")
        before = job.record.headers

        def sent(box: str) -> None:
            self._affinity.sent(box, prompt.blocks)
            job.record.metadata["box"] = box
            job.record.headers = (*before, (_BOX, box.encode("latin-1", "replace")))

        def place(box: str) -> Place:
            if here is not None and target.model is not None and box == self._peers.side.me:
                return _ThisBox(box, here, target.model, self._ask.targets, asked.identity, sent)
            return _OtherBox(sent, box, there.get(box, model.id), self._ask, self._peers, job, asked)

        return Course([place(box) for box in order], self._fleet.tell, model, job, body, self._ask.continues)

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
        names = [one.box for one in found if one.need != "fetch"]
        if side.orders is not None and (not found or found[0].need != "nothing"):
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


class _ThisBox:
    """The process of this box, as a `Place` that others may follow."""

    is_followed = True

    def __init__(self, name: str, process: Process, model: Model, targets: Targets, meant: str, sent: Sent) -> None:
        self.name = name
        self.seat, self.build, self.has_fallback = process.seat, process.build, process.has_fallback
        self.broke, self.failure = process.broke, process.failure
        self._process, self._model, self._targets = process, model, targets
        self._meant, self._sent = meant, sent

    async def answer(self, course: Course) -> None:
        self._sent(self.name)
        if self._meant and not self._targets.is_still(self._model, self._meant):
            await self._targets.look()
            raise NotTaken(NotPlaced(course.model.id, "another model has its name here meanwhile"))
        await self._process.answer(course)


class _OtherBox(AskedServer):
    """Another box, as a `Place`."""

    is_followed = True

    def __init__(
        self, sent: Sent, name: str, model: str, ask: Ask, peers: Peers, job: ModelRequest, target: Target
    ) -> None:
        super().__init__(name, model, ask, peers, job, target)
        self._sent = sent

    async def answer(self, course: Course) -> None:
        self._sent(self.name)
        job, target, body, path = self._job, self._target, course.body, self._job.path
        # The model's name is written into the body only where it differs: that reads the body anew, a millisecond.
        if job.edits and (body is not job.body or job.record.head.model != self._model):
            body = edited(job.format, body, NO_EDITS, target.requested, self._model)
            path = renamed(path, self._model)
        headers = for_peers(job.request.headers, target.boxes)
        if target.identity:
            headers.append((IDENTITY, target.identity.encode()))
        declines = not course.is_last or course.splicer is not None
        try:
            with self._peers.get(self.name).attended():
                await self._relay(course, path, headers, body, declines=declines)
        except Declined as error:
            self._peers.seen(self.name, None)
            raise NotTaken(NotPlaced(course.model.id, str(error))) from None

    async def broke(self, course: Course) -> Broken:
        self._peers.failed(self.name, "it broke the connection of a request")  # a look in a second tells more
        return Broken(gone=True)

    def seat(self, model: Model) -> str:
        return self.name


def admit(fleet: Fleet, target: Target) -> None:
    """Let a request of another box in. Raises NotPlaced where its model is not loaded and its load would evict.

    The other box has chosen by what it knew. Only this one knows its memory, and nobody but its own users, or an order
    of the pool, may unload a model here.
    """
    model = target.model
    if model is None or target.asks or model.fetch:
        raise NotPlaced(target.requested, "the box that was asked does not have it")
    refuse_eviction(fleet, model)
