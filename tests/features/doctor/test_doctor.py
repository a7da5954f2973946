"""Facts in, findings out: each case differs from a healthy machine in one thing."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import click
import msgspec
import pytest
from doctor_cases import (
    CASES,
    LAVAPIPE,
    NOW,
    ON_CARD,
    ON_CPU,
    PCI,
    SHAPES,
    URL,
    VULKAN_BUILD,
    WELL,
    config,
    facts,
    lately,
    probation,
    proof,
    ranked,
    running,
)
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, structs

from appliance.cli.app import command_line
from appliance.core.config.nodes import Position
from appliance.core.examination import Examiner, OwnFacts
from appliance.core.findings import SHOWN, Finding, some
from appliance.feature import verb_ground
from appliance.features import FEATURES
from appliance.features.doctor.core.diagnose import diagnose, headlines, told
from appliance.features.doctor.core.facts import Examined, Facts, read_examined
from appliance.features.doctor.core.findings import changes, dated, is_wrong

ROOT = Path(__file__).parents[3]
EXAMINERS = [Examiner(part="", facts=shape) for shape in SHAPES if issubclass(shape, OwnFacts)]


def said(finding: Finding) -> str:
    return "\n".join((finding.title, *finding.evidence, finding.advice, *finding.commands))


def test_a_healthy_machine_has_nothing_at_all() -> None:
    assert diagnose(WELL) == []
    assert [gpu.name for gpu in WELL.known.gpus] == ["Test Card 9000"]
    assert structs.replace(WELL.known, look=None).gpus == ()


@pytest.mark.parametrize("kind", ["failed", "refused"])
@pytest.mark.parametrize(("ended", "count", "is_said"), [(50, 5, True), (51, 5, False), (4, 4, False), (5, 5, True)])
def test_a_part_of_the_requests_has_to_fail_and_more_than_a_few(
    kind: str, ended: int, count: int, is_said: bool
) -> None:
    known = lately(requests={"model": "qwen", "last": "odd", "ended": ended, "failed": 0, "refused": 0, kind: count})
    assert [finding.id for finding in diagnose(known)] == [f"requests-{kind.replace('failed', 'fail')}"] * is_said


@pytest.mark.parametrize(
    ("id", "severity", "changed", "words"), CASES, ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)]
)
def test_each_fault_is_found_with_its_evidence(id: str, severity: str, changed: Facts, words: str) -> None:
    found = [finding for finding in diagnose(changed) if finding.id == id]
    assert [finding.severity for finding in found] == [severity]
    assert words in said(found[0])


@pytest.mark.parametrize("changed", [case[2] for case in CASES], ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)])
def test_every_command_can_be_typed(changed: Facts) -> None:
    for finding in diagnose(changed):
        for command in finding.commands:
            words = shlex.split(command)
            if words[0] == "llama-appliance":
                check_command(words[1:])


def check_command(words: list[str]) -> None:
    """The verb is there, and takes the options."""
    group: click.Command = command_line(verb_ground(FEATURES))
    while isinstance(group, click.Group) and words:
        inner = group.get_command(click.Context(group), words[0])
        assert inner is not None, words
        group, words = inner, words[1:]
    known = {name for parameter in group.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known, words


def test_every_topic_is_covered() -> None:
    topics = [[list(findings) for _, findings in told(case[2])] for case in CASES]
    assert len(topics[0]) >= 30
    assert all(map(any, zip(*topics, strict=True)))


@pytest.mark.parametrize(
    ("number", "told"), [(0, 0), (1, 1), (SHOWN, SHOWN), (SHOWN + 1, SHOWN + 1), (SHOWN + 2, SHOWN + 1)]
)
def test_of_many_lines_the_first_are_told_and_the_number_of_the_others(number: int, told: int) -> None:
    lines = [f"line {at}" for at in range(number)]
    found = some(lines)
    assert len(found) == told
    assert list(found[:SHOWN]) == lines[:SHOWN]
    assert found[SHOWN:] in ((), tuple(lines[SHOWN:]), (f"and {number - SHOWN} more",))


def test_what_is_over_is_not_told() -> None:
    book = {
        "proofs": (proof(at=NOW - 90000), proof(build=VULKAN_BUILD)),
        "probations": (probation(until=NOW - 1),),
    }
    assert diagnose(facts(state=book)) == []


def test_software_that_draws_is_told_only_where_nothing_better_is() -> None:
    software = ranked(VULKAN_BUILD, LAVAPIPE)
    for number in range(4):
        for seats in permutations((software, ON_CARD, ON_CPU), number):
            told = "software-renderer" in {finding.id for finding in diagnose(facts(ranked=seats))}
            assert told == (software in seats and ON_CARD not in seats)


def test_a_processor_that_has_no_name_is_the_processor() -> None:
    for cpu in ("", "Old CPU"):
        found = diagnose(facts(look={"cpu": cpu, "cpu_features": ("avx",), "cpu_level": "x86-64-v2"}))
        assert f"{cpu or 'the processor'}: x86-64-v2" in "".join(map(said, found))


def test_the_gravest_comes_first() -> None:
    ill = facts(look={"cores": 2}, config=config("error"), named_engine="x", trouble={"a": ""})
    order = ["error", "warning", "note"]
    severities = [order.index(finding.severity) for finding in diagnose(ill)]
    assert severities == sorted(severities)
    assert set(severities) == {0, 1, 2}


def test_notes_are_nothing_wrong() -> None:
    assert not is_wrong(diagnose(facts(look={"cores": 2})))
    assert is_wrong(diagnose(facts(look={"problems": ("x",)})))


WORDS = ("", " ", "\n", "two\nlines", "vulkan", "cuda13", "cpu", "amd", "580.65", "1.x", "CPU", "c1", "-1", "²")
TEXTS = st.sampled_from((*WORDS, PCI, URL))
MAPPINGS = st.dictionaries(st.sampled_from(("vulkan", "CUDA_VISIBLE_DEVICES", "qwen", "")), TEXTS, max_size=2)
ATOMS: dict[object, st.SearchStrategy[object]] = {
    str: TEXTS,
    int: st.one_of(st.integers(-1, 10), st.integers(0, 1 << 45)),
    float: st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from((NOW, NOW - 100, NOW + 100)),
    bool: st.booleans(),
    type(None): st.none(),
}


def any_of(kind: object) -> st.SearchStrategy[object]:
    """Every field is drawn, also those with a default; words are such as the rules look for."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in ATOMS:
        return ATOMS[kind]
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple and inner[-1] is not ...:
        return st.tuples(*(any_of(one) for one in inner))
    if origin is tuple:
        return st.lists(any_of(inner[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return MAPPINGS
    if inner:
        return st.one_of(*(any_of(one) for one in inner))
    assert isinstance(kind, type)
    assert issubclass(kind, Struct)
    hints = get_type_hints(kind)
    drawn = [any_of(hints[name]) for name in kind.__struct_fields__]
    return st.tuples(*drawn).map(
        lambda values: (
            kind(**dict(zip(kind.__struct_fields__, values, strict=True))) if kind is not Position else kind(*values)
        )
    )


ANY_FACTS = st.tuples(*map(any_of, SHAPES)).map(lambda drawn: Facts(drawn[0], tuple(drawn[1:])))


@given(drawn=ANY_FACTS)
def test_it_never_fails_and_always_says_why_and_what_to_do(drawn: Facts) -> None:
    for finding in diagnose(drawn):
        assert finding.evidence, finding
        assert all(line.strip() for line in finding.evidence), finding
        assert finding.advice or finding.commands
        assert finding.title
        assert all(len(line.splitlines()) == 1 for line in (finding.title, *finding.evidence, *finding.commands))
    assert all("\n" not in value for _, value in headlines(drawn))


@given(drawn=ANY_FACTS)
def test_what_a_server_examines_reaches_a_command_whole(drawn: Facts) -> None:
    examined = Examined(ok=True, findings=tuple(diagnose(drawn)), facts=drawn)
    assert read_examined(msgspec.json.encode(examined.told()), EXAMINERS) == examined


SOME = st.lists(st.sampled_from([case[2] for case in CASES]), max_size=2).map(
    lambda drawn: tuple(dict.fromkeys(finding for one in drawn for finding in diagnose(one)))
)


@given(before=SOME, after=SOME)
def test_a_finding_keeps_its_time_for_as_long_as_it_stays(before: Sequence[Finding], after: Sequence[Finding]) -> None:
    found = dated(after, dated(before, (), 1.0), 2.0)
    came, went = changes(before, found)
    old = {(one.id, one.title) for one in before}
    assert [one.since for one in found] == [1.0 if (one.id, one.title) in old else 2.0 for one in found]
    assert [one for one in found if one.since == 2.0] == came
    assert {(one.id, one.title) for one in went} == old - {(one.id, one.title) for one in found}


def test_other_evidence_makes_no_other_finding() -> None:
    (before,) = diagnose(facts(server=running(layers=(20, 33))))
    (after,) = diagnose(facts(server=running(layers=(21, 33))))
    assert before.evidence != after.evidence
    assert changes([before], [after]) == ([], [])
    assert dated([after], dated([before], (), 1.0), 2.0)[0].since == 1.0


def test_every_finding_is_documented_and_those_of_these_facts_have_a_case() -> None:
    documented = (ROOT / "docs" / "doctor.md").read_text("utf-8")
    made = re.compile(r'\b(?:found\(\s*[^\n]+,|(?:error|warning|note)\()\s*"([a-z0-9-]+)"')
    cases = {case[0] for case in CASES}
    folders = {Path(inspect.getfile(of)).parent for of in (diagnose, *SHAPES)}
    ids: set[str] = set()
    for path in (ROOT / "appliance").rglob("*.py"):
        if "appliance.core.findings" in (text := path.read_text("utf-8")):
            ids |= (found := set(made.findall(text)))
            assert path.parent not in folders or found <= cases
    assert len(ids & cases) >= 40
    assert {id for id in ids | cases if f"`{id}`" not in documented} == set()
