"""Commands as words, in both dialects: laws against the standard library, tables for the corners."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from appliance.core.command_words import split_command, strip_comments

SPECIAL = st.text(alphabet=" \t\n\\'\"$`#ab", max_size=24)
ANY_WORD = st.text(alphabet=st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=12)
ODD_WORD = st.text(alphabet=" \t\r\\'\"$`#ab*", max_size=8)


@given(st.lists(ANY_WORD | ODD_WORD, max_size=6))
def test_quoted_words_come_back(words: list[str]) -> None:
    assert split_command(shlex.join(words), windows=False) == words


ESCAPE = st.sampled_from(" \t\\'\"#ab").map("\\{}".format)
PIECE = (
    st.sampled_from(" \t$`#ab")
    | ESCAPE
    | st.text(alphabet=' \t\\"$`#ab', max_size=6).map("'{}'".format)
    | st.lists(st.sampled_from(" \t'$`#ab") | ESCAPE, max_size=6).map("".join).map('"{}"'.format)
)


@given(st.lists(PIECE, max_size=8).map("".join))
def test_posix_is_shlex_where_both_are_defined(line: str) -> None:
    assume(not line.lstrip().startswith("#") and not line.rstrip().endswith("\\"))
    assume("\\$" not in line and "\\`" not in line)  # shlex does not know these two escapes
    assert split_command(line, windows=False) == shlex.split(line)


WINDOWS_WORD = st.text(alphabet=" \t\\\"'#a$", max_size=8) | st.text(
    alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12
)


@given(WINDOWS_WORD.filter(lambda word: not word.startswith("#")), st.lists(WINDOWS_WORD, max_size=5))
def test_windows_round_trips_through_list2cmdline(program: str, words: list[str]) -> None:
    line = subprocess.list2cmdline([program, *words])
    assume(not line.strip().startswith("#"))
    assume(not line.strip().endswith("\\"))  # that is a continued line in a configuration
    assert split_command(line, windows=True) == [program, *words]


@given(SPECIAL, st.booleans())
def test_comments_may_be_stripped_before(text: str, windows: bool) -> None:
    assert split_command(strip_comments(text), windows=windows) == split_command(text, windows=windows)


@given(SPECIAL, st.booleans())
def test_every_text_splits(text: str, windows: bool) -> None:
    words = split_command(text, windows=windows)
    assert set("".join(words)) <= {*text, " "}  # a continued line adds a space, nothing else is made up


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \n\t ", []),
        ("# only this", []),
        ("'a b", ["a b"]),
        ('a "b c ', ["a", "b c "]),
        ("'", [""]),
        (r'"\$\`\"\\\a\n"', [r'$`"\\a\n']),
        ("a\rb", ["a\rb"]),
        ("a $HOME *.gguf | tee ~ # no", ["a", "$HOME", "*.gguf", "|", "tee", "~", "#", "no"]),
        ("a\\", ["a"]),
        ('a"b\\', ["ab "]),
        ("run \\\n  --port 1 \\\n  --x", ["run", "--port", "1", "--x"]),
        ("run\n  # not this: it's open\n  --port 1", ["run", "--port", "1"]),
        ("run \\\n# gone\n-m 'a b'\n", ["run", "-m", "a b"]),
        ("join\\\ned", ["join", "ed"]),  # the line's backslash becomes a space
        ("x \\\\\ny", ["x", " ", "y"]),  # one backslash becomes a space, which the other escapes
        ('--json \'{"a": [1, "b c"]}\'', ["--json", '{"a": [1, "b c"]}']),
        ("'a\n  #b\nc'", ["a\nc"]),  # lines come first, quotes second
    ],
)
def test_posix(text: str, words: list[str]) -> None:
    assert split_command(text, windows=False) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("'a b'", ["'a", "b'"]),
        ("a\r\nb\tc", ["a", "b", "c"]),
        (r"C:\dir\llama-server.exe -m D:\m.gguf", [r"C:\dir\llama-server.exe", "-m", r"D:\m.gguf"]),
        (r'"C:\Program Files\x\\" y', ["C:\\Program Files\\x\\", "y"]),
        (r'a\\"b c"', ["a\\b c"]),
        ('"a""b"', ['a"b']),
        ('""""', ['"']),
        ('"open  end ', ["open  end "]),
        ('"""x"""  b', ['"x"', "b"]),
        ("run ^\n# gone\n--port 1", ["run", "^", "--port", "1"]),
        ("run \\\n --port 1", ["run", "--port", "1"]),
    ],
)
def test_windows(text: str, words: list[str]) -> None:
    assert split_command(text, windows=True) == words


def test_only_comment_lines_go() -> None:
    assert strip_comments("a \\\n  # b\n c # d\n#\n") == "a \\\n c # d\n"
