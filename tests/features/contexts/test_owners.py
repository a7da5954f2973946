"""Prompts of two owners never meet: no slot is believed to hold, and no file to have, what another one has asked."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.core.bodies.blocks import prefix_of
from appliance.features.contexts.core.kept import KeptContext, best, replaced
from appliance.features.contexts.core.slots import SlotTable
from appliance.fleet.hold import SHORT

SLOTS = 4
OWNERS = st.sampled_from([b"", b"alice" * 3, b"bob" * 5])
SHORT_ONE, LONG_ONE = ["question " * 40], ["x" * SHORT]
TEXTS = st.sampled_from([SHORT_ONE, SHORT_ONE * 2, LONG_ONE, LONG_ONE * 2, SHORT_ONE + LONG_ONE])
STEPS = st.lists(st.tuples(OWNERS, st.sampled_from(["", "the same name"]), TEXTS, st.booleans()), max_size=20)


def body(texts: list[str]) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text} for text in texts]}).encode()


@settings(max_examples=100)
@given(STEPS)
def test_no_slot_and_no_file_is_chosen_for_what_another_owner_has_said(
    steps: list[tuple[bytes, str, list[str], bool]],
) -> None:
    table, files, owner_of = SlotTable(SLOTS), list[tuple[bytes, KeptContext]](), dict[int, bytes]()
    for number, (owner, session, texts, is_short) in enumerate(steps):
        asked, prefix = body(texts), prefix_of(body(texts), owner)
        mine = [file for each, file in files if each == owner]
        assert best([file for _, file in files], prefix, 0, 1, 0.0) in (*mine, None)
        assert all(file in mine for file in replaced([file for _, file in files], prefix))
        free = [at for at in range(SLOTS) if at not in owner_of]
        slot = table.place_short(asked, owner, names_slot=True) if is_short and len(asked) < SHORT else None
        if slot is not None:
            table.release_short(slot, number)
        else:
            news = table.news(session, prefix)
            is_known = any(owner == each for each, *_ in steps[:number])
            assert is_known or (news.taker, news.edited) == (None, None)
            placed = table.place(number, session, prefix, number)
            slot = placed.slot
            assert slot is not None
            assert owner_of.get(slot) == owner or not placed.held
            table.learn(number, prefix.size, placed.held, 5)
            table.release(number, number)
        assert owner_of.get(slot, owner) == owner or not free, "it takes a slot from another one though some are empty"
        owner_of[slot] = owner
        chain, ends, size = prefix.digests, prefix.ends, prefix.size
        file = KeptContext(
            key="k", name=f"{number:032x}", model="m", conversation=session, chain=chain, ends=ends, prompt=size,
            tokens=size, size=1, token_seconds=1.0,
        )  # fmt: skip
        files.append((owner, file))
