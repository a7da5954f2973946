"""Options and variables of the llama-server that the seeds describe: understood, or told to be without effect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.llama import flags
from appliance.core.llama.flags import FLAGS, Kind, explained
from appliance.errors import UsageError
from appliance.features.stand_in.core.older import modern_variables, modern_words


@pytest.mark.parametrize(
    ("words", "modern"),
    [
        ("-fa -m x", "-fa on -m x"),
        ("-m x --flash-attn", "-m x --flash-attn on"),
        ("-fa off", "-fa off"),
        ("--flash_attn auto -c 1", "--flash_attn auto -c 1"),
        ("--log-colors -v", "--log-colors on -v"),
        ("--draft 8 -c 1", "--spec-draft-n-max 8 -c 1"),
        ("--draft_max 8", "--spec-draft-n-max 8"),
        ("--draft-min 2 --draft-n-min 3", "--spec-draft-n-min 2 --spec-draft-n-min 3"),
        ("--lora-scaled a.gguf 0.5 -c 1", "--lora-scaled a.gguf:0.5 -c 1"),
        ("--lora-scaled a.gguf:0.5 -c 1", "--lora-scaled a.gguf:0.5 -c 1"),
        ("--lora-scaled C:\\a.gguf 1", "--lora-scaled C:\\a.gguf:1"),
        ("--control-vector-scaled v.gguf -1.5", "--control-vector-scaled v.gguf:-1.5"),
        ("--mlock --no-mmap -c 1", "-c 1 --load-mode mlock"),
        ("--mlock -c 1", "--mlock -c 1"),
        ("--model --mlock --no-mmap", "--model --mlock --no-mmap"),
        ("--alias -fa", "--alias -fa"),
    ],
)
def test_what_is_understood(words: str, modern: str) -> None:
    assert modern_words(words.split()) == (modern.split(), [])
    flags.split(modern.split())


@pytest.mark.parametrize(
    ("words", "left", "instead"),
    [
        ("--verbose-prompt -c 1", "-c 1", "--log-prompts-dir"),
        ("-c 1 -dkvc", "-c 1", "GET /slots"),
        ("--dump-kv-cache", "", "GET /slots"),
        ("-cd 512 -c 1", "-c 1", "--ctx-size"),
        ("--ctx-size-draft 512", "", "--ctx-size"),
    ],
)
def test_what_has_no_effect_is_told_with_what_there_is_instead(words: str, left: str, instead: str) -> None:
    modern, [note] = modern_words(words.split())
    assert modern == left.split()
    assert note.startswith(next(word for word in words.split() if word not in ("-c", "1")))
    assert "has no effect: " in note
    assert instead in note


USABLE = [flag for flag in FLAGS if flag.kind is not Kind.REMOVED and flag.arity < 2]
occurrences = st.sampled_from(USABLE).flatmap(
    lambda flag: st.sampled_from(flag.spellings).map(lambda word: [word, *["on"] * flag.arity])
)


@given(st.lists(occurrences, max_size=10))
def test_what_is_modern_stays(given_words: list[list[str]]) -> None:
    words = [word for option in given_words for word in option]
    assert modern_words(words) == (words, [])


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({"LLAMA_ARG_NO_WEBUI": "1"}, {"--webui": ()}),
        ({"LLAMA_ARG_MLOCK": "1"}, {"--load-mode": ("mlock",)}),
        ({"LLAMA_ARG_NO_MMAP": "true"}, {"--load-mode": ("none",)}),
        ({"LLAMA_ARG_NO_MMAP": "0"}, {}),
        ({"LLAMA_ARG_NO_MMAP": "1", "LLAMA_ARG_MLOCK": "1"}, {"--load-mode": ("mlock",)}),
        ({"LLAMA_ARG_MODEL_DRAFT": "d.gguf"}, {"--model-draft": ("d.gguf",)}),
        ({"LLAMA_ARG_MODEL_DRAFT": "d.gguf", "LLAMA_ARG_SPEC_DRAFT_MODEL": "n.gguf"}, {"--model-draft": ("n.gguf",)}),
        ({"LLAMA_ARG_DRAFT_P_MIN": "0.5"}, {"--draft-p-min": ("0.5",)}),
        ({"LLAMA_ARG_DRAFT_MAX": "8"}, {"--spec-draft-n-max": ("8",)}),
        ({"LLAMA_ARG_DRAFT_MIN": "2"}, {"--spec-draft-n-min": ("2",)}),
        ({"LLAMA_LOG_COLORS": "1"}, {"--log-colors": ("1",)}),
        ({"LLAMA_LOG_VERBOSITY": "4"}, {"--log-verbosity": ("4",)}),
        ({"LLAMA_LOG_PREFIX": "1", "LLAMA_LOG_TIMESTAMPS": "1"}, {"--log-prefix": (), "--log-timestamps": ()}),
    ],
)
def test_variables_of_earlier_releases(variables: dict[str, str], options: dict[str, tuple[str, ...]]) -> None:
    modern, notes = modern_variables({"HOME": "/x", **variables})
    assert notes == []
    found = flags.from_env(modern)
    assert {option.canonical: option.values for option in found} == options
    assert all(not option.on for option in found if option.canonical == "--webui")


def test_a_variable_without_effect_is_told_and_a_wrong_one_refused() -> None:
    _, [note] = modern_variables({"LLAMA_ARG_CTX_SIZE_DRAFT": "512"})
    assert note.startswith("LLAMA_ARG_CTX_SIZE_DRAFT has no effect: ")
    with pytest.raises(UsageError, match="LLAMA_ARG_MLOCK must be on or off, not 'maybe'"):
        modern_variables({"LLAMA_ARG_MLOCK": "maybe"})


def test_every_option_is_explained_in_one_line() -> None:
    for flag in FLAGS:
        text = explained(flag)
        assert all(word in text for word in (*flag.spellings, *flag.negatives, flag.env or ""))
        assert (1 < len(flag.words) <= 100) is (flag.kind is not Kind.REMOVED)
