"""Agent runs on the installed program: a real model, the terminal, and a program that is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from program import COMMAND, STARTER_QUESTION, Server, StartServer, fresh_environment, http, run_command
from waiting import wait

ENDED = ("completed", "failed", "canceled")
LONG = {"max_tokens": 100_000, "ignore_eos": True, "temperature": 0}


def begin(server: Server, **asked: object) -> str:
    answer = http(server, "POST", "/api/runs", {"model": "starter", "user_prompt": STARTER_QUESTION, **asked})
    assert answer.status == 202, answer.body
    return answer.json()["id"]


def result(server: Server, run: str) -> dict[str, Any]:
    """What a run has come to, once it has ended."""
    wait(lambda: http(server, "GET", f"/api/runs/{run}").json()["state"] in ENDED, within=60)
    return http(server, "GET", f"/api/runs/{run}/result").json()


def test_a_run_says_what_a_chat_says(server: Server) -> None:
    """The starter is too small to make sense of a system message, so its answer here is only text that ends."""
    found = result(server, begin(server, params={"temperature": 0, "max_tokens": 60}))
    assert found["state"] == "completed", found
    assert found["output"]
    assert found["usage"]["completion_tokens"] > 0
    events = http(server, "GET", f"/api/runs/{found['id']}/events")
    told = [json.loads(line[6:]) for line in events.body.decode().splitlines() if line.startswith("data: ")]
    assert "".join(each["text"] for each in told if each.keys() == {"text"}) == found["output"]


def test_a_run_from_the_terminal(server: Server, tmp_path: Path) -> None:
    task = {"model": "starter", "user_prompt": STARTER_QUESTION, "params": {"temperature": 0, "max_tokens": 40}}
    (tmp_path / "task.json").write_text(json.dumps(task))
    done = run_command("agent", "run", "task.json", "--url", server.url, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.needs("curl")
@pytest.mark.skipif(os.name == "nt", reason="the page's commands are for a shell")
def test_the_first_commands_of_the_page_work_on_a_server_without_options(server: Server, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text("utf-8")
    env = {**fresh_environment(tmp_path), "LLAMA_APPLIANCE_URL": server.url}
    env["PATH"] = f"{COMMAND.parent}{os.pathsep}{env['PATH']}"
    run, answers = "", list[str]()
    for shown in page.partition("\n\n    $ ")[2].partition("\n\n")[0].split("\n    $ "):
        [command] = re.findall(r"\A(?:.*\\\n)*.*", shown)[:1]
        words = re.sub(r"run_[0-9a-f]{16}", run, command.replace("localhost:8080", server.url))
        done = subprocess.run(["sh", "-c", words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)
        if begun := re.search(r'"id":"(run_[0-9a-f]{16})"', done.stdout):
            run = begun[1]
            assert result(server, run)["state"] == "completed"
    assert len(answers) == 3
    assert answers[0].strip()
    assert json.loads(answers[2])["output"]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there is no SIGSTOP")
def test_who_followed_a_run_is_told_its_end_by_the_program_that_was_restarted(
    start_server: StartServer, every_engine: list[str], tmp_path: Path
) -> None:
    """Its events are told anew, and are fewer bytes than were read by then."""
    (tmp_path / "config.yaml").write_text(f"store:\n  path: {tmp_path / 'log.sqlite'}\n")
    (tmp_path / "task.json").write_text(json.dumps({"model": "starter", "user_prompt": "Hi!", "params": LONG}))
    argv = ["serve", "--config", str(tmp_path / "config.yaml"), "--engine", every_engine[-1], "--threads", "1"]
    server = start_server(*argv, "--listen", "127.0.0.1:0")
    watching = [str(COMMAND), "agent", "run", str(tmp_path / "task.json"), "--url", server.url]
    with subprocess.Popen(watching, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.read(500)
        process.send_signal(signal.SIGSTOP)
        server.process.kill()
        server.wait(10)
        start_server(*argv, "--listen", f"127.0.0.1:{server.port}")
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "failed: worker_restarted" in errors
