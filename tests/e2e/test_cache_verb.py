"""``cache``: two conversations on the one slot of a real engine, in the terminal and over HTTP."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
from program import StartServer, answer

Verb = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_one_conversation_takes_the_slot_of_another(serve: StartServer, engine: str, verb: Verb) -> None:
    server = serve("--", "--parallel", "1", "--cache-ram", "0", engine=engine)
    server.wait_listening()

    def asks(name: str, text: str) -> None:
        words = f"{name} {text} " + " ".join(map(str, range(60)))
        messages = [{"role": "user", "content": words}]
        answer(
            server, "/v1/chat/completions", model="starter", messages=messages, prompt_cache_key=name, max_tokens=4,
            temperature=0,
        )  # fmt: skip

    def cache(*argv: str) -> subprocess.CompletedProcess[str]:
        return verb("cache", "--url", server.url, *argv)

    nothing = cache("--span", "1h")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no request whose tokens are known has ended in the last 1h" in nothing.stderr
    for name, text in (("a", "one"), ("a", "one"), ("b", "longer text"), ("a", "one"), ("a", "all is different")):
        asks(name, text)
    told = json.loads(cache("--json").stdout)
    assert [miss["miss"] for miss in told["misses"]] == ["changed", "evicted", "new", "loaded"]
    assert told["misses"][1]["why"].endswith(": conversation 'b' took the model's only slot")
    assert told["total"]["cached"] > 60, "the same question again"
    assert told["total"]["again"] > 120, "evicted, and changed"
    assert told["total"]["saved_seconds"] > 0
    assert [(each["conversation"], each["slot"]) for each in told["sessions"]] == [("a", 0), ("b", None)]
    head, *lines = cache("--by", "model").stdout.splitlines()
    assert head.split() == ["MODEL", "REQUESTS", "PROMPT", "CACHED", "SHARE", "AGAIN", "SAVED", "LOST"]
    assert [line.split()[:2] for line in lines[:2]] == [["starter", "5"], ["all", "5"]]
    assert lines[4].split()[:3] == ["starter", "0", "a"]
    wrong = cache("--span", "long")
    assert wrong.returncode != 0
    assert "span must be a time such as 30m" in wrong.stderr
