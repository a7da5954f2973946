"""What is said about a name that nobody knows."""

from __future__ import annotations

from appliance.core.near_names import LONGEST, meant_or_all, near


def test_one_that_looks_like_it():
    assert near("Read-File", ["read_file", "write_file"]) == "read_file"
    assert near("raed_file", ["read_file", "write_file"]) == "read_file"
    assert near("weather", ["read_file"]) is None


def test_a_name_made_to_be_compared_for_long_is_like_none():
    known = ["a" * LONGEST]
    assert near("a" * LONGEST, known) == known[0]
    assert near("a" * (LONGEST + 1), known) is None
    assert near("a" * 50_000_000, known) is None


def test_many_known_names_are_not_all_told():
    assert meant_or_all("x", ["one", "two"]) == "; there are one, two"
    many = [f"name{n:04}" for n in range(3000)]
    told = meant_or_all("x", many)
    assert told.endswith("name0049 and 2950 more")
    assert len(told) < 1000
