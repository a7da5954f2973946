"""Glob patterns against a plain recursive reading of the same rule, and against patterns made to be slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.tools.core.patterns import MAX_GLOB as MAX_PATTERN
from appliance.features.tools.core.patterns import Glob


def oracle(pattern: str, path: str) -> bool:
    """The rule as it is told, by trying everything."""
    if "/" not in pattern:
        return tried(pattern, path.rpartition("/")[2])
    whole = pattern if pattern.startswith(("**/", "/")) else f"**/{pattern}"
    return tried(whole.removeprefix("/"), path)


def tried(pattern: str, text: str, *, begins: bool = True) -> bool:
    """``begins``: a name begins here in the pattern."""
    if not pattern:
        return not text
    if begins and pattern.startswith("**/"):
        folders = [at for at in range(1, len(text) + 1) if text[at - 1] == "/"]
        return any(tried(pattern[3:], text[at:]) for at in (0, *folders))
    if pattern.startswith("**"):
        return any(tried(pattern[2:], text[at:], begins=False) for at in range(len(text) + 1))
    if pattern.startswith("*"):
        reach = len(text.partition("/")[0])
        return any(tried(pattern[1:], text[at:], begins=False) for at in range(reach + 1))
    if not text:
        return False
    return (pattern[0] == text[0] or (pattern[0] == "?" and text[0] != "/")) and tried(
        pattern[1:], text[1:], begins=pattern[0] == "/"
    )


@given(st.text("ab/*?", max_size=8), st.text("ab/", max_size=8))
def test_a_pattern_matches_what_trying_everything_finds(pattern: str, path: str) -> None:
    assert Glob(pattern).matches(path) == oracle(pattern, path)


MEMBERS = st.characters(min_codepoint=0x20, max_codepoint=0x2100, exclude_characters="]-^!")


@given(st.sampled_from(("", "!", "^")), st.lists(st.tuples(MEMBERS, st.none() | MEMBERS), min_size=1), MEMBERS)
def test_a_set_has_its_members_and_never_a_slash(sign: str, ranges: list[tuple[str, str | None]], char: str) -> None:
    members = "".join(first if last is None else f"{first}-{last}" for first, last in ranges)
    inside = any(first <= char <= (last or first) for first, last in ranges)
    expected = inside is not bool(sign) and char != "/"
    assert Glob(f"/[{sign}{members}]x").matches(f"{char}x") == expected


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.cpp", "src/deep/main.cpp", True),
        ("src/*.py", "a/src/x.py", True),
        ("src/**/*.py", "src/x.py", True),
        ("src/**x.py", "src/b/x.py", True),
        ("**/src/*.py", "a/src/b/x.py", False),
        ("src/**/b", "src/ab", False),
        ("/a/*", "b/a/b", False),
        ("[]]", "]", True),
        ("[x", "[x", True),
        ("[a-]", "-", True),
    ],
)
def test_by_example(pattern: str, path: str, expected: bool) -> None:
    assert Glob(pattern).matches(path) is expected


def test_no_pattern_is_slow() -> None:
    glob = Glob("*a" * 400 + "b")
    assert not glob.matches("a" * 5000)  # takes for ever by trying


def test_a_pattern_has_an_end() -> None:
    with pytest.raises(ValueError, match="the most is"):
        Glob("x" * (MAX_PATTERN + 1))
