"""``load-test``: many requests at once, and the figures of each model."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from program import StartServer

Verb = Callable[..., subprocess.CompletedProcess[str]]
LOAD = 0.5
PACE = 0.05


def test_models_are_asked_at_once_and_measured(serve_fake: StartServer, verb: Verb) -> None:
    server = serve_fake("--model", "other.gguf", FAKE_LOAD_DELAY=str(LOAD), FAKE_TOKEN_DELAY=str(PACE))

    def load_test(*words: str) -> subprocess.CompletedProcess[str]:
        return verb("load-test", *words, "--url", server.url)

    cold = load_test("small", "other", "--requests", "3", "--at-once", "2", "--max-tokens", "5", "--json")
    assert cold.returncode == 0, cold.stderr
    told = json.loads(cold.stdout)
    assert [(each["model"], each["requests"], each["failed"]) for each in told["models"]] == [
        ("small", 3, 0),
        ("other", 3, 0),
    ]
    requests = told["requests"]
    assert sorted(each["model"] for each in requests) == ["other"] * 3 + ["small"] * 3
    for each in requests:
        assert each["tokens"] == 5
        assert each["began"] + each["waited"] + PACE <= each["first"] + 0.001
        assert max(each["first"], each["began"] + each["waited"] + 5 * PACE) <= each["ended"] + 0.001
        assert under_way(requests, each["began"]) <= 2
    for each in told["models"]:
        assert each["waited"] >= LOAD, "the first request waited for the load"
        assert each["first_p95"] >= each["first_p50"] >= PACE
        assert 0 < each["tokens_per_second"] <= 2 / PACE
    assert max(under_way(requests, each["began"]) for each in requests) == 2

    warm = load_test("small", "--requests", "2")
    header, row = warm.stdout.splitlines()
    assert header.split()[:3] == ["MODEL", "REQUESTS", "FAILED"]
    assert row.split()[:3] == ["small", "2", "0"]
    assert row.split()[6] == "0.00", "a loaded model is not waited for"

    failed = load_test("small", "nobody", "--requests", "2")
    assert failed.returncode == 1
    assert [line.split()[:3] for line in failed.stdout.splitlines()[1:]] == [["small", "2", "0"], ["nobody", "2", "2"]]
    assert failed.stderr.count("nobody") >= 1
    assert len(failed.stderr.splitlines()) == 1, "the same error is said once"


def under_way(requests: list[dict[str, float]], at: float) -> int:
    return sum(each["began"] <= at < each["ended"] for each in requests)
