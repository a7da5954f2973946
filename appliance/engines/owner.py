"""The owner of engines: what is known of every build on this machine, and which one a model is started on.

It answers at once with what is known. What is not is found out by a look at the machine, by asking every build for its
devices, and by proving seats: when it is told to, or by the task in `engines.background`. What is learnt goes into the
book, so that the next start knows it.
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

from appliance.core.engines.book import Book, Listed, key_of
from appliance.core.engines.cards import drivers_of, identify, memory_names
from appliance.core.engines.choice import Ranked, Seat, Wanted, best, rank
from appliance.core.engines.devices import Device, cpu_device
from appliance.core.engines.machine import VISIBILITY, Look
from appliance.core.engines.probation import after_failure
from appliance.core.engines.proofs import Proof
from appliance.core.engines.seats import Offer, device_flags, seats_of
from appliance.engines.found import NO_GPUS, Engine
from appliance.engines.integrity import check_build
from appliance.engines.looking import look
from appliance.engines.probing import list_devices
from appliance.engines.shelf import CHANGES
from appliance.engines.succession import Succession
from appliance.platform.children import Children, open_children
from appliance.platform.power import hardware_signature
from appliance.store.changes_file import ChangesFile
from appliance.store.engine_book import BookFile

RANKED_FOR = 1.0
"""Seconds for which an order is taken as it was: time ends probations and what failed proofs say, and nothing else."""
LAST_WRITE = 2.0
"""Seconds for what is not in the book's file when the program ends."""

log = logging.getLogger(__name__)


class Engines:
    """Owned by `open_engines`. What is not async is atomic, and does not wait for the disk."""

    def __init__(self, find: Callable[[], list[Engine]], book: BookFile, starter: Path, *, only: bool) -> None:
        self.engines: list[Engine] = []
        self.book = Book()
        self._find = find
        self._file = book
        self._succession = Succession(ChangesFile(book.path.with_name(CHANGES)))
        self._starter = starter
        self._only = only
        self._signature = _signature()
        self._damage: dict[str, str] = {}
        self._seats: list[Seat] = []
        self._suspects: set[str] = set()
        self._suspected = trio.Event()
        self._ranked: dict[tuple[str, str], tuple[float, list[Ranked]]] = {}
        """What `ranked` has answered, and when, since the last `_arrange`."""
        self._edits: list[Callable[[Book], Book]] = []
        """Of the book, which are not in its file yet."""
        self._unwritten = trio.Event()
        self._proving = trio.Lock()
        self._writing = trio.Lock()
        self._probing = trio.Lock()
        self._begun = self._answered = 0  # probes, by number

    # ---- what is known -----------------------------------------------------------------------------------------------

    @property
    def look(self) -> Look | None:
        """The machine; None while nobody has looked, or it has changed since."""
        return self.book.look if self.book.signature == self._signature else None

    @property
    def seats(self) -> Sequence[Seat]:
        """Every build on the devices that it can use here."""
        return self._seats

    def ranked(self, model: str = "", word: str = "") -> list[Ranked]:
        """Every seat for this model, best first; what cannot be used is at the end."""
        now = time.time()
        known = self._ranked.get((model, word))
        if known is None or abs(now - known[0]) > RANKED_FOR:
            known = self._ranked[model, word] = now, self._rank(model, word, now)
        return known[1]

    def _rank(self, model: str, word: str, now: float) -> list[Ranked]:
        proofs = {seat.id: self.book.proofs_of(seat, self._system, now) for seat in self._seats}
        wanted = self._wanted(model, word)
        ranked = rank(self._seats, proofs, self.book.probations, wanted=wanted, model=model, now=now)
        return self._succession.arrange(ranked)

    def choose(self, model: str = "", tried: Collection[str] = (), word: str = "") -> Engine | None:
        """See `Chooser.choose`."""
        found = best(self.ranked(model, word), tried)
        return None if found is None else self.engine_on(found.seat)

    def engine_on(self, seat: Seat, devices: Sequence[Device] | None = None) -> Engine:
        """The seat's engine, told to use its devices, or some of them alone."""
        engine = next(one for one in self.engines if (one.id, one.digest) == (seat.build, seat.digest))
        narrowed = seat if devices is None else structs.replace(seat, devices=tuple(devices))
        listed = self._listed(engine)
        gpus = NO_GPUS if seat.on_cpu else memory_names(narrowed.devices, self.book.look)
        flags = device_flags(narrowed, listed.devices if listed else ())
        return structs.replace(engine, seat=seat.id, args=flags, gpus=gpus)

    def failed(self, engine: Engine, model: str, why: str) -> None:
        """See `Chooser.failed`. Where there is another seat, this one waits for a while, and is proven again."""
        if self._succession.failed(engine.id, why, time.time()):
            self._ranked.clear()
            self._unwritten.set()
        usable = [one for one in self.ranked(model) if one.usable]
        if len(usable) < 2:
            return
        before = next((p for p in self.book.probations if (p.seat, p.model) == (engine.seat, model)), None)
        probation = after_failure(before, seat=engine.seat, digest=engine.digest, model=model, why=why, now=time.time())
        self.change(lambda book: book.with_probation(probation))
        log.warning(
            "model '%s' failed on engine %s (%s); it is not used for it for %.0f s",
            *(model, engine.seat, why, probation.until - probation.since),
        )
        if any(seat.id == engine.seat and seat.devices for seat in self._seats):
            self._suspects.add(engine.seat)
            self._suspected.set()

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

    def change(self, edit: Callable[[Book], Book]) -> None:
        """Remember something: at once here, and in the book's file a moment later."""
        self.book = edit(self.book)
        self._edits.append(edit)
        self._unwritten.set()
        self._arrange()

    async def write_down(self) -> None:
        """Put into the files what they do not have yet, and take from them what other programs have put there."""
        async with self._writing:
            await trio.to_thread.run_sync(self._succession.write)
            while edits := self._edits[:]:
                book = await trio.to_thread.run_sync(self._file.change, partial(_applied, edits))
                del self._edits[: len(edits)]
                self.book = _applied(self._edits, book)
        self._arrange()

    @property
    def is_saved(self) -> bool:
        """Whether everything that was changed is in the book's file."""
        return not self._edits and self._file.is_saved

    async def keep_writing(self) -> None:
        """Run by `open_engines`."""
        while True:
            await self._unwritten.wait()
            self._unwritten = trio.Event()
            await self.write_down()

    async def refresh(self) -> None:
        """Look again which engines are installed, and what other programs have put into the book."""
        found = await trio.to_thread.run_sync(self._find)
        for engine in found:
            if engine.id in self._damage and not await self.check(engine, read_all=True):
                self._damage.pop(engine.id, None)  # it was installed again
        await trio.to_thread.run_sync(self._succession.refresh)
        async with self._writing:  # what is being written is in the file before it is read
            book = await trio.to_thread.run_sync(self._file.read)
            self.engines, self.book = found, _applied(self._edits, book)
            self._arrange()

    # ---- finding out -------------------------------------------------------------------------------------------------

    async def probe(self) -> Look:
        """Look at the machine, and ask every build for its devices; those who wait for one at a time share the next."""
        before = self._begun
        async with self._probing:
            if self._answered > before and self.look is not None:
                return self.look
            self._begun += 1
            seen = await self._probe()
            self._answered = self._begun
            return seen

    async def _probe(self) -> Look:
        async with open_children() as children:
            signature = _signature()
            seen = await look(children)
            self._signature = signature
            await self.refresh()
            self.change(lambda book: book.with_look(seen, signature))
            for engine in self.engines:
                if not engine.damage:
                    await self._ask_for_devices(engine, seen, children)
        return seen

    async def _ask_for_devices(self, engine: Engine, seen: Look, children: Children) -> None:
        listing = await list_devices(engine, children)
        if listing.fault is not None:
            log.warning("engine %s cannot list its devices: %s", engine.id, listing.why)
        listed = Listed(
            digest=engine.digest,
            system=seen.system,
            drivers=drivers_of(seen),
            devices=identify(listing.devices, seen, listing.targets),
            why=listing.why if listing.fault is not None else "",
        )
        self.change(lambda book: book.with_listed(listed))

    async def prove(
        self, seats: Iterable[Seat] | None = None, tell: Callable[[Proof], None] = lambda proof: None
    ) -> list[Proof]:
        """Prove these seats, or all that nobody has tried. The machine must have been looked at (`probe`)."""
        async with self._proving, open_children() as children:
            wanted = self._untried() if seats is None else list(seats)
            proofs: list[Proof] = []
            for named in wanted:
                self._suspects.discard(named.id)
                if not self._suspects:
                    self._suspected = trio.Event()
                seat = next((one for one in self._seats if one.id == named.id), None)
                if seat is None:
                    continue  # its build or its device went while others were proven
                on = [(device, self.engine_on(seat, (device,))) for device in seat.devices]
                tried = [await self._prove(seat, device, engine, children, tell) for device, engine in on]
                if all(proof.ok for proof in tried):
                    self.change(lambda book, seat=seat: book.with_trust(seat.id))
                proofs += tried
            return proofs

    def _untried(self) -> list[Seat]:
        """What it is worth to try: a GPU build on the processor only where nothing else is made for it."""
        if self._only:
            return []
        untried = [one.seat for one in self.ranked() if one.standing == "untried" and one.seat.devices]
        for_cpu = any(one.usable and one.seat.on_cpu and not one.seat.spare for one in self.ranked())
        return [seat for seat in untried if not (seat.spare and for_cpu)]

    async def _prove(
        self, seat: Seat, device: Device, engine: Engine, children: Children, tell: Callable[[Proof], None]
    ) -> Proof:
        key = key_of(seat, device, self._system)
        if damage := await self.check(engine, read_all=True):
            proof = Proof(key=key, build=seat.build, device=device.name, fault="damaged", why=damage, at=time.time())
            tell(proof)
            return proof
        from appliance.engines.proving import prove  # seven modules, for what is done in the background

        proof = await prove(engine, device, self._starter, children, key=key, build=seat.build, now=time.time())
        self.change(lambda book: book.with_proof(proof))
        said = "is proven" if proof.ok else f"failed its proof: {proof.why}"
        log.log(logging.INFO if proof.ok else logging.WARNING, "engine %s on %s %s", seat.build, proof.device, said)
        tell(proof)
        return proof

    # ---- what is in doubt --------------------------------------------------------------------------------------------

    @property
    def unlisted(self) -> bool:
        """Whether there is a build that was not asked for its devices since the machine was last looked at."""
        return any(self._listed(engine) is None for engine in self.engines if not engine.damage)

    def in_doubt(self) -> list[Seat]:
        """Seats that failed at work since they were last proven, and those that are worth a first trial."""
        suspects = [seat for seat in self._seats if seat.id in self._suspects and seat.devices]
        return [*suspects, *(seat for seat in self._untried() if seat not in suspects)]

    async def wait_suspect(self) -> None:
        """Wait until a seat has failed at work."""
        await self._suspected.wait()

    def has_changed(self) -> bool:
        """Whether drivers, cards, or what is hidden of them, are others than when the machine was last looked at."""
        before, self._signature = self._signature, _signature()
        return before != self._signature

    def doubt(self) -> None:
        """What the machine is has to be looked at again."""
        self._signature = ""

    # ---- arranging ---------------------------------------------------------------------------------------------------

    @property
    def _system(self) -> str:
        return self.book.system

    def _wanted(self, model: str, word: str) -> Wanted | None:
        chosen = word or self.book.models.get(model) or self.book.use
        if self._only:
            return None
        return Wanted(word=chosen, only=self.book.pinned and not word) if chosen and chosen != "auto" else None

    def _listed(self, engine: Engine) -> Listed | None:
        """What the engine said of its devices, as long as system and drivers are what they were."""
        seen = self.look
        if seen is None:
            return None
        now = (engine.digest, seen.system, drivers_of(seen))
        return next((one for one in self.book.listed if (one.digest, one.system, one.drivers) == now), None)

    def _arrange(self) -> None:
        """Work out the seats again."""
        seen = self.book.look
        cpu = cpu_device(seen.cpu, seen.memory_total) if seen is not None else cpu_device("", 0)
        now = time.time()
        self._seats = []
        self._ranked.clear()
        for place, engine in enumerate(self.engines):
            listed = self._listed(engine)
            offer = Offer(
                build=engine.id,
                backend="cpu" if engine.name == "embedded" else engine.backend,
                digest=engine.digest,
                place=place,
                damage=self._damage.get(engine.id, engine.damage),
                devices=listed.devices if listed else None,
                fault=listed.why if listed else "",
            )
            failed = {
                p.key.device for p in self.book.proofs if p.key.digest == engine.digest and not p.ok and p.holds(now)
            }
            self._seats += seats_of(offer, cpu, failed)


def _signature() -> str:
    """Changes when a driver or a card does, or what the environment hides of them."""
    hidden = "".join(f" {name}={os.environ[name]}" for name in VISIBILITY if name in os.environ)
    return hardware_signature() + hidden


def _applied(edits: Sequence[Callable[[Book], Book]], book: Book) -> Book:
    for edit in edits:
        book = edit(book)
    return book


@asynccontextmanager
async def open_engines(
    find: Callable[[], list[Engine]], book: BookFile, *, starter: Path, only: bool = False
) -> AsyncGenerator[Engines]:
    """Own what is known of engines, for the length of the block; see `engines.background` for what is not.

    ``find`` lists the engines that there are, best place first; ``only``: nobody asked for a choice among them, so
    that the background task looks at the machine and proves what fails, and nothing else.
    """
    engines = Engines(find, book, starter, only=only)
    await engines.refresh()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engines.keep_writing)
        yield engines
        nursery.cancel_scope.cancel()
    with trio.move_on_after(LAST_WRITE, shield=True):
        await engines.write_down()
