"""The files of a new plugin: small, working, and tested."""

from __future__ import annotations

import json
from pathlib import Path

from appliance.core.runs.slash import NAME
from appliance.errors import UsageError

AGENT = '''"""What the plugin is for, in a line."""

from __future__ import annotations

from collections.abc import AsyncIterator

from appliance.plugins import Context, Event, Request, Response


async def on_request(request: Request, context: Context) -> None:
    """Change the question: here, one more instruction goes before it."""
    messages = request.body["messages"]
    assert isinstance(messages, list)
    messages.insert(0, {"role": "system", "content": context.settings["instruction"]})


async def on_response(response: Response, context: Context) -> None:
    """Change a whole answer."""
    choices = response.body["choices"]
    assert isinstance(choices, list)
    for choice in choices:
        assert isinstance(choice, dict)
        message = choice["message"]
        assert isinstance(message, dict)
        message["content"] = changed(message.get("content"))


async def on_stream(events: AsyncIterator[Event], context: Context) -> AsyncIterator[Event]:
    """Change a streamed answer, piece by piece."""
    async for event in events:
        choices = event.data.get("choices") if event.data is not None else None
        for choice in choices if isinstance(choices, list) else []:
            delta = choice.get("delta") if isinstance(choice, dict) else None
            if isinstance(delta, dict) and "content" in delta:
                delta["content"] = changed(delta["content"])
        yield event


def changed(text: object) -> str | None:
    """What becomes of the model's words."""
    return text.upper() if isinstance(text, str) else None
'''

TEST = '''"""Run with pytest. The plugin is loaded from this folder, as the program loads it."""

from __future__ import annotations

from pathlib import Path

from appliance.plugins.testing import question, reply, streamed, take_turn

HERE = Path(__file__).parent


def test_the_model_gets_the_instruction():
    turn = take_turn(HERE, question("Hello"), reply("Good day"))
    assert turn.sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]


def test_a_whole_answer():
    assert take_turn(HERE, question("Hello"), reply("Good day")).text == "GOOD DAY"


def test_a_streamed_answer():
    assert take_turn(HERE, question("Hello", stream=True), streamed("Good ", "day")).text == "GOOD DAY"
'''


def write_agent(folder: Path, name: str) -> Path:
    """Write the files; existing files are not touched. Raises UsageError for a name that cannot be used."""
    if not NAME.fullmatch(name):
        raise UsageError(f"'{name}' cannot be a command; use letters, digits, dots, '-' and '_', at most 64")
    home = folder / name
    config = {
        "description": "Answers in capitals",
        "enabled": True,
        "end_point": "/v1/chat/completions",
        "settings": {"instruction": "Be brief."},
    }
    try:
        home.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"{home} exists; choose another name, or another folder with --in") from None
    (home / "agent.py").write_text(AGENT, encoding="utf-8")
    (home / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    module = name.replace("-", "_").replace(".", "_")
    (home / f"test_{module}.py").write_text(TEST, encoding="utf-8")
    return home
