"""The slots of one llama-server: what each is believed to hold, and which one a request gets.

Left alone, llama-server gives a request the idle slot with the longest common prefix, if that is more than a tenth of
the request. A coding agent's helper begins with the same system prompt as its main session. So it gets the main
session's slot and cuts it down to that system prompt, and the main session is read again from there. This table names
the slot instead: a conversation returns to its own slot, and a new one takes the slot that costs least to lose. The
longest prefix that was used last is the last to go. Where a slot must not be named (`origin.may_name_slots`), it
foresees the engine's choice.

The table's word on a slot is a belief. The engine compares tokens, so a wrong belief costs time and nothing else, and
the next answer from that slot corrects it. Every method may be called in any order: an event that does not fit
what went before changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct, structs

from appliance.core.bodies.blocks import Prefix, prefix_of
from appliance.core.records.cache_misses import SlotNews

HALF_LIFE = 600  # seconds without use after which a slot's tokens count half
KEPT_SHARE = 0.1  # cost of losing a token that a kept file has, beside one that must be read again
TOKENS_PER_BYTE = 0.25  # assumed until the first answer says how many tokens its prompt had
LEAST_TOKENS = 512  # shorter contexts are not worth a file
LEAST_SIMILARITY = 0.5
"""The share of a prompt in a slot for which the engine takes this slot; our processes are started with it."""
NO_SLOT = -1
LEAST_GROWTH = 256
LEAST_SHARE = 0.1  # a context is saved again when it has grown by this share, and by `LEAST_GROWTH` tokens
ROUNDING = 2  # tokens by which an engine may count a slot's context otherwise than its answers did
MAX_TAKEN = 1000  # conversations without a slot that are remembered; the one that lost its slot first goes first


class SlotContent(Struct, frozen=True):
    """The tokens in a slot: a prompt, and the answer behind it."""

    session: str = ""  # the conversation; empty for a request that named none
    prefix: Prefix = Prefix()
    prompt: int = 0  # tokens of the prompt alone
    tokens: int = 0
    kept: int = 0  # the first tokens that a kept file also has

    @property
    def conversation(self) -> tuple[str, bytes]:
        """Two owners may give the same name to a conversation."""
        return self.session, self.prefix.owner

    def held(self, prefix: Prefix) -> int:
        """Return how many tokens of another prompt are these."""
        shared, size = self.prefix.shared(prefix), self.prefix.size
        if 0 < shared == size < prefix.size:
            return self.tokens
        return self.prompt * shared // size if shared else 0


class Placement(Struct, frozen=True):
    slot: int | None = None  # none: the engine chooses, as soon as a slot is free
    held: int = 0  # tokens of the prompt that the slot is believed to have already
    evicted: SlotContent | None = None
    """To be saved before this request is sent: it goes, and no kept file has the last tokens of it."""


class SlotTable:
    """The slots of one process, from its start to its end."""

    def __init__(self, count: int) -> None:
        self.slots = {at: SlotState() for at in range(count)}
        self._waiting: dict[int, _Asked] = {}
        # The conversations that have lost their slots: by whom, and the last prompt of each.
        self._taken: dict[tuple[str, bytes], tuple[str, Prefix]] = {}
        self._tokens_per_byte = TOKENS_PER_BYTE

    def place(self, ticket: int, session: str, prefix: Prefix, now: float, wanted: int | None = None) -> Placement:
        """Give a request its slot until `release`. ``wanted`` is the slot that the client itself named.

        Without an idle slot the request waits in the engine. The table then does as llama-server does: the oldest
        waiting request takes the first slot that is released.
        """
        if self.used_by(ticket) is not None or ticket in self._waiting:
            return Placement()
        self._hash_short()
        asked = _Asked(session, prefix, wanted)
        at = self._choose(asked, now)
        if at is None:
            self._waiting[ticket] = asked
            return Placement()
        slot = self.slots[at]
        content, held = slot.content, slot.content.held(prefix)
        saves = slot.asked is None and content.tokens - max(content.kept, held) >= LEAST_TOKENS
        slot.begin(ticket, asked)
        return Placement(at, held, content if saves else None)

    def news(self, session: str, prefix: Prefix) -> SlotNews:
        """Return the fate of a conversation's context. Its next request has this prompt, and has no slot yet."""
        self._hash_short()
        contents = [slot.content for slot in self.slots.values()]
        own = [each.prefix for each in contents if session and each.conversation == (session, prefix.owner)]
        taker, last = None, max(own, key=prefix.shared, default=Prefix())
        if not own and (taken := self._taken.get((session, prefix.owner))) is not None:
            taker, last = taken
        is_edited = 2 * prefix.shared(last) < min(prefix.size, last.size)
        return SlotNews(taker, prefix.edited_since(last) if is_edited else None)

    def tokens_of(self, prefix: Prefix) -> int:
        """Return about how many tokens a prompt has."""
        return round(prefix.size * self._tokens_per_byte)

    def needed(self) -> int:
        """Return about how many tokens of context the requests need that are using slots."""
        needed = 0
        for slot in self.slots.values():
            if slot.in_use and slot.asked is not None:
                needed += self.tokens_of(slot.asked.prefix)
            elif slot.in_use:
                short = slot.short
                needed += slot.content.tokens if short is None else round(len(short) * self._tokens_per_byte)
        return needed

    def foreseen(self, prefix: Prefix) -> int | None:
        """Return the slot that llama-server would choose by itself: one that has enough of the prompt, or the oldest.

        It takes the last of several unused slots. None: every slot is in use.
        """
        held = {at: slot.content.held(prefix) for at, slot in self.slots.items() if not slot.in_use}
        most = max(held, key=held.__getitem__, default=None)
        if most is not None and held[most] > LEAST_SIMILARITY * self.tokens_of(prefix):
            return most
        return min(held, key=lambda at: (self.slots[at].used_at, -at), default=None)

    # Most requests are short, and a hash of their blocks would cost more than all else that is done for them. So a
    # short request leaves its body in the slot. That is hashed when a longer one comes, which may be its next turn.
    def place_short(self, body: bytes, owner: bytes, *, names_slot: bool) -> int | None:
        """Give a short request an idle slot with little to lose, until `release_short`.

        `NO_SLOT`: none is idle, so the engine chooses. None: each idle one has something to lose, so `place` it.
        Where the request does not name the slot, it is the one that llama-server takes: the oldest, whatever it has.
        """
        found, least, oldest, is_full = None, LEAST_TOKENS - 1, math.inf, True
        for at, slot in self.slots.items():
            if slot.in_use:
                continue
            is_full = False
            if slot.short is not None and slot.owner == owner and body.startswith(slot.beginning):
                found = at
                break
            tokens = 0 if slot.short is not None or not names_slot else slot.content.tokens
            if tokens < least or (tokens == least and slot.used_at <= oldest):
                found, least, oldest = at, tokens, slot.used_at
        if is_full:
            return NO_SLOT
        if found is not None:
            slot = self.slots[found]
            # The next turn goes on at the end of the list of messages.
            slot.short, slot.beginning, slot.owner = body, body[: body.rfind(b"}]")], owner
            slot.ticket, slot.asked, slot.in_use = None, None, True
        return found

    def release_short(self, at: int, now: float) -> None:
        slot = self.slots[at]
        slot.in_use, slot.used_at = False, now
        if self._waiting:
            self._hand_on(at)

    def learn(self, ticket: int, prompt: int, cached: int, predicted: int) -> None:
        """Take over what the answer says in tokens: of its prompt, of the part that was not read again, of its text.

        May come after `release`, but not after the slot's next request began.
        """
        slot = next((slot for slot in self.slots.values() if slot.ticket == ticket), None)
        if slot is None or slot.asked is None or prompt <= 0:
            return
        session, prefix = slot.asked.session, slot.asked.prefix
        kept = min(slot.content.kept, cached, prompt)
        self._fill(slot, SlotContent(session, prefix, prompt, prompt + predicted, kept))
        slot.asked = None
        if prefix.size:
            self._tokens_per_byte = prompt / prefix.size

    def release(self, ticket: int, now: float, *, refused: bool = False) -> None:
        """End a request, whether it has a slot or waits for one.

        ``refused``: the engine never read it, so the slot holds what it held before.
        """
        self._waiting.pop(ticket, None)
        at = self.used_by(ticket)
        if at is None:
            return
        slot = self.slots[at]
        slot.in_use = False
        if refused:
            slot.asked = None
        else:
            slot.used_at = now
            self._fill(slot, slot.estimate(self._tokens_per_byte))
        self._hand_on(at)

    def _hand_on(self, at: int) -> None:
        """The oldest request that waits gets a slot that was released."""
        for waiting, asked in self._waiting.items():
            if asked.wanted in (None, at):
                del self._waiting[waiting]
                self.slots[at].begin(waiting, asked)
                return

    def _hash_short(self) -> None:
        """Find out what short requests have left in their slots."""
        for slot in self.slots.values():
            if slot.short is not None and not slot.in_use:
                prefix = prefix_of(slot.short, slot.owner)
                tokens = self.tokens_of(prefix)
                slot.short = None
                self._fill(slot, SlotContent("", prefix, tokens, tokens))

    def restored(self, at: int, session: str, prefix: Prefix, tokens: int) -> None:
        """A kept file was read into this slot."""
        self._replace(at, SlotContent(session, prefix, tokens, tokens, tokens))

    def lost(self, at: int) -> None:
        """The engine emptied this slot."""
        self._replace(at, SlotContent())

    def kept(self, at: int, saved: SlotContent, tokens: int) -> None:
        """A kept file now has the first tokens of this slot, as `due` returned it.

        A slot that holds something else by now is left alone.
        """
        slot = self.slots.get(at)
        if slot is not None and (slot.content.session, slot.content.prefix) == (saved.session, saved.prefix):
            slot.content = structs.replace(slot.content, kept=min(tokens, slot.content.tokens))

    def correct(self, held: Mapping[int, int]) -> None:
        """Find the slots that the engine chose. ``held`` are the tokens in its idle slots, as it counts them.

        A content is known by its number of tokens. It takes the request with it that is to replace it. A slot that the
        engine uses, and the table does not, has a request that was foreseen in another one.
        """
        wrong = [at for at, slot in self.slots.items() if not slot.is_of(held.get(at))]
        moving = [self.slots[at] for at in wrong]
        for at in list(wrong):
            alike = [slot for slot in moving if slot.short is None and _is_of(slot.content, held.get(at))]
            if len(alike) == 1:
                self.slots[at] = alike[0]
                moving.remove(alike[0])
                wrong.remove(at)
        for at, slot in zip(wrong, moving, strict=True):
            self.slots[at] = slot
            slot.content = SlotContent() if slot.short is None else slot.content

    def slot_of(self, content: SlotContent) -> int | None:
        """Return the slot with this content, if any has it still."""
        return next((at for at, slot in self.slots.items() if slot.content is content and slot.short is None), None)

    def used_by(self, ticket: int) -> int | None:
        """Return the slot of a request that has one and has not ended."""
        return next((at for at, slot in self.slots.items() if slot.in_use and slot.ticket == ticket), None)

    def due(self, now: float, after: float) -> dict[int, SlotContent]:
        """Return the slots to be saved: idle for ``after`` seconds, and grown since they were saved last.

        A slot whose last answer said nothing of its tokens is left out until one does.
        """
        found: dict[int, SlotContent] = {}
        for at, slot in self.slots.items():
            content, growth = slot.content, slot.content.tokens - slot.content.kept
            grown = content.tokens >= LEAST_TOKENS and growth >= max(LEAST_GROWTH, content.kept * LEAST_SHARE)
            is_known = slot.asked is None and slot.short is None
            if grown and is_known and not slot.in_use and now - slot.used_at >= after:
                found[at] = content
        return found

    def _choose(self, asked: _Asked, now: float) -> int | None:
        """A conversation's own slot goes before the longest common prefix, and that before the least loss.

        A common prefix counts only where the request keeps at least half of the slot. An empty slot costs nothing.
        """
        idle = {at: slot for at, slot in self.slots.items() if not slot.in_use and asked.wanted in (None, at)}
        held = {at: slot.content.held(asked.prefix) for at, slot in idle.items()}
        name = asked.session, asked.prefix.owner
        own = [at for at, slot in idle.items() if asked.session and slot.content.conversation == name]
        alike = [at for at, slot in idle.items() if 0 < slot.content.tokens <= 2 * held[at]]
        if own or alike:
            return max(own or alike, key=lambda at: (held[at], idle[at].used_at))
        return min(idle, key=lambda at: (_cost(idle[at], held[at], now), idle[at].used_at), default=None)

    def _replace(self, at: int, content: SlotContent) -> None:
        slot = self.slots.get(at)
        if slot is not None:
            self._fill(slot, content)
            slot.asked = slot.asked if slot.in_use else None

    def _fill(self, slot: SlotState, content: SlotContent) -> None:
        """Note who takes the slot of whom. An engine that empties a slot takes it for nobody."""
        before, slot.content = slot.content, content
        self._taken.pop(content.conversation, None)
        if content.tokens and before.session and before.conversation != content.conversation:
            self._taken.pop(before.conversation, None)
            self._taken[before.conversation] = content.session, before.prefix
            if len(self._taken) > MAX_TAKEN:
                del self._taken[next(iter(self._taken))]


class _Asked(Struct, frozen=True):
    session: str
    prefix: Prefix
    wanted: int | None


class SlotState(Struct, eq=False):
    """A slot, as the table believes it to be."""

    content: SlotContent = SlotContent()
    ticket: int | None = None  # the latest request
    asked: _Asked | None = None  # the same one's prompt, until its answer says what the slot holds now
    short: bytes | None = None  # the body of a short request that was here last, instead of its content
    beginning: bytes = b""  # the part of it with which its conversation's next turn begins
    owner: bytes = b""  # the client of the short request
    in_use: bool = False
    used_at: float = -math.inf

    def is_of(self, tokens: int | None) -> bool:
        """True if it may hold so many tokens; None: the engine uses it. A short request's are not known."""
        return self.in_use if tokens is None or self.short is not None else _is_of(self.content, tokens)

    def begin(self, ticket: int, asked: _Asked) -> None:
        """Until the request ends, the slot counts as holding what was there before."""
        self.ticket, self.asked, self.in_use = ticket, asked, True

    def estimate(self, tokens_per_byte: float) -> SlotContent:
        """Without word from the answer, assume that the prompt was read."""
        if self.asked is None:
            return self.content
        prefix, held = self.asked.prefix, self.content.held(self.asked.prefix)
        fresh = prefix.size - self.content.prefix.shared(prefix)
        tokens = held + round(fresh * tokens_per_byte)
        return SlotContent(self.asked.session, prefix, tokens, tokens, min(self.content.kept, held))


def _cost(slot: SlotState, held: int, now: float) -> float:
    """Return the tokens that are lost if a prompt has only the held ones; fewer the longer the slot was idle."""
    read_again = slot.content.tokens - held
    kept = max(0, slot.content.kept - held)
    return (read_again - kept + kept * KEPT_SHARE) * 2 ** -(max(0.0, now - slot.used_at) / HALF_LIFE)


def _is_of(content: SlotContent, tokens: int | None) -> bool:
    return tokens is not None and abs(content.tokens - tokens) <= ROUNDING
