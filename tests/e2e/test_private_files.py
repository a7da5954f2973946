"""What the program keeps of a user's words is for that user alone, whatever the umask allows."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest
from plugin_folders import write_plugin
from program import StartServer, http
from test_agent_runs import result
from waiting import wait

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has other rights, which a profile's files have"
)

MARK = "zq7xvw"
"""No longer than a piece of what the fake says."""
QUESTION = {"role": "user", "content": f"/keeper {MARK}"}
KEEPER = """
    async def on_request(request, context):
        (context.data / "index").write_text(str(request.body["messages"]))
"""


def with_mark(home: Path) -> dict[str, bool]:
    """The files that hold the word: whether other users can read them."""
    found: dict[str, bool] = {}
    for folder, _, names in os.walk(home):
        for file in (Path(folder, name) for name in names):
            if MARK.encode() in file.read_bytes():
                inside = [part for part in file.parents if part.is_relative_to(home) and part != home]
                closed = any(part.stat().st_mode & 0o011 == 0 for part in inside)
                found[str(file.relative_to(home))] = bool(file.stat().st_mode & 0o077) and not closed
    return found


def test_no_other_user_can_read_what_was_said(
    start_server: StartServer, fake_llama_server: tuple[str, ...], fake_model: Path, tmp_path: Path
) -> None:
    """The log of the desktop program is `test_desktop.py`'s."""
    write_plugin(tmp_path / "plugins", "keeper", KEEPER)
    cmd = (
        shlex.join([*fake_llama_server, "--model", str(fake_model), "--script", json.dumps([{"text": MARK}])])
        + " --port ${PORT}"
    )
    home = tmp_path / "home"
    home.mkdir()
    config = {
        "store": {"path": str(home / "activity.db")},
        "streams": {"path": str(home / "streams")},
        "plugins": {},
        "plugins_dir": str(tmp_path / "plugins"),
        "models": {"m": {"cmd": cmd}},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config), "utf-8")
    left = [home / name for name in ("activity.db", "activity.db-wal", "activity.db.v1")]
    for file in left:
        file.touch()
        file.chmod(0o644)  # as earlier versions made them
    (home / "activity.db.v1").write_text(MARK)
    server = start_server(
        "serve", "--listen", "127.0.0.1:0", "--config", str(tmp_path / "config.yaml"),
        env={"XDG_DATA_HOME": str(home / "data")}, limited=lambda: os.umask(0),
    )  # fmt: skip
    asked = http(server, "POST", "/v1/chat/completions", {"model": "m", "messages": [QUESTION]})
    assert asked.status == 200, asked.body
    stream = {"model": "m", "messages": [QUESTION], "stream": True}
    assert http(server, "POST", "/v1/chat/completions", stream, X_Conversation_Id="c1").status == 200
    made = http(server, "POST", "/api/create", {"model": "mine", "from": "m", "system": MARK})
    assert b"success" in made.body, made.body
    assert http(server, "PUT", "/api/conversations/c1", {"title": MARK}).status < 300
    run = http(server, "POST", "/api/runs", {"model": "m", "user_prompt": MARK}).json()["id"]
    result(server, run)
    expected = {"activity.db-wal", "conversations.db", "derived-models.json", "plugins/keeper/index", "streams/stream"}
    wait(
        lambda: {part for part in expected for name in with_mark(home) if part in name},
        lambda seen: seen == expected,
        told=server.told,
    )
    assert [name for name, readable in with_mark(home).items() if readable] == []
    assert [f"{file} could be read by other users" in server.told() for file in left] == [True] * 3
