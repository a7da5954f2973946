"""The file of derived models: it comes back as it was, and what cannot be understood is set aside."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.ollama.core.asking import DerivedPreset
from appliance.features.ollama.core.models import Derived
from appliance.features.ollama.known import read_derived, write_derived

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = st.dictionaries(st.text(max_size=5), JSON, max_size=3)
MODELS = st.lists(
    st.builds(
        Derived, name=st.text(min_size=1, max_size=8), base=st.text(max_size=8), made_at=st.just(1.5),
        preset=st.builds(
            DerivedPreset, system=st.text(max_size=8), parameters=MEMBERS,
            messages=st.lists(MEMBERS, max_size=2).map(tuple),
        ),
    ),
    max_size=4,
)  # fmt: skip


@given(MODELS)
def test_what_is_written_is_read(models: list[Derived]):
    by_name = {model.name.casefold(): model for model in models}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "there" / "derived.json"
        assert read_derived(file) == {}
        write_derived(file, by_name)
        assert read_derived(file) == by_name


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version":2,"models":[]}', b'{"version":1,"models":[{"name":1}]}', b"\xff"]
)
def test_a_damaged_file_is_set_aside(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "derived.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert read_derived(path) == {}
    assert (tmp_path / "derived.json.unreadable").read_bytes() == content
    assert len(caplog.messages) == 1
    write_derived(path, {"a": Derived(name="a", base="b")})
    assert json.loads(path.read_bytes())["models"][0]["base"] == "b"
