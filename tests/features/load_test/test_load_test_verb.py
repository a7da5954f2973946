"""``load-test`` of a running server: what it counts, and what it says of requests that fail."""

from __future__ import annotations

import re

import pytest
from command_line import Command
from serving import Serve


def test_load_test(command: Command, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    load, pace = 0.5, 0.05
    monkeypatch.setenv("FAKE_LOAD_DELAY", str(load))
    monkeypatch.setenv("FAKE_TOKEN_DELAY", str(pace))
    cli = command.at(serve().url)
    told = cli.json("load-test", "alpha", "beta", "--requests", "3", "--at-once", "2", "--max-tokens", "5")
    assert [(each["model"], each["requests"], each["failed"]) for each in told["models"]] == [
        *(("alpha", 3, 0), ("beta", 3, 0))
    ]
    requests = told["requests"]
    assert sorted(each["model"] for each in requests) == ["alpha"] * 3 + ["beta"] * 3
    for each in requests:
        assert each["tokens"] == 5
        assert each["began"] + each["waited"] + pace <= each["first"] + 0.001
        assert max(each["first"], each["began"] + each["waited"] + 5 * pace) <= each["ended"] + 0.001
    for each in told["models"]:
        assert each["waited"] >= load, "the first request waited for the load"
        assert each["first_p95"] >= each["first_p50"] >= pace
        assert 0 < each["tokens_per_second"] <= 2 / pace
    assert max(sum(one["began"] <= each["began"] < one["ended"] for one in requests) for each in requests) == 2
    header, row = cli.rows("load-test", "alpha", "--requests", "2")
    assert header[:3] == ["MODEL", "REQUESTS", "FAILED"]
    assert row[:3] + row[6:7] == ["alpha", "2", "0", "0.00"], "a loaded model is not waited for"
    failed = cli("load-test", "alpha", "nobody", "--requests", "2")
    assert failed.status == 1
    assert [line.split()[:3] for line in failed.out.splitlines()[1:]] == [["alpha", "2", "0"], ["nobody", "2", "2"]]
    assert re.fullmatch(".*nobody.*\n", failed.err), "the same error is said once"
