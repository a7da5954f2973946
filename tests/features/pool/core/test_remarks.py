"""Remarks on a pool that no box alone could make."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.models.holders import Holder
from appliance.features.pool.core.export import export_box
from appliance.features.pool.core.remarks import apart_problems, groups_of, keyless_problems, names_apart
from appliance.features.pool.core.shapes import PoolBox

LISTENS = ("", "http://127.0.0.1:8080", "http://0.0.0.0:81", "https://[::]:8443/api", "http://10.0.0.1:80")
BOXES = st.lists(
    st.builds(
        PoolBox,
        name=st.sampled_from(("a1", "b2", "c3", "d4")),
        addresses=st.just(("10.0.0.9",)),
        port=st.just(4280),
        me=st.just(False),
        up=st.just(True),
        listen=st.sampled_from(LISTENS),
        keyless=st.sampled_from((True, False, None)),
    ),
    unique_by=lambda box: box.name,
)


@given(boxes=BOXES)
def test_each_box_that_lets_everybody_in_is_named_where_another_one_does_not(boxes: list[PoolBox]):
    keyed = [box.name for box in boxes if box.keyless is False]
    told = {problem.text.partition(" ")[0]: problem.text for problem in keyless_problems(boxes)}
    assert [*told] == ([box.name for box in boxes if box.keyless] if keyed else [])
    for box in boxes:
        is_local = box.listen in LISTENS[:2]
        assert box.name not in told or ("every program on its machine" in told[box.name]) == is_local


@given(boxes=BOXES, port=st.sampled_from((None, 99)))
def test_an_exported_address_is_one_that_the_box_tells(boxes: list[PoolBox], port: int | None):
    for box in boxes:
        found = export_box(box.name, box.addresses[0], box.listen, port, ())
        assert found.closed == ("127.0.0.1" in box.listen)
        told = {
            "": "http://10.0.0.9:8080",
            LISTENS[2]: "http://10.0.0.9:81",
            LISTENS[3]: "https://10.0.0.9:8443/api",
        }.get(box.listen, box.listen)
        if port is None:
            assert found.url == told
        else:
            assert found.url.endswith((":99", ":99/api"))


@given(
    boxes=st.dictionaries(
        st.sampled_from("abc"), st.dictionaries(st.sampled_from("mn"), st.sampled_from((None, "", "x", "y")))
    )
)
def test_every_name_of_several_models_and_every_silent_box_is_named(boxes: dict[str, dict[str, str | None]]):
    apart = names_apart(boxes)
    told = {problem.id: problem.text for problem in apart_problems(apart)}
    for name in "mn":
        known = {models.get(name) for models in boxes.values()} - {None, ""}
        assert (f"'{name}':" in told.get("names", "")) == (len(known) > 1)
    silent = {one.box for groups in apart.values() for group in groups for one in group if one.identity is None}
    assert set(told.get("names-unknown", "").partition(" does")[0].split(", ")) - {""} == silent


def test_boxes_that_tell_nothing_of_a_model_are_each_their_own():
    holders = [Holder("a", "1"), Holder("b", None), Holder("c", "1"), Holder("d", None)]
    assert [[one.box for one in group] for group in groups_of(holders)] == [["a", "c"], ["b"], ["d"]]
