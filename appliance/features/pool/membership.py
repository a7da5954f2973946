"""One pool while this box is in it: its file, its door, the other boxes, and every change of the roster.

A change is made in two steps. First all boxes agree: `Membership._agree` makes the wanted roster the next one, or
says which one somebody else made before it, and the change is made anew on top of that. Then the roster is pushed over
the doors, and a box that was away asks others for it. So no box has to know more than its own roster, and the higher
generation wins everywhere.

The order matters where a step can be the last one before a crash: the file is written before anybody is answered.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import trio
from msgspec.structs import replace

from appliance.core.findings import Trouble
from appliance.core.models.holders import Holder, told_apart
from appliance.errors import ApplianceError, BadRequest, BoxFailed, Busy, Conflict, StoreFailed
from appliance.features.pool.core.join_code import TOKEN_SIZE, Codes, JoinCode
from appliance.features.pool.core.keys import SECRET_SIZE, BoxCertificate
from appliance.features.pool.core.lease import Fences
from appliance.features.pool.core.remarks import apart_problems, keyless_problems, names_apart
from appliance.features.pool.core.roster import Box, Roster, bus_plan, most_changes, outvotes
from appliance.features.pool.core.shapes import ModelState, PoolBox, PoolBus, PoolRotation, PoolState
from appliance.features.pool.doors import PROTOCOL, ROSTER, SECRET, Dialled, JoinRequest, NewSecret, OtherKeys, Ways
from appliance.features.pool.hands import OwnHands
from appliance.features.pool.on_bus import BUS, OnBus
from appliance.features.pool.orders import BoxOrders
from appliance.features.pool.peers import Peers, PoolSide
from appliance.features.pool.pool_file import KeptPool, PoolHere
from appliance.features.pool.remote_peer import PeerStatus
from appliance.http.kernel import Kernel
from appliance.trio_parts import AGAIN, wait_any
from appliance.upstream.address import Address

PULL_EVERY = 3.0  # seconds between two questions for the roster while there is no bus, each to another box
TRIES = 10  # changes of others that may come before one of this box, one after the other

BUS_FOLDER = "pool-bus"  # the folder of the bus's server, beside the pool's file

Renew = Callable[[BoxCertificate, str], None]  # `door.BoxDoor.renew`

log = logging.getLogger(__name__)


class Membership(PoolHere):
    """Made, and run, by `owner.BoxPool`."""

    def __init__(self, path: Path, kept: KeptPool, kernel: Kernel, peers: Peers, hands: OwnHands) -> None:
        super().__init__(path, kept)
        self.codes = Codes()
        self.door_closed = trio.Event()  # the door answers no request any more
        self.door_closed.set()
        self.ended = trio.Event()  # nothing is left of it, not even the file
        self.problem: Trouble | None = None
        self._peers, self._catalog = peers, kernel.owners.catalog
        self._listen = kernel.edge.url
        self._tell_drained = kernel.traffic.lifetime.drain
        self._fences = Fences(kept.epochs, lambda: most_changes(time.time()))
        self.on_bus = OnBus(self, kernel, peers, path.with_name(BUS_FOLDER))
        self._orders = BoxOrders(kept.roster.pool, self.me, self._fences, hands, self._keep_epochs)
        self._dialled: dict[str, Dialled] = {}  # the connections of boxes that dial out, from their first one on
        self.ways = Ways(self.keys, self._dialled)  # the ways to the doors of the others
        self._renew_door: Renew | None = None
        self._turn = trio.Lock()
        self._pulled = 0
        self._adopted: tuple[Mapping[str, Address], PoolSide] | None = None
        self._strangers: set[str] = set()  # boxes that refuse this box's keys, which are those of now
        self._apart: set[str] = set()  # names that mean several models, as far as the log says so

    async def run(self, renew: Renew, serve: Callable[[trio.Event], Awaitable[None]]) -> None:
        """Serve the door and follow the pool, until this box is not in it any more, or cancelled.

        ``serve`` answers until its event is set, and sets that when the program begins to end.
        """
        self._renew_door, shutdown = renew, trio.Event()
        await self._show_certificate()

        async def answer() -> None:
            self.door_closed = trio.Event()
            await serve(shutdown)
            self.door_closed.set()

        async def say_stopping() -> None:
            await shutdown.wait()
            self.on_bus.stop()

        try:
            async with trio.open_nursery() as serving:
                serving.start_soon(answer)
                serving.start_soon(say_stopping)
                await wait_any(self.over.wait, self._follow, self._push_changes, partial(self.on_bus.run, self._orders))
                shutdown.set()
        finally:
            self._renew_door = None
            self._peers.adopt_members({})
            self._tell_drained(False)

    async def _show_certificate(self) -> None:
        """A full disk does not end the program: the door opens, or knows new keys, when there is room."""
        while self._renew_door is not None and not self.over.is_set():
            try:
                self._renew_door(self.own_certificate(), self.keys.door_key)
                return
            except StoreFailed as error:
                log.warning("other boxes cannot use the door of this one: %s", error)
                with trio.move_on_after(AGAIN):
                    await self.over.wait()

    async def _follow(self) -> None:
        """Find boxes that are out of reach, and ask one of the others after the other for the roster."""
        while True:
            self._adopt()
            down = {peer.id for peer in self._peers.members() if not peer.up}
            async with trio.open_nursery() as nursery:
                for box in self.others:
                    if box.name in down and box.can_be_dialled:
                        nursery.start_soon(self._find, box)
            self._adopt()
            self._say_apart()
            if not self.on_bus.follows:
                await self._pull()
            with trio.move_on_after(PULL_EVERY if self.others else math.inf):
                await self.changed.wait()

    def _say_apart(self) -> None:
        """Write each name that means several models to the log, once as long as it does."""
        apart = self._names_apart()
        for name in apart.keys() - self._apart:
            log.warning("'%s' is several models in this pool: %s", name, told_apart(name, apart[name]))
        self._apart = set(apart)

    def _names_apart(self) -> dict[str, list[list[Holder]]]:
        boxes = {peer.id: {name: peer.identities.get(name) for name in peer.models} for peer in self._peers.members()}
        known = self._catalog.identities.current
        shared = {name for names in boxes.values() for name in names}
        models = [model for model in self._catalog.snapshot.models if model.id in shared and not model.hidden]
        own = {model.id: known(model) for model in models}
        return names_apart({self.me: own, **boxes})

    def _adopt(self) -> None:
        drained = frozenset(box.name for box in self.roster.boxes if box.drained)
        self._tell_drained(self.me in drained)
        doors = {box.name: self.ways.guess(box) for box in self._in_reach(self.others)}
        adopted = doors, PoolSide(me=self.me, drained=drained, speeds=self.on_bus.speeds(), orders=self._orders)
        if adopted != self._adopted:
            self._adopted = adopted
            self._peers.adopt_members(*adopted)

    def _in_reach(self, boxes: Iterable[Box]) -> list[Box]:
        """Return those that can be asked: they can be dialled, or have dialled this one."""
        return [box for box in boxes if box.can_be_dialled or (box.dials_out and box.name in self._dialled)]

    async def _find(self, box: Box) -> None:
        try:
            await self.ways.find(box)
        except BoxFailed as error:
            self._peers.seen(box.name, False, error.why)
        else:
            self._peers.seen(box.name, True)

    async def _pull(self) -> None:
        """Ask the next box that answers. Those with other keys have got them while this box was away."""
        others = self._in_reach(self.others)
        for _ in others:
            self._pulled += 1
            box = others[self._pulled % len(others)]
            try:
                await self.learn(await self.ways.ask(box, "GET", ROSTER, Roster))
                self._strangers.clear()
                return
            except OtherKeys:
                self._strangers.add(box.name)
            except ApplianceError:
                continue

    async def _push_changes(self) -> None:
        """Carry each roster to the boxes that are in it, and to those that it has removed."""
        told = self.roster
        while True:
            while self.roster == told:
                await self.changed.wait()
            boxes = {box.name: box for box in (*told.boxes, *self.roster.boxes) if box.name != self.me}
            told = self.roster
            await self._ask_all(self.ways, boxes.values(), "PUT", ROSTER, told)

    async def _ask_all(self, ways: Ways, boxes: Iterable[Box], method: str, path: str, body: object) -> set[str]:
        """Ask all at once; return the names of those that have done it."""
        done: set[str] = set()

        async def ask(box: Box) -> None:
            try:
                await ways.ask(box, method, path, Roster, body)
                done.add(box.name)
            except ApplianceError as error:
                log.info("%s", error)

        async with trio.open_nursery() as nursery:
            for box in self._in_reach(boxes):
                nursery.start_soon(ask, box)
        return done

    async def admit(self, asked: JoinRequest) -> NewSecret:
        """Let a box in that has a token. Raises BadRequest, Conflict and BoxFailed."""
        until = self.codes.take(asked.token, trio.current_time())
        try:
            if asked.protocol != PROTOCOL:
                older = "this box" if asked.protocol > PROTOCOL else "the box that joins"
                raise BadRequest(f"the two boxes speak different versions of the pool's protocol: upgrade {older}")
            await self.change(lambda roster: roster.with_box(asked.box))
        except BaseException:
            self.codes.give_back(asked.token, until)
            raise
        return NewSecret(self.kept.secret, self.roster)

    def dialled_by(self, name: str) -> Dialled:
        """Return the connections of a box that dials out, one of which has just come. Raises BadRequest."""
        box = self.roster.box(name)
        if box is None or not box.dials_out or name == self.me:
            raise BadRequest(f"'{name}' is not a box of this pool that dials out: join again with --dials-out")
        if name not in self._dialled:
            self._dialled[name] = Dialled()
            self.changed.wake()
        self._peers.seen(name, True)
        return self._dialled[name]

    async def propose(self, wanted: Roster) -> Roster:
        """Decide for all boxes: ``wanted`` is in force if it is the next one after this box's. Raises Conflict."""
        follows = wanted.generation == self.roster.generation + 1
        return await self.learn(wanted) if follows else self.roster

    async def learn_secret(self, new: NewSecret) -> Roster:
        """Take a new secret that comes with a roster that is not older. Raises Conflict."""
        if new.roster.generation < self.roster.generation or len(new.secret) != SECRET_SIZE:
            raise Conflict("the secret belongs to an older roster")
        await self.learn(new.roster)
        await self._renew(new.secret)
        return self.roster

    def invite(self) -> JoinCode:
        """Make a code that lets one box in. Raises Conflict where no box could dial this one."""
        if (own := self.own) is None or not own.can_be_dialled:
            raise Conflict(f"box '{self.me}' cannot be dialled, so nobody can join here: invite on another box")
        token = secrets.token_bytes(TOKEN_SIZE)
        self.codes.add(token, trio.current_time())
        return JoinCode(addresses=own.addresses, port=own.port, ca_public=self.keys.ca_public, token=token)

    async def change(self, make: Callable[[Roster], Roster]) -> None:
        """Make a change that all boxes agree on. Raises what ``make`` raises, BoxFailed, and Busy."""
        try:
            await self._change(make)
        except BoxFailed as error:
            if error.box == BUS:
                raise
            fix = f"it decides on changes of the pool: start it, or remove it with 'pool leave {error.box}'"
            raise BoxFailed(error.box, f"{error.why}; {fix}") from None

    async def _agree(self, wanted: Roster) -> Roster:
        """Make one roster the next one for all boxes: return ``wanted``, or the one that came first. Raises BoxFailed.

        Without a bus, or where one box serves it and is away, the first box of the wanted roster decides, alone. So two
        changes at the same time at two boxes are one after the other. While that box is away nothing can be changed,
        but its own removal: then the next one decides. It also does where the bus has failed, and the change takes out
        so many of the boxes that serve it that the others cannot vote without them.
        """
        bus = self.on_bus
        if bus.kind in ("voters", "external") or (bus.kind == "standalone" and bus.state == "connected"):
            try:
                return await bus.agree(wanted)
            except BoxFailed:
                if not outvotes(self.roster, wanted):
                    raise
        first = next((box for box in wanted.boxes if box.can_be_dialled), wanted.boxes[0])
        if first.name == self.me:
            return await self.propose(wanted)
        return await self.ways.ask(first, "POST", ROSTER, Roster, wanted)

    async def leave(self) -> None:
        """Leave for good. Raises BoxFailed if no other box knows it yet; this box has left anyway."""
        try:
            if self.others:
                await self._change(lambda roster: roster.without(self.me))
        except BoxFailed as error:
            why = f"this box has left, and the others do not know: run 'pool leave {self.me}' there ({error.why})"
            raise BoxFailed(error.box, why) from None
        finally:
            self.over.set()

    async def rotate(self, without: Sequence[str]) -> PoolRotation:
        """Give all boxes a new secret, except those ``without``, which leave the pool. Raises as `change`, Conflict.

        This box writes the new secret to its disk first. If it dies then, the others lack the secret, and not this box
        the knowledge that there is one.
        """
        if self.me in without:
            raise Conflict("this box cannot leave itself out: use 'llama-appliance pool leave'")

        def make(roster: Roster) -> Roster:
            made = replace(roster, generation=roster.generation + 1)
            for name in without:
                made = replace(made.without(name), generation=roster.generation + 1)
            return made

        await self.change(make)
        new, others, ways = secrets.token_bytes(SECRET_SIZE), self.others, self.ways
        reached = await self._renew(new, [box for box in others if box.dials_out])
        rest = [box for box in others if not box.dials_out]
        reached |= await self._ask_all(ways, rest, "POST", SECRET, NewSecret(new, self.roster))
        missed = [box.name for box in others if box.name not in reached]
        return PoolRotation(reached=[box.name for box in others if box.name in reached], missed=missed)

    def state(self) -> PoolState:
        plan, bus = bus_plan(self.roster, self.me), self.on_bus
        peers = {peer.id: peer.status for peer in self._peers.members()}
        problems = [self.problem] if self.problem is not None else []
        strangers = sorted(self._strangers & {box.name for box in self.others})
        if strangers and not bus.follows:  # the bus lets in the keys of now alone
            names = ", ".join(strangers)
            text = f"the keys of this box are not those of {names}: the secret was changed while it was away"
            fix = "llama-appliance pool leave, then join again under a new name"
            problems.append(Trouble(id="left_out", text=text, fix=fix))
        problems += bus.problems()
        if bus.cut_off and bus.heard(self.me)[1] is not None and not bus.problems():
            text = "this box is cut off: it reaches less than half of the pool, and shows the others as last seen"
            problems.append(Trouble(id="cut-off", text=text, fix="look at its network; it serves what it has"))
        boxes = [self._shown(box, peers.get(box.name), voter=box.name in plan.voters) for box in self.roster.boxes]
        return PoolState(
            pool=self.roster.pool,
            listen=self._listen,
            me=self.me,
            generation=self.roster.generation,
            bus=PoolBus(kind=plan.kind, state=bus.state, server=bus.bus.state.server if bus.bus is not None else ""),
            cut_off=bus.cut_off,
            boxes=boxes,
            problems=[*problems, *keyless_problems(boxes), *apart_problems(self._names_apart())],
        )

    def _shown(self, box: Box, peer: PeerStatus | None, *, voter: bool) -> PoolBox:
        me = box.name == self.me
        models = self._own_models() if me else peer.models if peer is not None else ()
        beat, age = self.on_bus.heard(box.name)
        return PoolBox(
            name=box.name,
            addresses=box.addresses,
            port=box.port,
            me=me,
            up=True if me else peer.up if peer is not None else None,
            voter=voter,
            drained=box.drained,
            dials_out=box.dials_out,
            linked=peer is not None and peer.linked,
            version=beat.version,
            listen=beat.listen,
            keyless=beat.keyless,
            beat_age=age,
            queue=sum(model.busy for model in models),
            error=peer.error if peer is not None else None,
            models=models,
        )

    def _own_models(self) -> list[ModelState]:
        """Return the models of this box, as others read them in its list and over the link."""
        running = {state.id: state for state in self._peers.own_states()}
        listed = [model.id for model in self._catalog.snapshot.models if not model.hidden and model.error is None]
        return [running.get(id) or ModelState(id=id) for id in dict.fromkeys((*listed, *running))]

    async def _change(self, make: Callable[[Roster], Roster]) -> None:
        async with self._turn:
            for _ in range(TRIES):
                wanted = make(self.roster)
                if wanted is self.roster:
                    return
                await trio.sleep(min(1.0, max(0.0, wanted.generation - most_changes(time.time()))))
                found = await self._agree(wanted)
                await self.learn(found)
                if found == wanted:
                    return
        raise Busy("other boxes change the pool again and again; try it once more")

    async def _renew(self, secret: bytes, dialling: Iterable[Box] = ()) -> set[str]:
        """Use a new secret. Before that ends the connections that boxes have dialled, tell these boxes the secret.

        Return the names of those that have it. Raises StoreFailed.
        """
        self.kept = replace(self.kept, secret=secret)
        self._strangers.clear()
        await self._keep()
        try:
            return await self._ask_all(self.ways, dialling, "POST", SECRET, NewSecret(secret, self.roster))
        finally:
            self.ways = Ways(self.keys, self._dialled)
            self.changed.wake()
            await self._show_certificate()

    async def _keep_epochs(self) -> None:
        """Write the epochs of orders before one is carried out. Raises StoreFailed."""
        if (epochs := self._fences.stored()) != self.kept.epochs:
            self.kept = replace(self.kept, epochs=epochs)
            await self._keep()
