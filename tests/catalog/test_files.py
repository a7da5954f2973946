"""Joining names from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.catalog.found import UnsafeName, join_inside


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\\b", "C:", "file:stream", "a\0b"])
def test_names_that_would_lead_out(tmp_path: Path, name: str):
    with pytest.raises(UnsafeName):
        join_inside(tmp_path, "fine", name)


@given(st.lists(st.text(max_size=8) | st.sampled_from(["..", ".", "a/..", "/"]), max_size=4))
def test_a_joined_path_is_below_its_root(names: list[str]):
    root = Path("root").absolute()
    try:
        joined = join_inside(root, *names)
    except UnsafeName:
        return
    assert joined.parts[: len(root.parts)] == root.parts
    assert len(joined.parts) == len(root.parts) + len(names)
    assert ".." not in joined.parts
