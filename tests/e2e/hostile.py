"""Scripted models with tools on the installed program, and how much memory that took."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
from program import Server, http
from waiting import wait

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "canceled")


def scripted(*turns: object) -> dict[str, object]:
    """What the model says, turn by turn; see tests/fakes/fake_script.py."""
    return {"fake": {"script": json.dumps(turns)}}


def calls(name: str, arguments: object, then: str = "done") -> dict[str, object]:
    """A model that calls one tool, and then says so. Arguments that are text are written as they are."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return scripted({"calls": [{"name": name, "arguments": text, "id": "c1"}]}, {"text": then})


def run(server: Server, model: dict[str, object], *tools: str, **asked: object) -> dict[str, object]:
    """A run from its beginning to its result."""
    body = {"model": "alpha", "user_prompt": "Go.", "tools": list(tools), "params": model, **asked}
    answer = http(server, "POST", "/api/runs", body)
    assert answer.status == 202, answer.body
    return result(server, answer.json()["id"])


def result(server: Server, run_id: str, within: float = 60) -> dict[str, object]:
    wait(
        lambda: http(server, "GET", f"/api/runs/{run_id}").json()["state"] in ENDED,
        within=within,
        told=lambda: f"run {run_id} does not end",
    )
    return http(server, "GET", f"/api/runs/{run_id}/result").json()


def chat(server: Server, model: dict[str, object], *tools: str, **asked: object) -> dict[str, object]:
    """A chat with tools; its answer, or its error."""
    messages = [{"role": "user", "content": "Go."}]
    body = {"model": "alpha", "messages": messages, "appliance": {"tools": list(tools)}, **model, **asked}
    return http(server, "POST", CHAT, body).json()


def use(server: Server, tool: str, **params: object) -> dict[str, object]:
    answer = http(server, "POST", "/tools", {"tool": tool, "params": params})
    assert answer.status == 200, answer.body
    return answer.json()


def peak(server: Server) -> int:
    """The most bytes that the program itself has had resident."""
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.is_file():
        return psutil.Process(server.process.pid).memory_info().rss
    line = next(line for line in status.read_text("utf-8").splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
