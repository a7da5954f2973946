"""llama-server's option table against the real binary's --help, and the laws of reading a command line."""

from __future__ import annotations

import re
import subprocess
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from needs import compiled

from appliance.core.llama import flags as llama_flags
from appliance.core.llama.flags import FLAGS, Flag, Kind
from appliance.errors import UsageError

USABLE = [flag for flag in FLAGS if flag.kind is not Kind.REMOVED]


def words_of(flag: Flag) -> st.SearchStrategy[list[str]]:
    value = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
    spelling = st.sampled_from([*flag.spellings, *flag.negatives])
    return st.tuples(spelling, st.lists(value, min_size=flag.arity, max_size=flag.arity)).map(lambda t: [t[0], *t[1]])


command_lines = st.lists(st.sampled_from(USABLE).flatmap(words_of), max_size=12)


@given(command_lines)
def test_a_command_line_is_read_and_written_back_unchanged(occurrences: list[list[str]]) -> None:
    argv = [word for words in occurrences for word in words]
    options = llama_flags.split(argv)
    assert llama_flags.render(options) == argv
    assert [(option.flag, list(option.values)) for option in options] == [(w[0], w[1:]) for w in occurrences]


@given(command_lines, st.sets(st.sampled_from(USABLE)))
def test_partition_loses_nothing_and_takes_any_spelling(occurrences: list[list[str]], chosen: set[Flag]) -> None:
    options = llama_flags.split([word for words in occurrences for word in words])
    mine, rest = llama_flags.partition(options, {flag.spellings[0] for flag in chosen})
    names = {flag.name for flag in chosen}
    assert [o for o in options if o.canonical in names] == mine
    assert [o for o in options if o.canonical not in names] == rest


def test_every_spelling_belongs_to_one_option() -> None:
    spellings = [word for flag in FLAGS for word in (*flag.spellings, *flag.negatives)]
    assert len(spellings) == len(set(spellings))
    assert all(word.startswith("-") and "_" not in word for word in spellings)


def test_underscores_and_negatives_and_former_spellings() -> None:
    options = llama_flags.split(["--n_gpu_layers", "3", "--no-webui", "--no-mmap"])
    assert [(o.canonical, o.values, o.on) for o in options] == [
        ("--n-gpu-layers", ("3",), True),
        ("--webui", (), False),
        ("--load-mode", ("none",), True),
    ]
    assert llama_flags.render(options) == ["--n_gpu_layers", "3", "--no-webui", "--load-mode", "none"]


def test_a_value_may_look_like_a_flag() -> None:
    (option,) = llama_flags.split(["--n-predict", "-1"])
    assert option.values == ("-1",)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--nonsense"], "--nonsense"),
        (["--prt", "1"], "did you mean --port"),
        (["--port=8080"], "--port VALUE"),
        (["model.gguf"], "'model.gguf'"),
        (["-c"], "-c needs a value"),
        (["--control-vector-layer-range", "1"], "needs two values"),
        (["--draft-max", "8"], "use --spec-draft-n-max"),
    ],
)
def test_what_cannot_be_read_is_named(argv: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        llama_flags.split(argv)


def test_the_environment_sets_options_and_the_command_line_beats_it() -> None:
    environ = {
        "LLAMA_ARG_CTX_SIZE": "512",
        "LLAMA_ARG_ENDPOINT_METRICS": "1",
        "LLAMA_ARG_ENDPOINT_PROPS": "0",  # a switch that is not on says nothing
        "LLAMA_ARG_JINJA": "off",
        "LLAMA_ARG_NO_CONT_BATCHING": "",  # the older form counts by being there
        "LLAMA_API_KEY": "secret",
        "PATH": "/bin",
    }
    found = llama_flags.from_env(environ)
    assert {(o.canonical, o.values, o.on) for o in found} == {
        ("--ctx-size", ("512",), True),
        ("--metrics", (), True),
        ("--jinja", (), False),
        ("--cont-batching", (), False),
        ("--api-key", ("secret",), True),
    }
    assert llama_flags.split(llama_flags.render(found))[0].values == ("512",)
    merged = llama_flags.merge(llama_flags.split(["-c", "256"]), found)
    size = llama_flags.last(merged, "-c")
    assert (size.flag, size.values) == ("-c", ("256",))
    assert [o for o in merged if o.canonical == "--ctx-size"] == [size]


@pytest.mark.parametrize("environ", [{"LLAMA_ARG_JINJA": "perhaps"}, {"LLAMA_ARG_DRAFT_MAX": "8"}])
def test_an_unusable_variable_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(environ))):
        llama_flags.from_env(environ)


class Helped(NamedTuple):
    """One option as --help prints it."""

    spellings: list[str]
    takes: str
    env: str | None


def read_help(text: str) -> list[Helped]:
    """Options start in the first column; a value's name follows after one space, the description after two or more."""
    found: list[Helped] = []
    word = r"-{1,2}[A-Za-z0-9][A-Za-z0-9.\-]*"
    for entry in re.split(r"\n(?=-{1,2}[a-zA-Z])", text):
        head = entry.splitlines()[0] if entry else ""
        start = re.match(rf"({word}(?:,\s+{word})*)( \S.*)?", head)
        if start is None or head.startswith("-----"):
            continue
        takes = re.split(r"\s{2,}", start[2] or "")[0].strip()
        if len(start[1]) == 39:  # a description that begins right behind a long row of spellings
            takes = ""
        env = re.search(r"\(env:\s+([A-Z0-9_]+)\)", entry)
        found.append(Helped(re.split(r",\s+", start[1]), takes, env[1] if env else None))
    return found


@pytest.fixture(scope="module")
def helped() -> list[Helped]:
    run = subprocess.run([next(compiled("cpu")), "--help"], capture_output=True, text=True, timeout=20, check=True)
    return read_help(run.stdout)


@pytest.mark.needs("cpu-build")
def test_the_table_knows_every_option_of_the_real_help(helped: list[Helped]) -> None:
    assert len(helped) > 240
    for option in helped:
        flags = {llama_flags.lookup(word) for word in option.spellings}
        assert len(flags) == 1, option
        (flag,) = flags
        assert flag is not None, option
        assert set(option.spellings) == {*flag.spellings, *flag.negatives}
        arity = 2 if option.takes == "START END" else int(bool(option.takes))
        assert flag.arity == arity, option
        if option.env is not None:
            assert flag.env == option.env
        if flag.negatives:
            assert flag.kind is Kind.TOGGLE
