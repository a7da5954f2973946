"""The owner of engines: what is known of every build on this machine, and which one a model is started on.

It answers at once with what is known. The rest it finds out by a look at the machine, by asking every build for its
devices, and by proving seats: when a caller asks for it, or in the task of `background` beside it. Each finding is an
event (`core.state`): it counts at once here, and is in the file a moment later, so that the next start knows it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from msgspec import structs

from appliance.core.engine import NO_GPUS, Engine
from appliance.core.machine_look import VISIBILITY, MachineLook
from appliance.core.records.history import Happening, Tell, told_to_nobody
from appliance.core.rpc_workers import Crew, WantedCrew
from appliance.engines.builds import check_build
from appliance.engines.manuals import read_manual
from appliance.features.engines.core.cards import seats_on, why_none
from appliance.features.engines.core.choice import AUTO, EngineWish, Ranked, best, device_flags, rank, seats_of
from appliance.features.engines.core.listing import Device, cpu_device, drivers_of, identify, memory_names
from appliance.features.engines.core.standing import (
    ContextTrial,
    ListedDevices,
    Proof,
    ProofKey,
    Seat,
    SeatFailed,
    key_of,
)
from appliance.features.engines.core.state import EngineState, Learnt, MachineSeen, Pardoned, Trusted, reduce
from appliance.features.engines.drivers import look
from appliance.features.engines.probing import list_devices
from appliance.features.engines.shelf import StateFile
from appliance.platform.children import Children, open_children
from appliance.platform.machine import here
from appliance.trio_parts import Changed, WriteBehind, beside, persist

RANKED_FOR = 1.0  # seconds for which an order is taken as it was: time ends probations and failures alone
LAST_WRITE = 2.0  # seconds for what is not in the file yet when the program ends
log = logging.getLogger(__name__)


class Engines:
    """Owned by `open_engines`. What is not async is atomic, and does not wait for the disk."""

    def __init__(self, find: Callable[[], list[Engine]], file: StateFile, *, only: bool) -> None:
        self.engines: list[Engine] = []
        self.state = EngineState()
        self._find = find
        self._file = file
        self._only = only
        self.trying = ""  # the id of the seat under trial; empty: none, as far as this program knows
        self.tell: Tell = told_to_nobody  # told where another seat is the best one than before, once the file was read
        self._best: Ranked | None = None  # the best seat for an unknown model, as last arranged
        self._signature = _signature()
        self._damage: dict[str, str] = {}
        self._late: dict[str, str] = {}  # reasons of builds that have not told their devices yet, by digest
        self.seats: Sequence[Seat] = ()  # every build on the devices that it can use here
        self._suspects: set[str] = set()
        self._suspected = Changed()
        self._ranked: dict[tuple[str, str, tuple[str, ...]], tuple[float, list[Ranked]]] = {}
        """The answers of `ranked` since the last `_arrange`, with their times."""
        self._events: list[Learnt] = []  # the events that are not in the file yet
        self.behind = WriteBehind(pause=0, retry=5)
        self._is_unwritable = False
        self._proving = trio.Lock()
        self._writing = trio.Lock()
        self._probing = trio.Lock()
        self._begun = self._answered = 0  # probes, by number

    @property
    def look(self) -> MachineLook | None:
        """The machine; None while nobody has looked, or it has changed since."""
        return self.state.look if self.state.signature == self._signature else None

    @property
    def folder(self) -> Path:
        """The folder of installed builds."""
        return self._file.path.parent

    def ranked(self, model: str = "", word: str = "", cards: tuple[str, ...] = ()) -> list[Ranked]:
        """Every seat for this model (on these cards, if any are named), best first; the unusable ones at the end."""
        now = time.time()
        known = self._ranked.get((model, word, cards))
        if known is None or abs(now - known[0]) > RANKED_FOR:
            chosen, wanted = word or self.state.models.get(model) or self.state.use, None
            if chosen and chosen != AUTO and not self._only:
                wanted = EngineWish(engine=chosen, pinned=self.state.pinned and not word)
            ranked = rank(seats_on(self.seats, cards), self.state, wanted=wanted, model=model, now=now)
            known = self._ranked[model, word, cards] = now, ranked
        return known[1]

    def choose(
        self, model: str = "", tried: Collection[str] = (), word: str = "", cards: tuple[str, ...] = ()
    ) -> Engine | None:
        """See `Chooser.choose`."""
        ranked = self.ranked(model, word, cards)
        found = best(ranked, tried)
        if found is None and self._only:
            # Nothing else may be used, so nothing that was found out about it leaves it out. If it cannot work, its own
            # words say why.
            found = next((one for one in ranked if not one.seat.damage and one.seat.id not in tried), None)
        return None if found is None else self.engine_on(found.seat)

    async def lacks(self, cards: tuple[str, ...]) -> str:
        """See `Chooser.lacks`."""
        if cards and (self.look is None or self.unlisted):
            await self.probe()
        why = why_none(self.seats, cards)
        late = [f"{seat.build} is not known yet: {seat.late}" for seat in self.seats if seat.late]
        return "; ".join([why, *late]) if why else ""

    async def crew(self, wanted: WantedCrew, engine: Engine) -> Crew:
        from appliance.features.engines.rpc_look import workers_for  # few models have workers

        return await workers_for(wanted, engine.rpc)

    async def look_again(self) -> list[str]:
        """See `Chooser.look_again`."""
        await self.probe()
        return [f"{one.seat.id} ({one.why})" for one in self.ranked()]

    def engine_on(self, seat: Seat, devices: Sequence[Device] | None = None) -> Engine:
        """The seat's engine, told to use its devices, or some of them alone."""
        engine = next(one for one in self.engines if (one.id, one.digest) == (seat.build, seat.digest))
        narrowed = seat if devices is None else structs.replace(seat, devices=tuple(devices))
        listed = self._listed(engine)
        gpus = NO_GPUS if seat.on_cpu else memory_names(narrowed.devices, self.state.look)
        flags = device_flags(narrowed, listed.devices if listed else ())
        manual = listed.manual if listed else None
        return structs.replace(engine, seat=seat.id, args=flags, gpus=gpus, manual=manual)

    def failed(self, engine: Engine, model: str, why: str) -> None:
        """See `Chooser.failed`. Where there is another seat, this one waits for a while, and is proven again.

        A build that came with an update and fails soon gives way to the one before it.
        """
        others = len([one for one in self.ranked(model) if one.usable]) > 1
        before = self.state.role(engine.id)
        event = SeatFailed(
            build=engine.id, seat=engine.seat, digest=engine.digest, model=model, why=why, at=time.time(), others=others
        )
        self.apply(event)
        if self.state.role(engine.id) != before:
            log.warning("engine %s came with an update and failed: the one before it is used again", engine.id)
        if not others:
            return
        pair = engine.seat, model
        wait = next(one.until - one.since for one in self.state.probations if one.key == pair)
        log.warning(
            "model '%s' failed on engine %s (%s); it is not used for it for %.0f s", model, engine.seat, why, wait
        )
        if any(seat.id == engine.seat and seat.devices for seat in self.seats):
            self._suspects.add(engine.seat)
            self._suspected.wake()

    def pardoned(self, seat: str, model: str) -> None:
        """See `Chooser.pardoned`."""
        self.apply(Pardoned(seat, model))

    def context_helps(self, engine: Engine, architecture: str) -> bool:
        """See `Chooser.context_helps`."""
        trial = self.state.context_trial(engine.digest, architecture)
        return trial is None or not trial.why

    def context_tried(self, engine: Engine, architecture: str, why: str) -> None:
        """See `Chooser.context_tried`. What is known already is not written again."""
        trial = self.state.context_trial(engine.digest, architecture)
        if trial is None or bool(trial.why) != bool(why):
            build, now = engine.id, time.time()
            self.apply(ContextTrial(digest=engine.digest, build=build, architecture=architecture, why=why, at=now))

    async def check(self, engine: Engine, *, read_all: bool = False) -> str:
        """See `Chooser.check`. ``read_all``: a look at every byte, not at sizes and times."""
        if engine.folder is None:
            return engine.damage
        damage = await trio.to_thread.run_sync(partial(check_build, Path(engine.folder), read_all=read_all))
        if damage and damage != self._damage.get(engine.id):
            self._damage[engine.id] = damage
            log.warning("engine %s is not used: %s", engine.id, damage)
            self._arrange()
        return damage

    def apply(self, event: Learnt) -> None:
        """Remember something: at once here, and in the file a moment later."""
        self.state = reduce(self.state, event)
        self._events.append(event)
        self.behind.wake()
        self._arrange()

    async def sync(self) -> bool:
        """Exchange events with the file, and other programs; return False if the disk refuses."""
        async with self._writing:
            try:
                state: EngineState | None = None
                while events := self._events[:]:
                    state = await trio.to_thread.run_sync(self._file.apply, events)
                    del self._events[: len(events)]
                state = state or await trio.to_thread.run_sync(self._file.read)
            except OSError as cause:
                if not self._is_unwritable:
                    path, why = self._file.path, cause.strerror or cause
                    log.warning("%s cannot be used (%s): new facts about engines are lost at the end", path, why)
                self._is_unwritable = True
                return False
            self._is_unwritable = False
            for event in self._events:
                state = reduce(state, event)
            self.state = state
        self._arrange()
        return True

    async def refresh(self) -> None:
        """Look again which engines are installed, and what other programs have put into the file."""
        found = await trio.to_thread.run_sync(self._find)
        for engine in found:
            if engine.id in self._damage and not await self.check(engine, read_all=True):
                self._damage.pop(engine.id, None)  # it was installed again
        self.engines = found
        self._arrange()
        await self.sync()

    @property
    def speed(self) -> float:
        """See `EngineChoice.speed`."""
        used = best(self.ranked())
        return 1 / used.seconds if used is not None and used.seconds else 0.0

    @property
    def is_starting(self) -> bool:
        """See `EngineChoice.is_starting`."""
        return bool(self.in_doubt()) and all(one.standing != "proven" for one in self.ranked())

    async def probe(self) -> MachineLook:
        """Look at the machine, and ask every build for its devices; those who wait for one at a time share the next."""
        before = self._begun
        async with self._probing:
            if self._answered > before and self.look is not None:
                return self.look
            self._begun += 1
            async with open_children() as children:
                signature = _signature()
                seen = await look(children)
                self._signature = signature
                await self.refresh()
                self.apply(MachineSeen(seen, signature))
                for engine in self.engines:
                    if not engine.damage:
                        await self._ask_for_devices(engine, seen, children)
            self._answered = self._begun
            return seen

    async def _ask_for_devices(self, engine: Engine, seen: MachineLook, children: Children) -> None:
        listing = await list_devices(engine, children)
        if listing.fault == "hang":
            # No answer is not a "no": what is known of the build stays, and it is asked again.
            self._late[engine.digest] = f"{listing.why}; it is asked again"
            log.warning("engine %s: %s", engine.id, self._late[engine.digest])
            self._arrange()
            return
        self._late.pop(engine.digest, None)
        if listing.fault is not None:
            log.warning("engine %s cannot list its devices: %s", engine.id, listing.why)
        listed = ListedDevices(
            digest=engine.digest,
            system=seen.system,
            drivers=drivers_of(seen),
            devices=identify(listing.devices, seen, listing.targets),
            why=listing.why if listing.fault is not None else "",
            manual=await read_manual(engine, children) if listing.fault is None else None,
        )
        self.apply(listed)

    async def prove(
        self,
        seats: Iterable[Seat] | None = None,
        apply: Callable[[Proof], None] = lambda proof: None,
        *,
        again: bool = True,
    ) -> list[Proof]:
        """Prove these seats, or all that nobody has tried. The machine must have been looked at (`probe`).

        Without ``again``, seats that are not `in_doubt` when their turn comes are left out.
        """
        async with self._proving, open_children() as children:
            wanted = self._untried() if seats is None else list(seats)
            proofs: list[Proof] = []
            for named in wanted:
                if not again and all(seat.id != named.id for seat in self.in_doubt()):
                    continue
                self._suspects.discard(named.id)
                seat = next((one for one in self.seats if one.id == named.id), None)
                if seat is None:
                    continue  # its build or its device went while others were proven
                on = [(device, self.engine_on(seat, (device,))) for device in seat.devices]
                tried: list[Proof] = []
                self.trying = seat.id
                try:
                    for device, engine in on:
                        tried.append(await self._prove(seat, device, engine, children))
                        apply(tried[-1])
                finally:
                    self.trying = ""
                if all(proof.ok for proof in tried):
                    self.apply(Trusted(seat.id))
                proofs += tried
            return proofs

    def _untried(self) -> list[Seat]:
        """The untried seats that are worth a trial: a GPU build on the processor only where nothing else is made for
        it.
        """
        if self._only:
            return []
        untried = [one.seat for one in self.ranked() if one.standing == "untried" and one.seat.devices]
        for_cpu = any(one.usable and one.seat.on_cpu and not one.seat.spare for one in self.ranked())
        return [seat for seat in untried if not (seat.spare and for_cpu)]

    async def _prove(self, seat: Seat, device: Device, engine: Engine, children: Children) -> Proof:
        key = key_of(seat, device, self.state.system)
        if why := await self.check(engine, read_all=True):
            return Proof(key=key, build=seat.build, device=device.name, fault="damaged", why=why, at=time.time())
        from appliance.features.engines.proving import (  # seven modules, for what is done now and then
            alone_on_machine,
            prove,
        )

        before = self._proof_of(key)
        async with alone_on_machine() as waited:
            if waited:
                await self.sync()
                if (known := self._proof_of(key)) not in (None, before):  # another program has tried the same
                    return known
            proof = await prove(engine, device, children, key=key, build=seat.build, now=time.time())
            self.apply(proof)
            await self.sync()  # for a program that waits for its turn
        said = "is proven" if proof.ok else f"failed its proof: {proof.why}"
        log.log(logging.INFO if proof.ok else logging.WARNING, "engine %s on %s %s", seat.build, proof.device, said)
        return proof

    def _proof_of(self, key: ProofKey) -> Proof | None:
        return next((proof for proof in self.state.proofs if proof.key == key), None)

    @property
    def unlisted(self) -> bool:
        """True if a build was not asked about itself since the machine was last looked at."""
        known = [self._listed(engine) for engine in self.engines if not engine.damage]
        return any(listed is None or (listed.manual is None and not listed.why) for listed in known)

    def in_doubt(self) -> list[Seat]:
        """Seats that failed at work since they were last proven, and those that are worth a first trial."""
        suspects = [seat for seat in self.seats if seat.id in self._suspects and seat.devices]
        return [*suspects, *(seat for seat in self._untried() if seat not in suspects)]

    async def wait_suspect(self) -> None:
        """Wait until a seat has failed at work."""
        while not self._suspects:
            await self._suspected.wait()

    def has_changed(self) -> bool:
        """True if drivers, cards, or what is hidden of them, changed since the machine was last looked at."""
        before, self._signature = self._signature, _signature()
        return before != self._signature

    def doubt(self) -> None:
        """Look at the machine again before the next use of what is known of it."""
        self._signature = ""

    def _listed(self, engine: Engine) -> ListedDevices | None:
        """The engine's own list of its devices, as long as system and drivers are unchanged."""
        seen = self.look
        if seen is None:
            return None
        now = (engine.digest, seen.system, drivers_of(seen))
        return next((one for one in self.state.listed if (one.digest, one.system, one.drivers) == now), None)

    def _arrange(self) -> None:
        """Work out the seats again."""
        seen = self.state.look
        cpu = cpu_device(seen.cpu, seen.memory_total) if seen is not None else cpu_device("", 0)
        now = time.time()
        self.seats = seats = list[Seat]()
        self._ranked.clear()
        for place, engine in enumerate(self.engines):
            listed = self._listed(engine)
            build = Seat(
                build=engine.id,
                backend="cpu" if engine.name == "embedded" else engine.backend,
                digest=engine.digest,
                place=place,
                damage=self._damage.get(engine.id, engine.damage),
                fault=listed.why if listed else "",
                late="" if listed else self._late.get(engine.digest, ""),
            )
            failed = {
                p.key.device for p in self.state.proofs if p.key.digest == engine.digest and not p.ok and p.holds(now)
            }
            seats += seats_of(build, listed.devices if listed else None, cpu, failed)
        self._tell_of_change()

    def _tell_of_change(self) -> None:
        """Tell where another seat is the best one than before."""
        ranked = self.ranked()
        before, self._best = self._best, best(ranked)
        if before is None or self._best is None or before.seat.id == self._best.seat.id:
            return
        if not before.seat.devices and before.seat.build == self._best.seat.build:
            return  # its devices are known now
        then = next((one.why for one in ranked if one.seat.id == before.seat.id), "it is gone")
        why = f"{self._best.why} (the other one: {then})"
        self.tell(Happening(kind="engine", engine=before.seat.id, following=self._best.seat.id, error=why))


def _signature() -> str:
    """Changes when a driver or a card does, what the environment hides of them, or what this program may use."""
    hidden = "".join(f" {name}={os.environ[name]}" for name in VISIBILITY if name in os.environ)
    return f"{here.signature()}{hidden} {here.cores()} cores, {here.memory_limits()[0]} bytes"


@asynccontextmanager
async def open_engines(
    find: Callable[[], list[Engine]], file: StateFile, *, only: bool = False, tell: Tell = told_to_nobody
) -> AsyncGenerator[Engines]:
    """Own what is known of engines, for the length of the block; see `background` for what is not.

    ``find`` lists the engines that there are, best place first; ``only``: nobody asked for a choice among them, so
    that the background task looks at the machine and proves what fails, and nothing else. ``tell`` is called when
    another engine is the best one than before.
    """
    engines = Engines(find, file, only=only)
    await engines.refresh()
    engines.tell = tell
    async with beside(partial(persist, "remembering results about engines", partial(engines.behind.run, engines.sync))):
        yield engines
    with trio.move_on_after(LAST_WRITE, shield=True):
        await engines.sync()
