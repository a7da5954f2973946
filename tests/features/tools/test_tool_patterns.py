"""Regular expressions as ECMAScript reads them, for two other engines."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.tools.core.patterns import MAX_REGEX as MAX_PATTERN
from appliance.features.tools.core.patterns import BadToolPattern, posix_pattern, python_pattern

CASES = [
    (r"\d+", "v42", True),
    (r"^\d+$", "٤٢", False),  # no digits in ECMAScript
    (r"\w", "é", False),
    (r"[\w-]+x", "a-x", True),
    (r"[^\d]", "7", False),
    (r"\bfoo\b", "a foo b", True),
    (r"\bfoo\b", "afoo", False),
    (r"(?:ab){2}", "abab", True),
    (r"a+?b", "aab", True),
    (r"\/\/ *TODO", "// TODO", True),
    (r"x\$", "x$", True),
    (r"end$", "the end", True),
    (r"[]x]", "x]", False),  # an empty class, then text
    (r"[\]x]", "]", True),
    (r"[[:digit:]]", "5", True),
    (r"a{,2}", "a{,2}", True),
    (r"{", "{", True),
    (r"\x41\u0042", "AB", True),
    (r"[&&]", "&", True),
    (r"[a-\x63]", "b", True),
    (r"[\^a]", "^", True),
    (r"a|b", "b", True),
    (r"[a^-]", "^", True),
    (r"\.", "x", False),
]


@pytest.mark.parametrize(("pattern", "text", "matches"), CASES)
def test_python_reads_it_so(pattern: str, text: str, matches: bool) -> None:
    assert (python_pattern(pattern, literal=False, ignore_case=False).search(text) is not None) is matches


@pytest.mark.skipif(sys.platform == "win32" and not shutil.which("grep"), reason="Windows comes without grep")
@pytest.mark.parametrize(("pattern", "text", "matches"), [case for case in CASES if "[]" not in case[0]])
def test_grep_reads_it_so(pattern: str, text: str, matches: bool) -> None:
    if pattern in (r"\w", r"^\d+$"):
        return  # what a letter is, is up to grep's locale
    words = ["grep", "-E", "-e", posix_pattern(pattern)]
    done = subprocess.run(words, input=f"{text}\n".encode(), capture_output=True, timeout=20, env={"LC_ALL": "C"})
    assert done.returncode == (0 if matches else 1), done.stderr


def test_lookbehind_and_names_are_python_s_too() -> None:
    assert python_pattern(r"(?<=a)(?<letter>b)", literal=False, ignore_case=False).search("ab")
    assert python_pattern("[^]", literal=False, ignore_case=False).search("\n")
    assert python_pattern("É", literal=False, ignore_case=True).search("é")


@pytest.mark.parametrize("pattern", ["(", "[a", "a)", "*a", "(?P<n>a)", "(?i)a", r"\8", "[z-a]", "[[:nope:]]", "a**"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadToolPattern, match="invalid regex"):
        python_pattern(pattern, literal=False, ignore_case=False)


@pytest.mark.parametrize("pattern", ["a(?=b)", "(?<!a)b", r"[\W]", "[^]", r"[!-\]]", r"[\--a]"])
def test_what_grep_cannot_do_is_named(pattern: str) -> None:
    with pytest.raises(BadToolPattern, match="runtime"):
        posix_pattern(pattern)


def test_a_pattern_has_an_end() -> None:
    with pytest.raises(BadToolPattern, match="the most is"):
        python_pattern("a" * (MAX_PATTERN + 1), literal=True, ignore_case=False)


@given(st.text(max_size=20), st.text(max_size=20))
def test_literal_text_is_found_where_it_is(pattern: str, text: str) -> None:
    assert (python_pattern(pattern, literal=True, ignore_case=False).search(text) is not None) is (pattern in text)


@given(st.text("ab()[]{}^$.|?*+\\-:=!<dwsWDSbBxuc01,", max_size=15))
def test_any_text_is_a_pattern_or_is_refused(pattern: str) -> None:
    for read in (lambda: python_pattern(pattern, literal=False, ignore_case=True), lambda: posix_pattern(pattern)):
        try:
            read()
        except BadToolPattern:
            pass
