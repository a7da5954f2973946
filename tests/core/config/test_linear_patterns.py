"""Expressions of the configuration: RE2's, in linear time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.scalars import MAX_PATTERN, BadRegex, check_pattern, is_found


@pytest.mark.parametrize("pattern", ["^/(a+)+$", "(a|a)*$", "(.*a){20}b", r"^(\w+\s?)*$"])
def test_no_expression_makes_it_try_one_way_after_the_other(pattern: str):
    began = time.process_time()
    assert not is_found(pattern, "/" + "a" * 60_000 + "!") or pattern == "(a|a)*$"
    assert time.process_time() - began < 2


@given(st.from_regex(r"[ab.]{0,3}(\[ab\]|\(a\|b\)|[ab])[*+?]?[$]?", fullmatch=True), st.text("ab/", max_size=8))
def test_it_finds_what_pythons_engine_finds(pattern: str, text: str):
    assert is_found(pattern, text) == (re.search(pattern.replace("$", r"\Z"), text) is not None)


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "(?=a)", "(?<!a)b", "a{1001}", "x" * (MAX_PATTERN + 1)])
def test_what_it_does_not_know_is_refused(pattern: str):
    with pytest.raises(BadRegex):
        check_pattern(pattern)


def test_classes_mean_what_they_mean_in_llama_swap():
    assert is_found("^[[:alpha:]]+$", "abc")
    assert not is_found("^[[:alpha:]]+$", "ab1")
