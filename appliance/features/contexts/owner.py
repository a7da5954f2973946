"""The contexts of loaded models: a slot for each request, a file of each idle slot, and files given back to slots.

One request goes through three steps. `Contexts.place` gives it a slot, and finds the kept file that has more of its
prompt than this slot. `Placed.restore` has the engine read that file, before it gets the request. `Placed.learn` takes
what the answer's timings say of the prompt: that corrects the table of slots, and proves whether the file was of use.

Saving is never in the way of anything. It is done beside the process, some seconds after a slot became idle. A process
that is stopped before that keeps nothing. An engine writes a `.part`, and none is ever read: so a process that is
killed while it writes leaves nothing wrong.
"""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from functools import partial
from typing import Literal

import msgspec
import trio
from msgspec import Struct, structs

from appliance.core.bodies.blocks import Prefix, prefix_of
from appliance.core.engine import Manual
from appliance.core.lenient_json import decoded
from appliance.core.llama.flags import from_env, merge, split
from appliance.core.models.model import Model
from appliance.core.openai import error_text
from appliance.core.records.accounting import Usage
from appliance.core.records.cache_misses import SlotNews
from appliance.core.sizes import MIB
from appliance.engines.manuals import manual_of
from appliance.errors import Busy, UpstreamFailed, UsageError
from appliance.features.contexts.core.kept import KeptContext, best, replaced, worth
from appliance.features.contexts.core.origin import Origin, context_flags, may_name_slots, outdated
from appliance.features.contexts.core.slots import LEAST_TOKENS, NO_SLOT, ROUNDING, SlotContent, SlotTable
from appliance.features.contexts.files import KeptContexts, find_origin
from appliance.fleet.chooser import Chooser
from appliance.fleet.hold import HeldPlace, RestoreFailed, SlotHold
from appliance.fleet.launch import Launch
from appliance.upstream.client import Address, HttpCall

IDLE = 2.0  # seconds after which an idle slot is saved while its process has no request ...
BUSY_IDLE = 20.0  # ... and after which it is saved in any case: a save holds up the requests of all slots
LOOK_EVERY = 0.25
SAVE_TIME = 120.0  # seconds that a save may take; the engine may read a long prompt first
LEAST_LIMIT = 1.0  # seconds that a restore may always take; else it may take as long as it saves
SECONDS_A_BYTE = 5e-10
"""Assumed time for a byte of a restore, with the check of its file, until one was measured. It is that of a fast
machine: what is assumed to be slow is never tried."""
SPEED_SAMPLE = 64  # tokens that must have been read for the speed of reading to count
PROVING_SHARE = 0.9  # the share of the tokens given back that the next answer has to have found in its slot
STRIKES = 2  # restores of no use, in a row, after which nothing is kept for this build and architecture
MAX_ANSWER, MAX_SLOTS = 1 << 16, 1 << 22

log = logging.getLogger(__name__)


class _Saved(Struct):
    n_saved: int
    n_written: int


class _Restored(Struct):
    n_restored: int


class _HeldSlot(Struct):
    id: int
    is_processing: bool = False
    n_prompt_tokens: int = 0  # all tokens that the slot holds, in llama-server b11434


class Contexts(SlotHold):
    """Owned by the fleet. Without a store no request gets a slot, and nothing is kept.

    ``chooser`` remembers for which builds and architectures it helps to give contexts back.
    """

    def __init__(self, store: KeptContexts | None, chooser: Chooser | None) -> None:
        self.store = store
        self.seconds_a_byte = SECONDS_A_BYTE
        self._chooser = chooser
        self._processes: dict[str, ProcessContexts] = {}
        self._strikes: dict[tuple[str, str], int] = {}
        self._origins: dict[str, Origin] = {}  # by model: the origin of its next process, if contexts are kept of that
        self._manuals: dict[str, Manual] = {}  # by seat: of engines that nobody has asked before

    def of(self, model_id: str) -> ProcessContexts | None:
        """Return the contexts of the model's process; None: it chooses the slots of its requests by itself."""
        return self._processes.get(model_id)

    async def give_way(self) -> None:
        """Remove files for which there is no room beside the models, before the next one is planned."""
        if self.store is not None and self.store.entries():
            await self.store.make_room(0)

    async def prepared(self, model: Model, launch: Launch) -> Launch:
        """Add the flags of a process whose contexts are kept, where they can be, and whether slots may be named."""
        engine, architecture = launch.engine, _architecture(model)
        self._origins.pop(model.id, None)
        if engine is None or model.config is not None:
            return launch
        try:
            said = merge(split(launch.argv[len(engine.command) :]), from_env(launch.env))
        except UsageError:
            return launch  # an option of a newer engine: what it means for a context is not known
        manual = engine.manual or self._manuals.get(engine.seat)
        if manual is None:  # only a first start can come before it was read
            manual = self._manuals[engine.seat] = await manual_of(engine)
        launch = structs.replace(launch, may_name_slots=may_name_slots(manual, said))
        if self.store is None or not architecture or launch.crew.workers:
            return launch
        if self._chooser is not None and not self._chooser.context_helps(engine, architecture):
            return launch
        flags = context_flags(f"{self.store.folder}{os.sep}", launch.slots, manual, said)
        if not flags or not await self.store.open():
            return launch
        identify = partial(find_origin, said, engine.digest or engine.id, build=engine.id, seat=engine.seat)
        origin = await trio.to_thread.run_sync(identify)
        if origin is None:
            return launch
        for each in self.store.entries():
            if each.model == model.id and (why := outdated(each, origin)):
                await self.store.forget(each.name, why)
        self._origins[model.id] = origin
        return structs.replace(launch, argv=(*launch.argv, *flags), owns_slot_files=True)

    def begin(self, model: Model, launch: Launch) -> None:
        """Its process is ready."""
        if (origin := self._origins.get(model.id)) is not None:
            self._processes[model.id] = ProcessContexts(self, launch, origin, model.id, _architecture(model))

    async def keep(self, model_id: str) -> None:
        """Save what the model's process has read, until cancelled or nothing of it is to be kept."""
        if (process := self._processes.get(model_id)) is not None:
            await process.keep()

    def end(self, model_id: str) -> None:
        """Its process is gone."""
        self._processes.pop(model_id, None)

    def judge(self, process: ProcessContexts, why: str) -> None:
        """A context was given back, and the next answer has shown its use; ``why`` says why there was none."""
        engine, (_, architecture) = process.launch.engine, process.pair
        if engine is None or self._chooser is None:
            return
        strikes = self._strikes[process.pair] = self._strikes.get(process.pair, 0) + 1 if why else 0
        if not why:
            self._chooser.context_tried(engine, architecture, "")
        elif strikes == STRIKES:
            log.warning("contexts of %s models are not kept with engine %s: %s", architecture, engine.id, why)
            self._chooser.context_tried(engine, architecture, why)
        if strikes >= STRIKES:  # without files, the engine knows better where its requests go
            for model, each in list(self._processes.items()):
                if each.pair == process.pair:
                    each.is_kept = False
                    del self._processes[model]


class Placed(Struct, eq=False):
    """One request's place in its model's process, from its lease to its row in the activity log."""

    process: ProcessContexts
    ticket: int
    session: str
    prefix: Prefix
    news: SlotNews  # the fate of its conversation's context
    names_slot: bool
    slot: int | None = None  # none: no slot is idle, so that the engine chooses later
    kept: KeptContext | None = None  # the file that has more of its prompt than its slot
    has: int = 0  # tokens of its prompt that its slot has
    waits: bool = False  # a slot is being saved, and it may be its conversation's
    evicted: SlotContent | None = None  # the slot's content, which is dear, and which no file has
    restored: int = 0  # tokens that came back for it
    seconds: float = 0.0  # the time that `prepare` took

    @property
    def held(self) -> HeldPlace:
        return self

    @property
    def is_ready(self) -> bool:
        """False: `prepare` the slot before the request is sent."""
        return self.kept is None and self.evicted is None and not self.waits

    def named_in(self, body: bytes) -> bytes:
        """Return the JSON object with the name of its slot."""
        return body if self.slot is None or not self.names_slot else _naming(body, self.slot)

    def release(self, *, refused: bool) -> None:
        """The request is over; ``refused``: nothing of an answer has come."""
        self.process.table.release(self.ticket, trio.current_time(), refused=refused)

    async def prepare(self) -> None:
        """Save what the slot has, and have the engine read what it lacks; at once if it `is_ready`.

        Raises RestoreFailed.
        """
        process, began = self.process, trio.current_time()
        store, slot = process.owner.store, self.slot
        if store is None or slot is None or self.is_ready:
            return
        async with process.moving:
            if self.evicted is not None:
                await process.save(store, slot, self.evicted)
                slot = self.slot = process.table.used_by(self.ticket)
            # Now and not before: a file may have been replaced by a longer one of the same conversation.
            self.kept = process.find(self.prefix, self.has)
            if self.kept is not None and slot is not None:
                await self._restore(store, slot, self.kept)
        self.seconds = trio.current_time() - began

    async def _restore(self, store: KeptContexts, slot: int, kept: KeptContext) -> None:
        """A file that is of no use is gone then. Raises RestoreFailed."""
        process, began, why = self.process, trio.current_time(), "the engine took longer to read it than it saves"
        if not await store.check(kept.name):
            return
        with trio.move_on_after(max(LEAST_LIMIT, kept.tokens * kept.token_seconds)):
            try:
                status, answer = await _ask(process.launch.address, slot, "restore", store.whole(kept.name).name)
            except UpstreamFailed as error:
                await store.forget(kept.name, f"the engine ended while it read it ({error.why})")
                raise RestoreFailed from None
            except Busy:  # no descriptor is left to ask with
                return
            found = decoded(_RESTORED, answer) if status == 200 else None
            why = "" if found is not None else f"the engine refused it ({error_text(answer)})"
            if found is not None:
                prefix = structs.replace(kept.prefix, owner=self.prefix.owner)
                process.table.restored(slot, self.session, prefix, found.n_restored)
                self.restored = found.n_restored
                process.owner.seconds_a_byte = (trio.current_time() - began) / max(kept.size, MIB)
        if why:
            process.table.lost(slot)
            await store.forget(kept.name, why)

    def learn(self, usage: Usage) -> SlotNews:
        """Take over what the answer says of its prompt. Return the fate of its conversation's context."""
        process, cached = self.process, max(0, usage.tokens.cache_tokens)
        process.learn(self.ticket, usage, cached)
        kept, store = self.kept, process.owner.store
        if not self.restored or kept is None or store is None:
            return self.news
        # A client may drop a part of the answer from its next prompt, but has said itself that this begins alike.
        expected = min(kept.prompt, kept.reusable(self.prefix), usage.prompt)
        helped = cached >= PROVING_SHARE * expected - 1
        why = f"{self.restored} tokens were given back, and it read all but {cached} again"
        process.owner.judge(process, "" if helped else why)
        if helped:
            process.count(kept.name, cached)
        return structs.replace(self.news, came_back=f"{kept.size / MIB:.0f} MiB, {self.seconds:.1f} s")


class ShortPlaced(Struct, eq=False):
    """The place of a short request, of which nothing is saved or given back."""

    table: SlotTable
    slot: int
    names_slot: bool
    is_ready: bool = True
    held: None = None

    def named_in(self, body: bytes) -> bytes:
        return _naming(body, self.slot) if self.names_slot else body

    def release(self, *, refused: bool) -> None:
        self.table.release_short(self.slot, trio.current_time())


class ProcessContexts:
    """The contexts of one process, from its load to its end."""

    def __init__(self, owner: Contexts, launch: Launch, origin: Origin, model_id: str, architecture: str) -> None:
        self.owner = owner
        self.table = SlotTable(launch.slots)
        self.moving = trio.Lock()  # held while a slot is saved or restored
        self.launch = launch
        engine = launch.engine
        # The build and the architecture, of which it is known whether giving back helps.
        self.pair = (engine.digest or engine.id if engine is not None else ""), architecture
        self.is_kept = True  # false: it was found to be of no use
        self._origin = origin
        self._model_id = model_id
        self._token_seconds = 0.0  # seconds for reading one token; 0: not known
        self._uses: list[tuple[str, int]] = []
        self._news = trio.Event()  # something may have to be saved, or counted

    def needed(self) -> int:
        return self.table.needed()

    def place(self, ticket: int, session: str, body: bytes, owner: bytes, wanted: int, *, names_slot: bool) -> Placed:
        """Give the request with this ticket a slot, until `Placed.release`. ``owner`` as in `prefix_of`.

        ``wanted`` is the slot that the request names, -1 for none. ``names_slot``: its engine lets requests of this
        kind name theirs.
        """
        prefix, names_slot = prefix_of(body, owner), names_slot and self.launch.may_name_slots
        news = self.table.news(session, prefix)
        placed = Placed(self, ticket, session, prefix, news, names_slot and wanted < 0)
        asked = wanted % self.launch.slots if wanted >= 0 else None if names_slot else self.table.foreseen(prefix)
        found = self.table.place(ticket, session, prefix, trio.current_time(), asked)
        placed.slot, placed.has = found.slot, found.held
        if found.slot is not None:
            placed.kept = self.find(prefix, found.held)
            placed.waits = self.moving.locked() and self.table.tokens_of(prefix) - found.held >= LEAST_TOKENS
            if (content := found.evicted) is not None:
                # Do its tokens take longer to read again than a save takes, and another restore?
                size = content.tokens * self.launch.token_bytes
                if worth(content.tokens, self._token_seconds, size, 2 * self.owner.seconds_a_byte):
                    placed.evicted = content
        return placed

    def place_short(self, body: bytes, owner: bytes, *, names_slot: bool) -> ShortPlaced | Literal[False] | None:
        """The same for a request of fewer than `SHORT` bytes that names no slot. False: `place` it.

        None: no slot is idle, so that the engine chooses.
        """
        names_slot = names_slot and self.launch.may_name_slots
        slot = self.table.place_short(body, owner, names_slot=names_slot)
        if slot is None:
            return False
        return ShortPlaced(self.table, slot, names_slot) if slot != NO_SLOT else None

    def find(self, prefix: Prefix, held: int) -> KeptContext | None:
        """Return the file that has more of a prompt than the slot, which has ``held`` tokens of it."""
        store = self.owner.store
        if store is None:
            return None
        return best(store.entries(self._origin.key), prefix, held, LEAST_TOKENS, self.owner.seconds_a_byte)

    def learn(self, ticket: int, usage: Usage, cached: int) -> None:
        """The answer to the request with this ticket says what its prompt cost."""
        self.table.learn(ticket, usage.prompt, cached, max(0, usage.tokens.output_tokens))
        self._news.set()
        read, milliseconds = usage.prompt - cached, usage.engine_ms - usage.answer_ms
        if read >= SPEED_SAMPLE and usage.answer_ms >= 0 and milliseconds > 0:
            self._token_seconds = milliseconds / 1000 / read

    def count(self, name: str, tokens: int) -> None:
        """A file has saved the reading of so many tokens; `keep` writes it down."""
        self._uses.append((name, tokens))
        self._news.set()

    async def keep(self) -> None:
        """Save slots that are idle and have grown, until cancelled."""
        store = self.owner.store
        while store is not None and self.is_kept:
            while self._uses:
                await store.used(*self._uses.pop())
            if not self.table.due(trio.current_time(), 0.0):
                self._news = trio.Event()
                await self._news.wait()
            await trio.sleep(LOOK_EVERY)  # also behind the news: every answer brings some
            now = trio.current_time()
            is_busy = any(slot.in_use for slot in self.table.slots.values())
            for slot, content in self.table.due(now, BUSY_IDLE if is_busy else IDLE).items():
                async with self.moving:
                    await self.save(store, slot, content)

    async def _correct(self) -> None:
        """Ask the engine which of its slots holds how much; one that does not say leaves the table as it is."""
        found = None
        with suppress(UpstreamFailed, Busy), trio.move_on_after(SAVE_TIME):
            async with HttpCall(self.launch.address, "GET", "/slots", (), b"") as answer:
                found = decoded(_SLOTS, await answer.read(MAX_SLOTS)) if answer.status == 200 else None
        if found is not None:
            self.table.correct({each.id: each.n_prompt_tokens for each in found if not each.is_processing})

    async def save(self, store: KeptContexts, slot: int, content: SlotContent) -> None:
        """Have the engine write what the slot holds. Even if this fails, it waits until the slot has grown."""
        if not self.launch.may_name_slots:
            await self._correct()
            if (found := self.table.slot_of(content)) is None:
                return  # the engine has given its slot to another request
            slot = found
        self.table.kept(slot, content, content.tokens)
        if not self._token_seconds or not await store.make_room(content.tokens * self.launch.token_bytes):
            return
        name, why, status, answer = secrets.token_hex(16), "its process ended", 0, b""
        try:
            with trio.move_on_after(SAVE_TIME) as limit:
                status, answer = await _ask(self.launch.address, slot, "save", store.part(name).name)
            saved = None if limit.cancelled_caught or status != 200 else decoded(_SAVED, answer)
            if limit.cancelled_caught:
                why = f"the engine did not write it within {SAVE_TIME:g} s"
            elif saved is None:
                why = f"the engine did not write it ({error_text(answer)})"
            elif abs(saved.n_saved - content.tokens) > ROUNDING:
                why = "another request had its slot meanwhile"
            else:
                context = self._context(name, content, saved)
                former = [each.name for each in replaced(store.entries(context.key), content.prefix)]
                why = ""
                if await store.keep(context):
                    for each in former:
                        await store.forget(each, "a longer one of its conversation is kept")
        except (UpstreamFailed, Busy) as error:
            why = str(error)
        finally:
            if why:
                with trio.CancelScope(shield=True):
                    await store.forget(name, why)

    def _context(self, name: str, content: SlotContent, saved: _Saved) -> KeptContext:
        return KeptContext(
            **structs.asdict(self._origin),
            name=name,
            model=self._model_id,
            conversation=content.session,
            chain=content.prefix.digests,
            ends=content.prefix.ends,
            prompt=content.prompt,
            tokens=saved.n_saved,
            size=saved.n_written,
            token_seconds=self._token_seconds,
        )


_SAVED, _RESTORED = msgspec.json.Decoder(_Saved), msgspec.json.Decoder(_Restored)
_SLOTS = msgspec.json.Decoder(list[_HeldSlot])


def _architecture(model: Model) -> str:
    """Return the architecture of a model on disk; empty where its file does not say."""
    return model.info.architecture if model.info is not None else ""


def _naming(body: bytes, slot: int) -> bytes:
    begin = body.index(b"{") + 1
    return b'%b"id_slot":%d,%b' % (body[:begin], slot, body[begin:])


async def _ask(address: Address, slot: int, action: str, name: str) -> tuple[int, bytes]:
    """Have the engine save or restore a slot. Raises UpstreamFailed and Busy."""
    body = msgspec.json.encode({"filename": name})
    path = f"/slots/{slot}?action={action}"
    async with HttpCall(address, "POST", path, ((b"Content-Type", b"application/json"),), body) as answer:
        return answer.status, await answer.read(MAX_ANSWER)
