"""``top``: the requests under way in a terminal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

from program import StartServer, begun
from waiting import wait

Verb = Callable[..., subprocess.CompletedProcess[str]]
LONG = {"FAKE_TOKENS": "100000", "FAKE_TOKEN_DELAY": "0.02"}


def test_once_prints_a_table_and_a_request_is_cancelled(serve_fake: StartServer, verb: Verb) -> None:
    server = serve_fake(**LONG)

    def top(*words: str) -> subprocess.CompletedProcess[str]:
        return verb("top", *words, "--url", server.url)

    nothing = top("--once")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "nothing is under way" in nothing.stderr
    with begun(server, "small"):
        header, request, _, models, small = top("--once").stdout.splitlines()
        assert header.split() == ["ID", "CLIENT", "MODEL", "PHASE", "TOKENS", "TOKENS/S", "SLOT", "SECONDS"]
        number, client, address, model, phase, *figures = request.split()
        assert (client, address, model, phase) == ("tester/1.0,", "127.0.0.1", "small", "answering")
        assert len(figures) == 4
        assert models.split() == ["MODEL", "STATE", "MEMORY", "ON", "GPUS", "WAITING"]
        assert small.split()[:2] == ["small:latest", "loaded"]
        [shown] = json.loads(top("--json").stdout)["requests"]
        assert (shown["id"], shown["phase"]) == (number, "answering")
        assert top("--cancel", number).stdout == f"request {number}: cancelled\n"
        wait(lambda: requests(top), lambda found: not found)
        again = top("--cancel", number)
    assert again.returncode == 2
    assert f"no request '{number}' is under way" in again.stderr


def requests(top: Verb) -> list[Any]:
    return json.loads(top("--json").stdout)["requests"]
