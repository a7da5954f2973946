"""``top``: a request that is under way, shown and cancelled."""

from __future__ import annotations

import pytest
from command_line import Command
from program import begun
from serving import Serve
from waiting import wait


def test_top_shows_a_request_and_cancels_it(command: Command, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TOKENS", "100000")
    monkeypatch.setenv("FAKE_TOKEN_DELAY", "0.02")
    server = serve()
    top = command.at(server.url)
    with begun(server, "alpha"):
        header, request, _, models, alpha = top.rows("top", "--once")
        assert header == ["ID", "CLIENT", "MODEL", "PHASE", "TOKENS", "TOKENS/S", "SLOT", "SECONDS"]
        number, *words, _, _, _, _ = request
        assert words == ["tester/1.0,", "127.0.0.1", "alpha", "answering"]
        assert models == ["MODEL", "STATE", "MEMORY", "ON", "GPUS", "WAITING"]
        assert alpha[:2] == ["alpha:latest", "loaded"]
        [shown] = top.json("top")["requests"]
        assert (shown["id"], shown["phase"]) == (number, "answering")
        assert top.good("top", "--cancel", number) == f"request {number}: cancelled\n"
        wait(lambda: not top.json("top")["requests"])
