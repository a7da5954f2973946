"""The task of ``agent run``: read from a file or standard input, and checked before it is sent."""

from __future__ import annotations

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from appliance.errors import UsageError

FROM_STDIN = "-"
STDIN = 0
MAX_TASK = 16 << 20
"""In bytes; the largest task that a server accepts."""
TASK_FILES = (".json", ".yaml", ".yml")

Task = dict[str, object]


def read_task(file: str) -> Task:
    """Read the task. Raises UsageError."""
    where = named(file)
    try:
        with open(STDIN if file == FROM_STDIN else file, "rb") as source:  # noqa: PTH123  it may be a descriptor
            data = source.read(MAX_TASK + 1)
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or error}; name a file with a task or a prompt, or -") from None
    if len(data) > MAX_TASK:
        raise UsageError(f"{where} holds more than the {MAX_TASK >> 20} MiB that a task may have; send less")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{where} is not UTF-8 text; save it as UTF-8") from None
    if not text.strip():
        raise UsageError(f"{where} is empty; put a task or a prompt into it")
    if not (file.endswith(TASK_FILES) or text.lstrip().startswith("{")):
        return {"user_prompt": text}
    task = _parsed(text, where)
    if not isinstance(task, dict):
        raise UsageError(f"{where} is not a task: it must be an object with 'model' and 'user_prompt' or 'messages'")
    return {str(key): value for key, value in task.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]


def named(file: str) -> str:
    return "standard input" if file == FROM_STDIN else file


def _parsed(text: str, where: str) -> object:
    """Parse JSON, else YAML, which takes a thousand times as long and accepts surrogates."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if where.endswith(".json"):
            raise UsageError(f"{where} cannot be read as a task: {error}") from None
    try:
        return YAML(typ="safe", pure=True).load(text)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    except YAMLError as error:
        raise UsageError(f"{where} cannot be read as a task: {' '.join(str(error).split())}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} cannot be read as a task: {error}") from None


def refuse_unsendable(task: Task, where: str) -> None:
    """Refuse YAML that JSON cannot express: circular aliases, halves of characters."""
    try:
        msgspec.json.encode(task)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise UsageError(f"the task in {where} cannot be written as JSON: {error}") from None


def refuse_functions(task: Task) -> None:
    tools = task.get("tools")
    for tool in tools if isinstance(tools, list) else []:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(tool, str):
            raise UsageError(
                "'tools' defines a function, which the terminal cannot execute; name a tool of the server, "
                "or move it to 'exit_tools'"
            )
