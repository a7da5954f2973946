"""What clients write around a name, and the rules of aliases and of the fallback."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.types import Config, Profile
from appliance.core.models.model import Model
from appliance.core.models.names import MAX_MEANINGS, ModelNames, Named, meanings
from appliance.errors import UsageError
from appliance.features.names.rules import read_aliases, takes_fallback, with_aliases

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


FEW = st.sampled_from("abcdef")
CHATS = (
    "/v1/chat/completions", "/chat/completions", "/v/chat/completions", "/v1/completions", "/completion", "/infill",
    "/v1/messages", "/v1/responses", "/v1/messages/count_tokens", "/v1/responses/input_tokens", "/tokenize",
)  # fmt: skip
OTHERS = (
    "/v1/embeddings", "/embeddings", "/embedding", "/rerank", "/v1/rerank", "/v1/reranking", "/v1/audio/speech",
    "/v1/audio/transcriptions", "/props", "/slots/:id", "/upstream/", "/lora-adapters",
)  # fmt: skip


def model(name: str, *aliases: str, repo: str | None = None) -> Model:
    return Model(id=name, source="models_dir", aliases=aliases, hf_repo=repo)


@given(st.sets(FEW), st.dictionaries(FEW, FEW))
def test_an_alias_belongs_to_one_model_or_has_a_note(ids: set[str], aliases: dict[str, str]) -> None:
    named, notes = with_aliases([model(name) for name in sorted(ids)], aliases)
    assert [one.id for one in named] == sorted(ids)
    given_names = [(alias, one.id) for one in named for alias in one.aliases]
    assert all(aliases[alias] == owner for alias, owner in given_names)
    assert not {alias for alias, _ in given_names} & ids, "a model's real name stays its own"
    silent = [name for name, meant in aliases.items() if name == meant and name in ids]
    assert len(given_names) + len(notes) + len(silent) == len(aliases)


def test_an_alias_may_name_a_repository_and_letters_in_other_case() -> None:
    models = [model("acme/Tiny-GGUF:Q8_0", repo="acme/Tiny-GGUF"), model("big", "huge")]
    named, notes = with_aliases(models, {"gpt-4o": "acme/tiny-gguf", "claude": "HUGE", "huge": "big"})
    assert [one.aliases for one in named] == [("gpt-4o",), ("huge", "claude")]
    assert notes == []


def test_notes_say_what_to_do() -> None:
    _, notes = with_aliases([model("qwen3")], {"a": "qwen4", "qwen3": "b", "c": "box/x"}, {"box/x"})
    assert "there is no model 'qwen4'" in notes[0]
    assert "qwen3" in notes[0]
    assert "give the alias another name" in notes[1]
    assert "write a selector" in notes[2]


@pytest.mark.parametrize("word", ["", "a", "=b", "a=", " = ", "a\nb=c"])
def test_a_flag_that_cannot_be_read_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="NAME=MODEL"):
        read_aliases([word])


def test_a_flag_that_is_given_twice_has_to_say_the_same() -> None:
    assert read_aliases([" a = b=c ", "a=b=c"]) == {"a": "b=c"}
    with pytest.raises(UsageError, match="leave one of them out"):
        read_aliases(["a=b", "a=c"])


@pytest.mark.parametrize("route", CHATS)
def test_chats_take_the_fallback(route: str) -> None:
    assert takes_fallback("gpt-4o", route, Config())
    assert takes_fallback("openai/gpt-4o", route, Config()), "nobody downloads, and no file is named"


@pytest.mark.parametrize("route", OTHERS)
def test_nothing_else_takes_it(route: str) -> None:
    assert not takes_fallback("gpt-4o", route, Config())


def test_a_name_that_looks_like_a_download_does_not_take_it() -> None:
    route = CHATS[0]
    assert not takes_fallback("acme/tiny-GGUF:Q8_0", route, Config())
    assert not takes_fallback("openai/gpt-4o", route, Config(auto_download="ask"))
    assert takes_fallback("gpt-4o", route, Config(auto_download="allow"))
    assert not takes_fallback("off", route, Config(profiles={"night": Profile(pins={"off": None})}))
