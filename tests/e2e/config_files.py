"""Configuration files for the installed program, and what is asked of it while it runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from command_lines import command_line
from port_blocks import port_block
from program import Server, http

CHAT = "/v1/chat/completions"


class ConfigFile:
    """A configuration whose models are servers started by ``words``, and a flag for each of their ports."""

    def __init__(self, path: Path, *words: str | Path) -> None:
        self.path = path
        self.words = [str(word) for word in words]
        self.start_port = port_block(80)

    def cmd(self, *args: str) -> str:
        return f"{command_line([*self.words, *args])} --port ${{PORT}}"

    def write(self, models: Mapping[str, Sequence[str] | dict[str, object]], **top: object) -> str:
        """A model is the flags of its server, or its keys; the result is the file's path."""
        told: dict[str, object] = {}
        for name, given in models.items():
            keys = given if isinstance(given, dict) else {"cmd": self.cmd(*given)}
            told[name] = {"cmd": self.cmd(), "proxy": "http://127.0.0.1:${PORT}", **keys}
        self.path.write_text(json.dumps({"startPort": self.start_port, "models": told, **top}, indent=1), "utf-8")
        return str(self.path)


def chat(model: str, **more: object) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "Hello! What can you do?"}], **more}


def ask(server: Server, model: str, **more: Any) -> str:
    """One question; the model's words."""
    answer = http(server, "POST", CHAT, chat(model, **more))
    assert answer.status == 200, answer.body
    return answer.json()["choices"][0]["message"]["content"]


def running(server: Server, **headers: str) -> dict[str, str]:
    """Model to llama-swap's word for its state."""
    answer = http(server, "GET", "/running", **headers)
    assert answer.status == 200, answer.body
    return {entry["model"]: entry["state"] for entry in answer.json()["running"]}
