"""Which box of a pool answers, and how much of the prompts its boxes have read already."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count, pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.bodies.blocks import BLOCK, Prefix, prefix_of
from appliance.features.pool.core.placing import (
    CROWDED,
    MOST_BLOCKS,
    SLACK,
    Affinity,
    BoxNow,
    Need,
    Prompt,
    place,
    prompt_of,
)

BOXES = st.lists(
    st.builds(
        BoxNow,
        box=st.sampled_from([f"b{number}" for number in range(8)]),
        state=st.sampled_from(["loaded", "loading", "stored", "absent"]),
        room=st.sampled_from(["free", "idle", "none"]),
        fetchable=st.booleans(),
        drained=st.booleans(),
        up=st.booleans(),
        queue=st.integers(0, 2 * CROWDED),
        speed=st.sampled_from([0.0, 10.0, 25.0, 100.0]),
    ),
    unique_by=lambda one: one.box,
    max_size=8,
)


def row(*messages: str, model: str = "m") -> Prompt:
    """A conversation of these messages, one block each; the first is the system's if it begins with an s."""
    system = messages[:1] != () and messages[0].startswith("s")
    roles = (["system"] if system else []) + ["user", "assistant"] * len(messages)
    told = [{"role": role, "content": text} for role, text in zip(roles, messages, strict=False)]
    return prompt_of(model, msgspec.json.encode({"messages": told}))


def nothing_read(box: str) -> int:
    return 0


def best(*boxes: BoxNow, prompt: Prompt | None = None, shared: Callable[[str], int] = nothing_read) -> tuple[str, Need]:
    found = place("m", row("s", "hello") if prompt is None else prompt, boxes, shared)[0]
    return found.box, found.need


@given(
    boxes=BOXES,
    prompt=st.binary(max_size=4).map(lambda text: row("s", *map(str, text))),
    shuffle=st.randoms(use_true_random=False),
    read=st.dictionaries(st.text(), st.integers(0, 99)),
)
def test_every_box_that_can_do_something_comes_once_and_less_work_comes_first(
    boxes: list[BoxNow], prompt: Prompt, shuffle: random.Random, read: dict[str, int]
):
    def shared(box: str) -> int:
        return read.get(box, 0)

    found = place("m", prompt, boxes, shared)
    by_name = {one.box: one for one in boxes}
    useless = {o.box for o in boxes if o.state == "absent" and (not o.fetchable or o.room == "none")}
    assert sorted(one.box for one in found) == sorted(by_name.keys() - useless)
    mixed = boxes.copy()
    shuffle.shuffle(mixed)
    assert place("m", prompt, mixed, shared) == found
    order = [by_name[one.box] for one in found]
    for before, after in pairwise(order):
        assert (not before.up, before.drained and before.up) <= (not after.up, after.drained and after.up)
    well = [one for one in found if by_name[one.box].up and not by_name[one.box].drained]
    at_once = [one for one in well if one.need == "nothing" and by_name[one.box].queue < CROWDED]
    assert well[: len(at_once)] == sorted(at_once, key=well.index)
    assert all(one.need == "nothing" for one in well[: len(at_once)])
    needs = [one.need for one in well if one.need != "nothing"]
    evicts = [by_name[one.box].room for one in well if one.need == "evict"]
    assert evicts == sorted(evicts), "idle models go before anybody waits for one in use"
    assert "load" not in needs[sum(need == "load" for need in needs) :]


def test_what_a_box_has_to_do_first():
    free, idle = BoxNow(box="free"), BoxNow(box="idle", room="idle")
    held, away = BoxNow(box="held", room="none"), BoxNow(box="away", state="absent", fetchable=True)
    busy = BoxNow(box="busy", state="loaded", queue=CROWDED)
    loaded, soon = BoxNow(box="loaded", state="loaded", queue=CROWDED - 1), BoxNow(box="soon", state="loading")
    everybody = (held, away, idle, busy, free, soon, loaded)
    assert [(one.box, one.need) for one in place("m", Prompt(), everybody, nothing_read)] == [
        ("loaded", "nothing"),
        ("soon", "nothing"),
        ("free", "load"),
        ("busy", "nothing"),
        ("idle", "evict"),
        ("away", "fetch"),
        ("held", "evict"),
    ]


def test_a_slow_box_answers_only_where_the_others_have_more_to_do():
    fast, slow = BoxNow(box="fast", state="loaded", speed=100.0), BoxNow(box="slow", state="loaded", speed=20.0)
    assert best(fast, slow, shared={"slow": 999, "fast": 0}.__getitem__)[0] == "fast"
    full = BoxNow(box="fast", state="loaded", speed=100.0, queue=7)
    assert best(full, slow)[0] == "slow"


@given(queues=st.lists(st.integers(0, CROWDED - 1), min_size=2, max_size=5), reader=st.integers(0, 4))
def test_the_box_that_has_read_most_answers_unless_its_queue_is_much_longer(queues: list[int], reader: int):
    reader %= len(queues)
    boxes = [BoxNow(box=str(number), state="loaded", queue=queue) for number, queue in enumerate(queues)]
    chosen = int(best(*boxes, shared=lambda box: 999 * (box == str(reader)))[0])
    assert queues[chosen] <= min(queues) + SLACK
    assert (chosen == reader) == (queues[reader] <= min(queues) + SLACK)


def test_memory_is_bounded_and_forgets_the_ends_first():
    affinity, first = Affinity(), row(*map(str, range(MOST_BLOCKS))).blocks
    affinity.sent("b", first)
    affinity.sent("b", row("other", "more").blocks)
    assert affinity.shared("b", first) == first.ends[-3]
    assert affinity.shared("b", row("0", "another").blocks) == first.ends[0]
    assert affinity.shared("nobody", first) == 0
    assert affinity.shared("b", row("0", model="third").blocks) == 0


@pytest.mark.parametrize(
    ("before", "roles"),
    [
        ({}, ["system", "user"]),
        ({}, ["user"]),
        ({"system": "be kind"}, ["user"]),
        ({"tools": [{"type": "function"}]}, ["developer", "user"]),
    ],
)
def test_a_conversation_that_grows_keeps_its_box(before: dict[str, object], roles: list[str]):
    """At every entry box, and at its own from the first turn on."""
    boxes = [BoxNow(box=f"b{number}", state="loaded") for number in range(7)]
    turns = [[*roles, *["assistant", "user"] * turn] for turn in range(3)]
    bodies = [
        msgspec.json.encode(
            before | {"messages": [{"role": role, "content": f"{at} {role} says"} for at, role in enumerate(turn)]}
        )
        for turn in turns
    ]
    affinity, first = Affinity(), prompt_of("m", bodies[0])
    home = place("m", first, boxes, nothing_read)[0].box
    affinity.sent(home, first.blocks)
    for body in bodies[1:]:
        prompt = prompt_of("m", body)
        assert place("m", prompt, boxes, nothing_read)[0].box == home
        assert place("m", prompt, boxes, lambda box, p=prompt: affinity.shared(box, p.blocks))[0].box == home


def test_a_text_that_grows_keeps_its_box():
    boxes = [BoxNow(box=f"b{number}", state="loaded") for number in range(7)]
    prompts = [prompt_of("m", msgspec.json.encode({"prompt": "x" * 5000 * turn})) for turn in (1, 2, 3)]
    assert len({place("m", prompt, boxes, nothing_read)[0].box for prompt in prompts}) == 1


def conversation(texts: list[str], more: dict[str, object]) -> bytes:
    said = [{"content": text, "role": "user" if at else "system"} for at, text in enumerate(texts)]
    return msgspec.json.encode(more | {"messages": said})


BODIES = st.builds(
    conversation,
    st.lists(st.sampled_from(["a", "b", "x" * 9000, "x" * 8999 + "y"]), max_size=5),
    st.sampled_from([{}, {"tools": [1]}, {"system": "s"}]),
)


@given(one=BODIES, other=BODIES)
def test_prompts_share_what_the_contexts_of_an_engine_share(one: bytes, other: bytes):
    prompts, prefixes = [prompt_of("m", body).blocks for body in (one, other)], [prefix_of(one), prefix_of(other)]
    assert [(each.ends, each.messages) for each in prompts] == [(each.ends, each.messages) for each in prefixes]
    assert prompts[0].shared(prompts[1]) == prefixes[0].shared(prefixes[1])
    assert prompts[0].shared(prompt_of("n", one).blocks) == 0


def test_the_opening_ends_with_the_first_message_of_the_user():
    """Wherever a client writes the role of a message."""
    long = "x" * 3 * BLOCK
    for first, expected in (({"role": "system"}, 5), ({"role": "developer"}, 5), ({"role": "user"}, 4), ({}, 4)):
        for message in (first | {"content": long}, {"content": long} | first):
            said = [message, {"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
            assert prompt_of("m", msgspec.json.encode({"messages": said})).opening == expected
    assert prompt_of("m", b'{"prompt": "Hello"}').opening == 1
    assert prompt_of("m", b'{"tools": ["role"]}').opening == 1
    assert prompt_of("m", b"{}").opening == 0


class Slots:
    """The caches of one box: 8 slots, each with the prompt that was read last."""

    def __init__(self) -> None:
        self.prompts: list[Prefix] = []
        self.queue = 0

    def read(self, prompt: Prefix) -> int:
        """Return the bytes that need not be read again."""
        like = max(self.prompts, key=prompt.shared, default=None)
        found = prompt.shared(like) if like is not None else 0
        if like is not None and 2 * found >= like.size:
            self.prompts.remove(like)
        self.prompts = [*self.prompts[-7:], prompt]
        return found


Choose = Callable[[int, Prompt, dict[str, Slots]], str]


def reused(choose: Choose, *, hops: bool, seed: int) -> float:
    """Return the share of all prompts' bytes that was not read again: 3 boxes, 3 entries, 18 conversations, 8 slots.

    Conversations of 3 to 16 turns follow each other. They share one of three system prompts.
    """
    chance, numbers = random.Random(seed), count()
    boxes = {f"b{number}": Slots() for number in range(3)}
    events: list[tuple[float, int, int, str]] = [
        (chance.expovariate(0.05), next(numbers), who, "") for who in range(18)
    ]
    talks: dict[int, tuple[list[str], int, int]] = {}
    heapq.heapify(events)
    whole = again = 0
    while next(numbers) < 2_500:
        now, _, who, box = heapq.heappop(events)
        if box:
            boxes[box].queue -= 1
            heapq.heappush(events, (now + chance.expovariate(0.05), next(numbers), who, ""))
            continue
        said, left, entry = talks.get(who, ([], 0, 0))
        if not left:
            said, left, entry = [f"system{chance.randrange(3)}" * 200], chance.randint(3, 16), who % 3
        said.append("".join(chance.choices("abcdef", k=chance.randint(200, 2000))))
        prompt = row(*said)
        box = choose(chance.randrange(3) if hops else entry, prompt, boxes)
        found = boxes[box].read(prompt.blocks)
        whole, again = whole + prompt.blocks.size, again + found
        boxes[box].queue += 1
        took = (prompt.blocks.size - found) / 1000 + chance.uniform(1, 4)
        said.append("".join(chance.choices("uvwxyz", k=chance.randint(200, 2000))))
        talks[who] = said, left - 1, entry
        heapq.heappush(events, (now + took, next(numbers), who, box))
    return again / whole


def by_affinity() -> Choose:
    entries = [Affinity() for _ in range(3)]

    def choose(entry: int, prompt: Prompt, boxes: dict[str, Slots]) -> str:
        affinity = entries[entry]
        now = [BoxNow(box=name, state="loaded", queue=slots.queue) for name, slots in boxes.items()]
        found = place("m", prompt, now, lambda box: affinity.shared(box, prompt.blocks))[0].box
        affinity.sent(found, prompt.blocks)
        return found

    return choose


def least_busy(_: int, prompt: Prompt, boxes: dict[str, Slots]) -> str:
    return min(boxes, key=lambda name: (boxes[name].queue, prompt.blocks.digests[-1] + name.encode()))


@pytest.mark.parametrize(("hops", "least"), [(False, 0.7), (True, 0.68)])
def test_share_of_prompts_that_is_not_read_again(hops: bool, least: float):
    chosen, idle = (reused(way, hops=hops, seed=7) for way in (by_affinity(), least_busy))
    assert chosen >= least
    assert idle < chosen - 0.15
