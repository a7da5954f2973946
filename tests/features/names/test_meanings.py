"""What clients write around a name, over every way to combine it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.models.names import MAX_MEANINGS, ModelNames, Named, meanings

BEFORE = ("openai/", "ollama/", "ollama_chat/", "lm_studio/", "litellm_proxy/", "hosted_vllm/", "models/", "hf.co/")
BEHIND = ("[1m]", ":latest", ".gguf", "@20250514", "@latest")
NAMES = st.from_regex(r"[A-Za-z0-9][a-z0-9._-]{0,9}[A-Za-z0-9]", fullmatch=True)
AROUND = st.text(" \t\n", max_size=3)


@given(
    NAMES,
    st.lists(st.sampled_from(BEFORE), max_size=2, unique=True),
    st.lists(st.sampled_from(BEHIND), max_size=2, unique=True),
    AROUND,
    st.booleans(),
)
def test_a_name_is_understood_whatever_is_written_around_it(
    name: str, before: list[str], behind: list[str], around: str, big: bool
) -> None:
    written = around + "".join(before) + name + "".join(behind) + around
    found = meanings(written.upper() if big else written)
    known = ModelNames([Named(name)])
    assert name in {known.find(one) for one in found}
    assert found[0] == (written.upper() if big else written), "the exact name comes first"


@given(st.text(min_size=1, max_size=30), st.sampled_from(BEFORE), st.sampled_from(BEHIND))
def test_no_decoration_hides_a_name_that_looks_like_one(name: str, before: str, behind: str) -> None:
    assert name in meanings(before + name)
    assert name in meanings(name + behind)


@given(st.text(max_size=80) | st.text("models/@[1m].guf: ", max_size=80))
def test_meanings_are_shorter_parts_of_the_name_and_few(name: str) -> None:
    found = meanings(name)
    assert found[0] == name
    assert len(found) == len(set(found)) <= MAX_MEANINGS + 3
    for one in found:
        assert one in name, "nothing is invented"
    assert all(len(one) < len(name) for one in found[1:])


def test_a_name_of_many_decorations_stays_cheap() -> None:
    assert len(meanings("openai/" * 1000 + "x" + "@1" * 1000)) <= MAX_MEANINGS + 3


@pytest.mark.parametrize("name", ["qwen/qwen3-8b", "a@b/c", "x[1]", "llama:8b", "openai", "models/", "@v1"])
def test_a_name_without_decorations_means_itself_alone(name: str) -> None:
    assert [one for one in meanings(name) if one != name] == []
