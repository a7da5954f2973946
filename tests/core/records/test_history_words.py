"""The timeline: every kind of entry in words."""

from __future__ import annotations

import pytest

from appliance.core.records.history import (
    KINDS,
    Happening,
    happenings,
    refusal,
)
from appliance.core.records.history_words import sentence, told
from appliance.core.scheduling.effects import OUTDATED, Cause, Refuse, Start, Stop
from appliance.errors import ModelFailedToStart

GIB = 1 << 30
VULKAN, CPU = "linux-x64-vulkan/b11434:Vulkan0", "linux-x64-cpu/b11434:CPU"


def gone(cause: Cause) -> Happening:
    return happenings([Stop("qwen", cause)])[0]


SENTENCES = [
    (Happening(kind="loading", model="qwen", requests=1), "qwen is loaded: 1 request waits for it"),
    (
        Happening(kind="loading", model="qwen", requests=3, seconds=61),
        "qwen is loaded: 3 requests wait for it, the first for 61 s",
    ),
    (Happening(kind="loaded", model="qwen", seconds=4.24, engine=CPU), f"qwen was ready after 4.2 s on {CPU}"),
    (
        gone(Cause(rule="memory", by="gemma", idle=720, longest_idle=True, short={"Vulkan0": 6 * GIB})),
        "qwen went for gemma: least recently used, idle 12 min, 6.0 GiB of Vulkan0 were short",
    ),
    (gone(Cause(rule="number", by="gemma", idle=3, most=1)), "qwen went for gemma: 1 model may run at once, idle 3 s"),
    (
        gone(Cause(rule="group", by="gemma", set="big", idle=3)),
        "qwen went for gemma: the group 'big' does not let both run, idle 3 s",
    ),
    (
        gone(Cause(rule="matrix", by="gemma", set="chat", idle=3)),
        "qwen went for gemma: the set 'chat' is without it, idle 3 s",
    ),
    (gone(Cause(rule="matrix", by="gemma", idle=3)), "qwen went for gemma: no set of the matrix has both, idle 3 s"),
    (
        gone(Cause(rule="squeeze", idle=3, short={"ram": GIB, "gpu0": 2 * GIB})),
        "qwen was stopped: other programs took memory, idle 3 s, 1.0 GiB of ram and 2.0 GiB of gpu0 were short",
    ),
    (gone(Cause(rule="idle", idle=300)), "qwen was stopped: its time without a request was over, idle 5 min"),
    (gone(Cause(rule="asked", leases=2)), "qwen was stopped: somebody unloaded it, 2 requests still used it"),
    (gone(Cause(rule="shutdown")), "qwen was stopped: the program ended"),
    (gone(OUTDATED), "qwen was stopped: its settings or files have changed"),
    (gone(Cause(rule="removed")), "qwen was stopped: there is no such model any more"),
    (
        gone(Cause(rule="moved", note=f"{VULKAN} instead of {CPU}")),
        f"qwen was stopped: another engine is better for it, {VULKAN} instead of {CPU}",
    ),
    (gone(Cause(rule="condemned", note="3 answers were of no use")), "qwen was stopped: 3 answers were of no use"),
    (gone(Cause(rule="hung", note="it hangs", leases=1)), "qwen was stopped: it hangs, 1 request still used it"),
    (
        refusal("qwen", ModelFailedToStart("qwen", "it broke", ("a line",)), 2),
        "2 requests for qwen were refused: model 'qwen' failed to start: it broke",
    ),
    (
        Happening(kind="fallback", model="qwen", engine=VULKAN, following=CPU, error="it died", reason="continued"),
        f"a request for qwen was continued on {CPU}, because {VULKAN} failed: it died",
    ),
    (
        Happening(kind="fallback", model="qwen", engine=VULKAN, following=CPU, error="no memory", reason="started"),
        f"qwen was started on {CPU}, because it did not start on {VULKAN}: no memory",
    ),
    (Happening(kind="failed", model="qwen", error="it broke"), "qwen did not start: it broke"),
    (
        Happening(kind="crashed", model="qwen", engine=CPU, error="killed by SIGSEGV"),
        f"qwen died on {CPU}: killed by SIGSEGV",
    ),
    (
        Happening(kind="engine", engine=CPU, following=VULKAN, error="proven"),
        f"{VULKAN} is used instead of {CPU}: proven",
    ),
    (
        Happening(kind="reload", what="configuration", reason="file", changed=("a", "b")),
        "the configuration was read again; processes out of date: a, b (a file has changed)",
    ),
    (
        Happening(kind="reload", what="presets", reason="signal", error="line 3: no such key"),
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
