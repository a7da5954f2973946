"""The recommended models have the shape that a download needs, and the cards suit the machine."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.models.download import RemoteFile, choose, parse_reference
from appliance.core.models.names import stem_of, tag_of
from appliance.features.downloads.recommended import RECOMMENDED, RESERVE, cards, judged_by_size

GIB = 1 << 30
ROOM = st.dictionaries(st.sampled_from(["ram", "gpu0", "gpu1"]), st.integers(0, 200 * GIB)).map(
    lambda room: {"ram": 0, **room}
)


def test_the_list_says_what_a_download_needs() -> None:
    assert [model.size for model in RECOMMENDED] == sorted({model.size for model in RECOMMENDED})
    assert len({model.sha256 for model in RECOMMENDED}) == len(RECOMMENDED)
    for model in RECOMMENDED:
        assert re.fullmatch(r"[0-9a-f]{64}", model.sha256)
        assert model.licence in ("Apache-2.0", "MIT")
        assert set(model.purpose) == {"en", "de"}
        assert all(text.endswith(".") and len(text) < 100 for text in model.purpose.values())
        tag = tag_of(stem_of(model.file) or "")
        reference = parse_reference(f"{model.repository}:{tag}")
        file = RemoteFile(model.file, model.sha256, model.size)
        assert choose(reference, [file]).model == (file,)


@given(room=ROOM)
def test_the_cards_fit_and_the_best_is_the_largest_that_does(room: dict[str, int]) -> None:
    found = cards(room)
    sizes = [card.model.size for card in found]
    assert found[0].wish == "fast"
    assert sizes == sorted(set(sizes))
    fitting = [model for model in RECOMMENDED if judged_by_size(model.size, room).verdict != "no"]
    if fitting:
        assert all(card.fit.verdict != "no" for card in found)
        assert found[-1].model == fitting[-1]
        assert len(found) == min(3, len(fitting))
    else:
        assert [card.model for card in found] == [RECOMMENDED[0]]


@given(size=st.integers(1, 100 * GIB), room=ROOM, more=st.integers(0, 50 * GIB))
def test_more_room_is_never_worse(size: int, room: dict[str, int], more: int) -> None:
    rank = {"no": 0, "partly": 1, "fits": 2}
    before, after = judged_by_size(size, room), judged_by_size(size, {**room, "ram": room["ram"] + more})
    assert rank[after.verdict] >= rank[before.verdict]
    assert before.needed > size
    if before.verdict == "fits":
        assert sum(max(0, free - RESERVE) for free in room.values()) >= before.needed
