"""Which box of a pool answers a request, and what that box has to do first. Every entry box decides for itself.

A box that has the model in memory comes before one that has to load it, and a load into free memory before one that
evicts. Among boxes that are alike in this, the one that has read most of the prompt is best, as long as its queue is
not much longer than the shortest. If none has read any of it, a rendezvous hash of the prompt's beginning decides:
entry boxes tell each other nothing, and still send a conversation to the same box.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Literal
from zlib import crc32

from msgspec import Struct

from appliance.core.bodies.blocks import DIGEST_SIZE, HEAD, Block, Prefix, blocks_of

MOST_BLOCKS = 4096  # Blocks that are remembered of each box. An agent's request has some hundred.
SLACK = 2.0  # Requests by which a queue may be longer than the shortest. A long prompt read anew takes about so long.
CROWDED = 8  # requests at a box that has the model, from which on a load on another box is worth its time
_ROLE = re.compile(rb'"role"\s*:\s*"(\w+)"')
_OF_SYSTEM = (b"system", b"developer")


Need = Literal["nothing", "load", "evict", "fetch"]
"""The work that a box has to do before it can answer. evict: a load for which idle models go; fetch: it loads then."""


class BoxNow(Struct, frozen=True, kw_only=True):
    """One box, as the entry box knows it, and its relation to the model of a request."""

    box: str
    state: Literal["loaded", "loading", "stored", "absent"] = "stored"
    room: Literal["free", "idle", "none"] = "free"
    """Memory for the model: free now, free once idle models go, or held by models in use. Unknown counts as free: a
    box refuses a load that would evict.
    """
    fetchable: bool = False  # it may fetch the model from another box
    drained: bool = False
    up: bool = True
    queue: int = 0  # requests there, those under way included
    speed: float = 0.0  # measured, in a unit that all boxes share; 0: unknown, which counts as the fastest


NEEDS: Sequence[Need] = ("nothing", "nothing", "load", "nothing", "evict", "fetch", "evict")  # by `_rank`


class BoxChoice(Struct, frozen=True):
    box: str
    need: Need


class Prompt(Struct, frozen=True):
    """A request's prompt as blocks, of which the first ``opening`` stay the same while its conversation grows."""

    blocks: Prefix = Prefix()
    opening: int = 0


class Affinity:
    """The beginnings of prompts that this box has sent to each box: the blocks that were used last."""

    def __init__(self) -> None:
        self._boxes: dict[str, OrderedDict[bytes, None]] = {}

    def shared(self, box: str, prefix: Prefix) -> int:
        """Return the bytes of the longest beginning that the box was sent before."""
        known = self._boxes.get(box, ())
        found = (end for digest, end in zip(prefix.digests[::-1], prefix.ends[::-1], strict=True) if digest in known)
        return next(found, 0)

    def sent(self, box: str, prefix: Prefix) -> None:
        """The box gets a request with this prompt."""
        known = self._boxes.setdefault(box, OrderedDict())
        for digest in reversed(prefix.digests):  # the beginning comes last, because it is of use the longest
            known[digest] = None
            known.move_to_end(digest)
        while len(known) > MOST_BLOCKS:
            known.popitem(last=False)


def prompt_of(model: str, body: bytes) -> Prompt:
    """Return the prompt in a JSON body. Its digests are those of one model: another one has to read the text anew.

    Each is a checksum of the text up to there, with its length, which takes a fifth of the time of a digest in a file.
    Texts that have the same one by chance cost time alone.
    """
    found = blocks_of(body)
    check, end = crc32(model.encode()), 0
    digests, ends = list[bytes](), list[int]()
    for _, block in found:
        check = crc32(block, check)
        end += len(block)
        digests.append((end % (1 << 32) << 32 | check).to_bytes(DIGEST_SIZE))
        ends.append(end)
    messages = tuple(message for message, _ in found)
    # The opening is what is before the conversation, and its messages up to the first user's.
    last = 2 if _is_of_system([block for message, block in found if message == 1]) else 1
    opening = sum(HEAD <= at <= last for at in messages) or len(digests[:1])
    return Prompt(Prefix(tuple(digests), tuple(ends), messages), opening)


def _is_of_system(message: Sequence[Block]) -> bool:
    """True if it is not the user's. Its first block, or its last, has the role. A wrong guess costs time alone."""
    roles = (_ROLE.search(block) for block in (*message[:1], *message[-1:]))
    role = next((role for role in roles if role is not None), None)
    return role is not None and role[1] in _OF_SYSTEM


def place(model: str, prompt: Prompt, boxes: Sequence[BoxNow], shared: Callable[[str], int]) -> list[BoxChoice]:
    """Return the boxes that may answer, best first; boxes that can do nothing for the model are left out.

    ``shared`` tells how many bytes of the prompt a box has read. The order of ``boxes`` does not matter.
    """
    ranked: dict[tuple[int, int], list[BoxNow]] = {}
    for one in boxes:
        if (rank := _rank(one)) is not None:
            ranked.setdefault((2 if not one.up else int(one.drained), rank), []).append(one)
    fastest = max((one.speed for one in boxes), default=0.0)
    # A box that has read no more than the opening counts as one that has read nothing. Else every box that has the
    # system prompt of all conversations would keep any of them, and clients that go from one entry box to another would
    # find another box at each.
    last = prompt.opening - 1
    opening, length = (prompt.blocks.digests[last], prompt.blocks.ends[last]) if prompt.opening else (b"", 0)
    found: list[BoxChoice] = []
    for (_, rank), alike in sorted(ranked.items()):
        need = NEEDS[rank]
        reads = need == "nothing"
        subject = opening if reads and opening else model.encode()
        read = {one.box: max(shared(one.box), length) if reads else 0 for one in alike}
        found += [BoxChoice(one.box, need) for one in _ordered(alike, fastest, subject, read)]
    return found


def _rank(one: BoxNow) -> int | None:
    """Return the place among the boxes, by how much has to happen first; None where it can do nothing for the model."""
    match one.state:
        case "loaded" | "loading":
            return 3 if one.queue >= CROWDED else int(one.state == "loading")
        case "stored":
            return {"free": 2, "idle": 4, "none": 6}[one.room]
        case "absent":
            return 5 if one.fetchable and one.room != "none" else None


def _ordered(alike: Sequence[BoxNow], fastest: float, subject: bytes, read: Mapping[str, int]) -> list[BoxNow]:
    waits = {one.box: (one.queue + 1) * (fastest / one.speed if one.speed else 1.0) for one in alike}
    near = min(waits.values()) + SLACK

    def key(one: BoxNow) -> tuple[float, int, bytes]:
        share = blake2b(subject + one.box.encode(), digest_size=DIGEST_SIZE).digest()
        return waits[one.box] if waits[one.box] > near else 0.0, -read[one.box], share

    return sorted(alike, key=key)
