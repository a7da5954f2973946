"""Real engines that are stopped at work are found and ended; one that only works is never taken for one that hangs."""

from __future__ import annotations

import json
import select
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from program import Server, StartServer, http
from test_lifetimes import CHAT, ENDLESS, model_process, posix_only, post, send

from appliance.catalog.sources import STARTER

HANGS = {"after": 30, "awaited": 2, "answer": 1}


def serve(start_server: StartServer, engine: str, folder: Path, hangs: dict[str, int], *more: str) -> Server:
    config = folder / "config.yaml"
    config.write_text(json.dumps({"hangs": hangs}))
    argv = ("--listen", "127.0.0.1:0", "--engine", engine, "--threads", "1", "--config", str(config))
    server = start_server("serve", *argv, *more)
    assert http(server, "POST", "/v1/chat/completions", CHAT).status == 200
    return server


@posix_only
def test_a_stopped_engine_holds_nobody_up(start_server: StartServer, engine: str, tmp_path: Path) -> None:
    """Five clients wait for it, and another model waits for its place."""
    other = tmp_path / "other.gguf"
    shutil.copyfile(STARTER, other)
    server = serve(start_server, engine, tmp_path, HANGS, "--models-max", "1", "--model", f"other={other}")
    clients = [send(server, ENDLESS) for _ in range(3)]
    model_process(server).suspend()
    with ThreadPoolExecutor() as pool:
        plain = [pool.submit(http, server, "POST", "/v1/chat/completions", CHAT) for _ in range(2)]
        time.sleep(0.2)
        began = time.monotonic()
        answer = http(server, "POST", "/v1/chat/completions", {**CHAT, "model": "other"}, timeout=30)
        assert answer.status == 200
        assert time.monotonic() - began < 10
        refused = [each.result() for each in plain]
    for client in clients:
        with client:
            told = b""
            while b"it hangs" not in told:
                told = told[-100:] + client.recv(65536)
    assert {each.status for each in refused} <= {200, 502}, [each.body for each in refused]
    assert "it hangs: next to nothing has come from it" in server.told()
    rows = http(server, "GET", "/api/metrics/activity").json()["data"]
    assert sum("it hangs" in row.get("error_msg", "") for row in rows) >= 3


@pytest.mark.slow
@posix_only
def test_an_engine_at_work_is_asked_and_left_alone(start_server: StartServer, engine: str, tmp_path: Path) -> None:
    """Two long answers that are no streams: nothing comes for longer than ``after``, and it says that it lives."""
    server = serve(start_server, engine, tmp_path, {"after": 1, "awaited": 1, "answer": 5}, "--", "--ctx-size", "32768")
    before = model_process(server).pid
    story = {**ENDLESS, "stream": False, "n_predict": 30000}
    with post(server, story) as one, post(server, story) as other:
        time.sleep(3)  # it is asked twice meanwhile, which nothing tells
        assert select.select([one, other], [], [], 0)[0] == [], "one of them has been told of an error"
        assert http(server, "GET", "/running").json()["running"], "it has been ended"
    assert model_process(server).pid == before
    assert "it hangs" not in server.told()
    assert http(server, "POST", "/v1/chat/completions", CHAT).status == 200
    assert model_process(server).pid == before
