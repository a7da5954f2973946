"""A real server with the plugins of the program, their settings changed as an operator changes them: in a copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import trio
from bundled import NAMES, PLUGINS
from command_lines import command_line
from http_harness import CHAT, Answer, Appliance, open_appliance
from port_blocks import port_block
from swap_harness import configure

from appliance.features.engines.found import find_engine

PATIENCE = 60.0
"""Seconds for one request on a machine that has much else to do."""
Json = dict[str, object]


class Streamed(NamedTuple):
    """A streamed answer: its records without the last, and the text of its first choice."""

    records: list[Json]
    text: str

    def member(self, name: str) -> object:
        """The member of that name, of the one record that has it."""
        [found] = [record[name] for record in self.records if name in record]
        return found


class Plugged(NamedTuple):
    """The server; ``data`` is where its plugins keep what they keep."""

    server: Appliance
    data: Path

    async def post(self, model: str, content: object, **more: object) -> Answer:
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return await self.server.ask("POST", CHAT, {"model": model, "messages": messages, **more}, patience=PATIENCE)

    async def ask(self, model: str, content: object, **more: object) -> Json:
        """The whole answer."""
        answer = await self.post(model, content, **more)
        assert answer.status == 200, answer.body
        return answer.json

    async def stream(self, model: str, content: object, **more: object) -> Streamed:
        """A stream that ended as it should."""
        answer = await self.post(model, content, stream=True, **more)
        assert answer.status == 200, answer.body
        *records, last = [event for event in answer.events if not event.startswith(":")]
        assert last == "data: [DONE]", last
        return _streamed(records)

    async def told(self, member: str, model: str, content: object, *, stream: bool, **more: object):
        """The text of an answer in either form, and its member of that name."""
        if stream:
            answer = await self.stream(model, content, **more)
            return answer.text, answer.member(member)
        whole = await self.ask(model, content, **more)
        return text(whole), whole[member]

    async def refused(self, model: str, content: object, status: int = 400, **more: object) -> str:
        """The message of a refusal."""
        answer = await self.post(model, content, **more)
        assert answer.status == status, answer.body
        return answer.error["message"]


OpenPlugged = Callable[..., AbstractAsyncContextManager[Plugged]]
"""`open_plugged` with all but models and settings filled in."""


def text(answer: Json) -> str:
    return answer["choices"][0]["message"]["content"]


def _streamed(records: Sequence[str]) -> Streamed:
    read = [json.loads(record.removeprefix("data: ")) for record in records]
    deltas = [choice["delta"] for record in read for choice in record["choices"]]
    return Streamed(read, "".join(delta.get("content") or "" for delta in deltas))


@asynccontextmanager
async def open_plugged(
    folder: Path,
    fake: Sequence[str],
    fake_model: Path,
    starter: Path,
    models: dict[str, Sequence[str]],
    *,
    real: dict[str, Sequence[str]] | None = None,
    settings: dict[str, Json] | None = None,
    **top: object,
) -> AsyncGenerator[Plugged]:
    """Serve ``models``, id to flags of the fake engine, and ``real``, id to flags of a real one with the starter model.

    All may run at once. ``settings``: of plugins by name.
    """
    copies = folder / "plugins"
    for name in NAMES:
        shutil.copytree(PLUGINS / name, copies / name, dirs_exist_ok=True)
        config = json.loads((PLUGINS / name / "config.json").read_text("utf-8"))
        config["settings"] |= (settings or {}).get(name, {})
        (copies / name / "config.json").write_text(json.dumps(config), "utf-8")
    keys: dict[str, object] = {name: {"args": list(args)} for name, args in models.items()}
    told = json.loads(configure(folder / "config.yaml", fake, fake_model, keys).read_text("utf-8"))
    engine = find_engine(None).command
    for name, args in (real or {}).items():
        words = command_line([*engine, "--model", str(starter), "--host", "127.0.0.1", "--threads", "1", *args])
        told["models"][name] = {"cmd": f"{words} --port ${{PORT}}", "proxy": "http://127.0.0.1:${PORT}"}
    told["groups"] = {"all": {"swap": False, "exclusive": False, "members": list(told["models"])}}
    told["startPort"] = port_block(4 * len(told["models"]))
    config = folder / "config.yaml"
    config.write_text(json.dumps(told | top), "utf-8")
    async with open_appliance(fake, fake_model, config=config, plugins=(copies,)) as server:
        with trio.fail_after(3 * PATIENCE):
            await server.good("POST", "/api/agents/reload")
            yield Plugged(server, fake_model.parent / "plugins")


def script(*turns: object) -> list[str]:
    """Flags of a fake that says these things, in the first turn, in the second, and so on."""
    told = [turn if isinstance(turn, dict) else {"text": turn} for turn in turns]
    return ["--script", json.dumps(told)]
