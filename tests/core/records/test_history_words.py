"""The timeline: every kind of entry in words."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.core.records.history import KINDS, Happening, Kind, happenings, refusal
from appliance.core.records.history_words import sentence, told
from appliance.core.scheduling.effects import OUTDATED, Cause, Refuse, Rule, Start, Stop
from appliance.errors import ModelFailedToStart

GIB = 1 << 30
VULKAN, CPU = "linux-x64-vulkan/b11434:Vulkan0", "linux-x64-cpu/b11434:CPU"


def happened(kind: Kind, **known: Any) -> Happening:
    return Happening(kind=kind, model="qwen", **known)


def gone(rule: Rule, **known: Any) -> Happening:
    return happenings([Stop("qwen", Cause(rule=rule, **known))])[0]


GEMMA = {"by": "gemma", "idle": 3}
LRU = {"by": "gemma", "idle": 720, "longest_idle": True, "short": {"Vulkan0": 6 * GIB}}
OTHERS = {"idle": 3, "short": {"ram": GIB, "gpu0": 2 * GIB}}
BROKE = ModelFailedToStart("qwen", "it broke", ("a line",))
MOVED = {"engine": VULKAN, "following": CPU, "error": "it died"}
SENTENCES = [
    (happened("loading", requests=1), "qwen is loaded: 1 request waits for it"),
    (happened("loading", requests=3, seconds=61), "qwen is loaded: 3 requests wait for it, the first for 61 s"),
    (happened("loaded", seconds=4.24, engine=CPU), f"qwen was ready after 4.2 s on {CPU}"),
    (gone("memory", **LRU), "qwen went for gemma: least recently used, idle 12 min, 6.0 GiB of Vulkan0 were short"),
    (gone("number", **GEMMA, most=1), "qwen went for gemma: 1 model may run at once, idle 3 s"),
    (gone("group", **GEMMA, set="big"), "qwen went for gemma: the group 'big' does not let both run, idle 3 s"),
    (gone("matrix", **GEMMA, set="chat"), "qwen went for gemma: the set 'chat' is without it, idle 3 s"),
    (gone("matrix", **GEMMA), "qwen went for gemma: no set of the matrix has both, idle 3 s"),
    (
        gone("squeeze", **OTHERS),
        "qwen was stopped: other programs took memory, idle 3 s, 1.0 GiB of ram and 2.0 GiB of gpu0 were short",
    ),
    (gone("idle", idle=300), "qwen was stopped: its time without a request was over, idle 5 min"),
    (gone("asked", leases=2), "qwen was stopped: somebody unloaded it, 2 requests still used it"),
    (gone("shutdown"), "qwen was stopped: the program ended"),
    (happenings([Stop("qwen", OUTDATED)])[0], "qwen was stopped: its settings or files have changed"),
    (gone("removed"), "qwen was stopped: there is no such model any more"),
    (gone("moved", note="a, not b"), "qwen was stopped: another engine is better for it, a, not b"),
    (gone("condemned", note="3 answers were of no use"), "qwen was stopped: 3 answers were of no use"),
    (gone("hung", note="it hangs", leases=1), "qwen was stopped: it hangs, 1 request still used it"),
    (refusal("qwen", BROKE), "1 request for qwen was refused: model 'qwen' failed to start: it broke"),
    (refusal("qwen", BROKE, 2), "2 requests for qwen were refused: model 'qwen' failed to start: it broke"),
    (
        happened("fallback", **MOVED, reason="continued"),
        f"a request for qwen was continued on {CPU}, because {VULKAN} failed: it died",
    ),
    (
        happened("fallback", **MOVED, reason="started"),
        f"qwen was started on {CPU}, because it did not start on {VULKAN}: it died",
    ),
    (happened("failed", error="it broke"), "qwen did not start: it broke"),
    (happened("crashed", engine=CPU, error="killed by SIGSEGV"), f"qwen died on {CPU}: killed by SIGSEGV"),
    (happened("engine", engine=CPU, following=VULKAN, error="proven"), f"{VULKAN} is used instead of {CPU}: proven"),
    (
        happened("reload", what="configuration", reason="file", changed=("a", "b")),
        "the configuration was read again; processes out of date: a, b (a file has changed)",
    ),
    (
        happened("reload", what="presets", reason="signal", error="line 3: no such key"),
        "the presets were not read again, and nothing changes: line 3: no such key (SIGHUP asked for it)",
    ),
]


@pytest.mark.parametrize(("entry", "expected"), SENTENCES)
def test_an_entry_in_words(entry: Happening, expected: str) -> None:
    assert sentence(entry) == expected
    assert told(entry)["why"] == expected


def test_every_kind_has_words() -> None:
    assert {entry.kind for entry, _ in SENTENCES} == {*KINDS}


def test_requests_that_one_decision_refuses_share_an_entry() -> None:
    one, other = ModelFailedToStart("a", "it broke"), ModelFailedToStart("b", "it broke")
    effects = [Refuse(1, "a", one), Refuse(2, "b", other), Start("c", 2, 5.0), Refuse(3, "a", one)]
    assert [(entry.kind, entry.model, entry.requests) for entry in happenings(effects)] == [
        ("loading", "c", 2),
        ("refused", "a", 2),
        ("refused", "b", 1),
    ]
