"""The model of a fresh install answers new users, and the documentation's examples work as a reader runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from program import STARTER_QUESTION, Server, http, one_engine

from appliance.catalog.sources import STARTER

FOLDER = Path(__file__).parents[2] / "starter-model"
LIMIT = 4 << 20


def ask(server: Server, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(FOLDER / script), "--base-url", f"http://127.0.0.1:{server.port}/v1", *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("questions", ["questions_blind.json", "questions_fresh.json"])
def test_questions_of_new_users(server: Server, questions: str) -> None:
    done = ask(server, "ask.py", "--questions", str(FOLDER / questions), "--floor", "22")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@one_engine
def test_every_answer_ends(server: Server) -> None:
    done = ask(server, "stress.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_small() -> None:
    assert STARTER.stat().st_size <= LIMIT


EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def run(server: Server, *words: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*words], input=stdin, capture_output=True, text=True, timeout=60)


@pytest.mark.needs("node", "curl", "jq")
def test_the_chat_script_keeps_the_conversation(server: Server) -> None:
    done = run(server, "sh", EXAMPLES / "chat.sh", server.url, "starter", stdin=f"{STARTER_QUESTION}\nHello\n")
    assert done.returncode == 0
    asked = {"model": "starter", "messages": [{"role": "user", "content": STARTER_QUESTION}]}
    first = http(server, "POST", "/v1/chat/completions", asked).json()["choices"][0]["message"]["content"]
    asked["messages"] += [{"role": "assistant", "content": first}, {"role": "user", "content": "Hello"}]
    second = http(server, "POST", "/v1/chat/completions", asked).json()["choices"][0]["message"]["content"]
    assert done.stderr == first + second


@pytest.mark.needs("node", "curl", "jq")
def test_the_chat_script_shows_an_error(server: Server) -> None:
    done = run(server, "sh", EXAMPLES / "chat.sh", server.url, "nobody", stdin="Hello\n")
    assert "model 'nobody' not found" in done.stderr


@pytest.mark.needs("node", "curl", "jq")
def test_the_completion_module_streams_and_tells_errors(server: Server) -> None:
    options = '{"model": "starter", "n_predict": 12, "temperature": 0}'
    done = run(server, "node", EXAMPLES / "completion.mjs", server.url, "Hello", options)
    assert done.returncode == 0, done.stderr
    asked = {"model": "starter", "n_predict": 12, "temperature": 0, "prompt": "Hello"}
    whole = http(server, "POST", "/completion", asked).json()["content"]
    assert done.stdout == f"{whole}\n"
    wrong = run(server, "node", EXAMPLES / "completion.mjs", server.url, "Hello", '{"model": "nobody"}')
    assert wrong.returncode != 0
    assert "model 'nobody' not found" in wrong.stderr
