"""``speed``: how fast a running server has answered, in the terminal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from program import StartServer, answer

Verb = Callable[..., subprocess.CompletedProcess[str]]


def test_speed(serve_fake: StartServer, verb: Verb) -> None:
    server = serve_fake("--models-max", "1", "--model", "other.gguf")

    def speed(*argv: str) -> subprocess.CompletedProcess[str]:
        return verb("speed", "--url", server.url, *argv)

    nothing = speed("--span", "1h")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no request has ended in the last 1h" in nothing.stderr
    for model in ("small", "small", "other"):
        answer(server, "/v1/chat/completions", model=model, messages=[{"role": "user", "content": "hi"}])
    head, small, other = speed().stdout.splitlines()
    assert head.split()[:5] == ["MODEL", "REQUESTS", "PROMPT/S", "TOKENS/S", "FIRST"]
    assert (small.split()[:2], other.split()[:2]) == (["small", "2"], ["other", "1"])
    assert small.count(" s ") == 3, "the first token, and the wait"
    told = json.loads(speed("--json", "--by", "client", "--model", "small").stdout)
    [curve] = told["curves"]
    assert sum(curve["points"]["requests"]) == curve["total"]["requests"] == 2
    wrong = speed("--span", "long")
    assert wrong.returncode != 0
    assert "span must be a time such as 30m" in wrong.stderr
