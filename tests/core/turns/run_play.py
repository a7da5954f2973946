"""Plays transcripts of runs: what happens, what the loop wants done, what there is at the end. Format: `read`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import msgspec
from msgspec import Raw, Struct

from appliance.core.turns import messages
from appliance.core.turns.toolloop import Loop

NOW = 1_800_000_000.0


def schema(**properties: object) -> Raw:
    return Raw(json.dumps({"type": "object", "properties": properties, "required": list(properties)}).encode())


TOOLS = (
    messages.Tool(name="read_file", description="Reads", parameters=schema(path={"type": "string"}), runner="server"),
    messages.Tool(name="list_files", description="Lists", parameters=schema(), runner="server"),
    messages.Tool(name="ask_user", description="Asks", parameters=schema(question={"type": "string"}), runner="client"),
    messages.Tool(name="report", description="Signals", parameters=schema(status={"type": "string"}), runner="exit"),
)
MESSAGES = (Raw(b'{"role":"system","content":"Be brief."}'), Raw(b'{"role":"user","content":"Hello"}'))


class Transcript(Struct):
    title: str
    place: str
    task: dict[str, object]
    lines: list[str]


def read(path: Path) -> Iterator[Transcript]:
    """Transcripts of a file. Each line begins with a mark:

    ``# title`` begins one, ``!`` JSON of fields of the Task (with "tools": names), ``>`` an event, ``<`` a command that
    it leads to, in order and none left out, ``|`` a message of the last Generate, ``=`` a field of the outcome.
    """
    found: Transcript | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        mark, _, rest = line.partition(" ")
        if mark == "#":
            if found is not None:
                yield found
            found = Transcript(rest, f"{path.name}:{number}", {}, [])
        elif mark == "!" and found is not None:
            found.task = json.loads(rest)
        elif line.strip() and found is not None:
            found.lines.append(line)
    assert found is not None, f"{path} has no transcript"
    yield found


def task_of(fields: dict[str, object]) -> messages.Task:
    names = fields.pop("tools", [tool.name for tool in TOOLS])
    assert isinstance(names, list)
    params = fields.pop("params", {})
    assert isinstance(params, dict)
    return messages.Task(
        model="m",
        messages=MESSAGES,
        tools=tuple(tool for tool in TOOLS if tool.name in names),
        params={name: Raw(json.dumps(value).encode()) for name, value in params.items()},
        **msgspec.convert(fields, dict[str, int | bool]),  # pyright: ignore[reportArgumentType]
    )


def play(transcript: Transcript) -> None:
    """Raises AssertionError where it went otherwise."""
    loop = Loop(task_of(transcript.task), worker="tester")
    commands = loop.begin(NOW)
    sent: list[str] = []
    for line in [*transcript.lines, "."]:
        mark, _, rest = line.partition(" ")
        if mark in (">", "."):
            assert commands == [], f"nobody expected {[show(command) for command in commands]} before {line!r}"
        if mark == ">":
            commands = loop.on_event(event_of(rest), NOW)
        elif mark == "<":
            assert commands, f"nothing came where {rest!r} was expected"
            command = commands.pop(0)
            assert show(command) == rest
            if isinstance(command, messages.Generate):
                sent = messages_of(command)
        elif mark == "|":
            assert sent, f"no message came where {rest!r} was expected"
            message = sent.pop(0)
            assert message == rest or (rest.endswith("...") and message.startswith(rest[:-3])), message
        elif mark == "=":
            name, _, wanted = rest.partition(" ")
            assert json.loads(msgspec.json.encode(getattr(loop.outcome(), name))) == json.loads(wanted), name


def messages_of(command: messages.Generate) -> list[str]:
    """The messages of a request, a line each: role, id of the answered call, content as JSON, ids of the calls made."""
    body = json.loads(command.body)
    assert body["stream"] is True
    lines: list[str] = []
    for message in body["messages"]:
        words = [message["role"], message.get("tool_call_id"), json.dumps(message["content"])]
        words += [f"thought={json.dumps(message[key])}" for key in ("reasoning_content",) if key in message]
        words += [f"{call['id']}:{call['function']['name']}" for call in message.get("tool_calls", ())]
        lines.append(" ".join(word for word in words if word))
    return lines


def event_of(line: str) -> messages.RunEvent:
    word, _, rest = line.partition(" ")
    words = rest.split(" ")
    match word:
        case "text":
            return messages.TextDelta(json.loads(rest))
        case "think":
            return messages.ReasoningDelta(json.loads(rest))
        case "call":
            index, call_id, name, arguments = rest.split(" ", 3)
            given = {"id": call_id.strip("-"), "name": name.strip("-"), "arguments": json.loads(arguments)}
            return messages.CallDelta(index=int(index), **given)
        case "usage":
            return messages.TurnUsage(prompt_tokens=int(words[0]), completion_tokens=int(words[1]))
        case "end":
            return messages.TurnEnded(finish_reason=rest)
        case "fail":
            return msgspec.convert({"reason": words[0], "detail": " ".join(words[1:])}, messages.TurnFailed)
        case "tool":
            return messages.ToolFinished(call_id=words[0], content=json.loads(" ".join(words[1:])), seconds=0.5)
        case "broken":
            return messages.ToolFinished(call_id=words[0], failure=" ".join(words[1:]), seconds=0.5)
        case "cancel":
            return messages.CancelAsked(rest) if rest else messages.CancelAsked()
        case _:
            raise ValueError(f"no such event: {line}")


def show(command: messages.RunCommand) -> str:
    match command:
        case messages.Generate():
            return "generate"
        case messages.RunTools(calls=calls, parallel=parallel):
            return " ".join(["run", *(["at once"] if parallel else []), *map(called, calls)])
        case messages.AskClient(calls=calls):
            return " ".join(["ask", *map(called, calls)])
        case messages.StopGenerating():
            return "stop"
        case messages.ShowText(text):
            return f"show {json.dumps(text)}"
        case messages.ShowReasoning(text):
            return f"show-thought {json.dumps(text)}"
        case messages.ShowSignal(signal):
            return f"signal {signal.name} {bytes(signal.arguments).decode()}"
        case messages.Finish():
            return "finish"
    assert_never(command)


def called(call: messages.ModelCall) -> str:
    return f"{call.id}:{call.name}"
