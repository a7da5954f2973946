"""Built-in tools as their callers use them, with real children."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from appliance.core.tools.box import ToolContext, ToolOutcome
from appliance.core.tools.choice import chosen_tools
from appliance.features.tools.box import OpenToolbox, open_own_tools

FAKE = Path(__file__).parents[2] / "fakes" / "tool_runtime.py"


def put_runtimes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """docker, podman and ssh on PATH, and the folder where what they reach is."""
    programs, state = folder / "bin", folder / "state"
    (state / "ssh").mkdir(parents=True)
    programs.mkdir()
    for name in ("docker", "podman", "ssh"):
        (programs / name).write_text(f"#!{sys.executable} -SE\n{FAKE.read_text()}")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TOOL_RUNTIME_STATE", str(state))
    return state


class Tools(NamedTuple):
    """``call`` gives the decoded body of the answer."""

    box: OpenToolbox

    async def call(self, tool: str, *, cwd: object = None, runtime: str | None = None, base64: bool = False, **params):
        return json.loads((await self.outcome(tool, cwd=cwd, runtime=runtime, base64=base64, **params)).body)

    async def outcome(
        self, tool: str, *, cwd: object = None, runtime: str | None = None, base64: bool = False, **params
    ) -> ToolOutcome:
        context = ToolContext(cwd=None if cwd is None else str(cwd), runtime=runtime, base64=base64)
        arguments = {name: str(value) if name == "path" else value for name, value in params.items()}
        return await self.box.call(tool, json.dumps(arguments).encode(), context)

    async def text(self, tool: str, **params) -> str:
        return (await self.call(tool, **params))["plain_text_response"]

    async def error(self, tool: str, **params) -> str:
        body = await self.call(tool, **params)
        assert list(body) == ["error"], body
        return body["error"]


@asynccontextmanager
async def open_builtins(*words: str, runtime: str = "", root: object = "") -> AsyncGenerator[Tools]:
    settings = chosen_tools(words or ["all"], runtime=runtime, root=str(root))
    with trio.fail_after(120):
        async with open_own_tools(settings) as box:
            yield Tools(box)
