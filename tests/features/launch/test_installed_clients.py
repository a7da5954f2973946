"""Clients as their makers publish them, each in its own process: one turn with a tool, and nothing of it gets lost."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from clever_models import clever
from installed_clients import ANSWER, CLIENTS, KEY, NOTES, SECRET, InstalledClient
from program import fresh_environment, run_command
from serving import Serve

from appliance.core.records.captures import CaptureBuffer

PATIENCE = 600.0
KEPT = 64 << 20
NPM = ("npm", "install", "--no-audit", "--no-fund", "--prefix")
TOLD_IN_OTHER_WORDS = frozenset(
    ("type", "id", "status", "tool_choice", "metadata", "cache_control", "include", "reasoning", "encrypted_content")
)


@pytest.fixture(scope="module")
def npm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The PATH for clients of npm: with a newer Node than the system's, if npm has one."""
    folder = tmp_path_factory.mktemp("node")
    subprocess.run((*NPM, folder, "node@24"), capture_output=True, check=False, timeout=PATIENCE)
    return f"{folder / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.slow(only_all=True)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if one.python else pytest.mark.needs("npm")) for name, one in CLIENTS.items()]
)
def test_a_client_takes_a_turn_with_a_tool(
    name: str, request: pytest.FixtureRequest, serve: Serve, fake_model: Path, tmp_path: Path
) -> None:
    client, home = CLIENTS[name], tmp_path / "home"
    home.mkdir()
    (home / NOTES).write_text(SECRET)
    env = {key: value for key, value in fresh_environment(home).items() if not key.startswith("XDG_CONFIG")}
    env["PWD"] = str(home)
    env["PATH"] = os.environ["PATH"] if client.python else request.getfixturevalue("npm")
    programs = installed(client, tmp_path, env)
    env["PATH"] = f"{programs}{os.pathsep}{env['PATH']}"
    arguments = client.arguments.replace("<home>", str(home))
    called = {"reasoning": "Let me see.", "text": "I look.", "calls": [{"name": client.tool, "arguments": arguments}]}
    turns = [called] * (1 + client.example_turns) if client.tool else []
    script = [*turns, {"text": json.dumps({"answer": ANSWER})}]
    server = serve(models=[clever(fake_model, "alpha", script)], api_keys=(KEY,))
    server.opened.traffic.recorder.captures = CaptureBuffer(KEPT)
    env |= {key: value.replace("<url>", server.url) for key, value in client.environment.items()}
    if client.program:
        file = tmp_path / ("client.py" if client.python else "client.mjs")
        file.write_text(client.program.replace("SECRET", SECRET))
        command = (programs / "python" if client.python else "node", file)
        ran = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=PATIENCE)
    else:
        words = ("launch", name.partition(" ")[0], "--url", server.url, "--api-key", KEY, "--no-check", "--")
        ran = run_command(*words, *client.words, cwd=home, env=env, timeout=PATIENCE)
    assert ANSWER in ran.stdout, (ran.stdout[-2000:], ran.stderr[-2000:])
    assert ran.returncode == 0, ran.stderr[-2000:]
    settings = [path for path in home.rglob("*") if path.suffix in (".toml", ".json", ".jsonc", ".yaml")]
    assert not [path for path in settings if path.is_file() and KEY.encode() in path.read_bytes()]
    asked = list(requests(server.url))
    failed = [(each["path"], each["error"]) for each in asked if each["status"] != 200]
    assert all(client.expects and client.expects in error for _, error in failed), failed
    assert any(SECRET in each["body"] for each in asked)
    assert not [text for each in asked if each["status"] == 200 for text in lost(each)]


def installed(client: InstalledClient, folder: Path, env: dict[str, str]) -> Path:
    """Install a client for this test, and return the folder of its programs."""
    if client.python:
        programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        subprocess.run((sys.executable, "-m", "venv", folder / "venv"), check=True, timeout=PATIENCE)
        install = (programs / "python", "-m", "pip", "install", "-q", *client.packages)
    else:
        programs = folder / "node_modules" / ".bin"
        (folder / "package.json").write_text("{}")
        install = (*NPM, folder, *client.packages)
    done = subprocess.run(install, env=env, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        pytest.skip(f"{' '.join(client.packages)} cannot be installed here: {done.stderr[-300:]}")
    return programs


def requests(url: str) -> Iterator[dict[str, Any]]:
    """Every request for a model: its path and status, its body, what the engine got instead, and the notes."""

    def asked(path: str) -> Any:
        with urlopen(Request(url + path, headers={"Authorization": f"Bearer {KEY}"}), timeout=PATIENCE) as answer:
            return json.load(answer)

    for row in asked("/api/metrics/activity")["data"]:
        captured, explained = asked(f"/api/captures/{row['id']}"), asked(f"/api/explain/{row['id']}")
        body = base64.b64decode(captured["req_body"]).decode()
        yield {
            "path": row["req_path"],
            "status": row["resp_status_code"],
            "body": body,
            "error": row.get("error_msg", ""),
            "got": explained["repaired"] or explained["body"] or body,
            "notes": f"{explained['ignored']}, {row.get('metadata', {}).get('repaired', '')}",
        }


def texts(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every text in a body, with the names on the way to it."""
    if isinstance(value, str):
        yield value, path
    elif isinstance(value, list):
        for each in value:
            yield from texts(each, path)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from texts(each, (*path, name))


def lost(request: dict[str, Any]) -> list[str]:
    """Return the texts of a client that are neither in what the engine got, nor in a part that a note names."""
    got = "\n".join(text for text, _ in texts(json.loads(request["got"])))
    return [
        f"{text[:100]} at {path}"
        for text, path in texts(json.loads(request["body"]))
        if text not in got
        and TOLD_IN_OTHER_WORDS.isdisjoint(path)
        and not any(re.search(rf"\b{re.escape(name)}\b", request["notes"]) for name in path)
    ]
