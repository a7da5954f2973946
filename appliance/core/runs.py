"""The words of an agent run: what it is asked, what happens to it, what it wants done, what comes out.

`core.toolloop` turns events into commands; `agents` carries the commands out and tells the events.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

RunState = Literal["running", "tool_running", "completed", "failed", "canceled"]
FinishReason = Literal["stop", "max_tokens", "canceled", "failed"]
FailReason = Literal[
    "worker_restarted",
    "server_died",
    "connect_failed",
    "headers_timeout",
    "stall_timeout",
    "tool_parse_error",
    "tool_execution_error",
    "repeated_line_loop",
    "canceled",
    "unknown_error",
]

# ---- what a run is asked ---------------------------------------------------------------------------------------------


MAX_ITERATIONS = 1000
"""The largest budget of turns with tools that can be asked for."""


class Tool(Struct, frozen=True, kw_only=True):
    """A function that the model is offered. ``runner``: who executes it; an exit tool is only recorded."""

    name: str
    description: str
    parameters: Raw
    runner: Literal["server", "client", "exit"]
    timeout: float | None = None
    """Seconds that one execution may take; None: the worker's setting."""
    arguments: Literal["schema", "object", "any"] = "schema"
    """What a call's arguments must be for the call to count: fit for ``parameters``, a JSON object, or any text."""


class Task(Struct, frozen=True, kw_only=True):
    """One run as it was asked for, checked and complete."""

    model: str
    messages: tuple[Raw, ...]
    """Conversation in OpenAI's form, the caller's system message first where there is one."""
    tools: tuple[Tool, ...] = ()
    params: dict[str, Raw] = {}
    """Passed on to the engine unchanged; never ``messages``, ``tools`` or ``stream``."""
    max_tool_iterations: int = 8
    repeated_line_limit: int = 0
    """The same line, not empty, so many times in a row ends the run; 0: never."""
    parallel_tool_calls: bool = False
    bios: bool = True
    """The program's own system message goes before the caller's, and the fallback format that it asks for is read."""
    hands_over: bool = False
    """A turn that calls tools of the caller ends the run, completed, with those calls as ``pending_tool_calls``.

    Nothing of such a turn is executed here. Without it, the run waits until the caller has executed them.
    """


class Call(Struct, frozen=True, kw_only=True):
    """One tool call of the model. ``arguments`` is JSON text, checked to be an object that fits the schema."""

    id: str
    name: str
    arguments: str
    raw: str
    """As the model wrote it."""


# ---- what happens to it ----------------------------------------------------------------------------------------------


class TextDelta(Struct, frozen=True):
    text: str


class ReasoningDelta(Struct, frozen=True):
    text: str


class CallDelta(Struct, frozen=True, kw_only=True):
    """A piece of a structured tool call; pieces of one call share ``index``. Empty fields add nothing."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens of one turn."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class TurnEnded(Struct, frozen=True, kw_only=True):
    """The stream came to its end. ``finish_reason`` as the engine gave it; "" where it gave none."""

    finish_reason: str


class TurnFailed(Struct, frozen=True, kw_only=True):
    """The stream did not: the engine died, was silent too long, reported an error, or could not be reached."""

    reason: FailReason
    detail: str


class ToolFinished(Struct, frozen=True, kw_only=True):
    """``content`` is what the model is told. ``failure`` where the tool could not be executed, with why."""

    call_id: str
    content: str = ""
    failure: str | None = None
    seconds: float = 0.0


class CancelAsked(Struct, frozen=True):
    detail: str = "canceled by the caller"


RunEvent = TextDelta | ReasoningDelta | CallDelta | Usage | TurnEnded | TurnFailed | ToolFinished | CancelAsked

# ---- what it wants done ----------------------------------------------------------------------------------------------


class Signal(Struct, frozen=True, kw_only=True):
    """A call of an exit tool. ``at`` in seconds since the epoch."""

    name: str
    arguments: Raw
    at: float
    raw: str


class Generate(Struct, frozen=True, kw_only=True):
    """Send this body to ``/v1/chat/completions`` and tell what comes of it."""

    body: bytes


class RunTools(Struct, frozen=True, kw_only=True):
    """Execute these; in order, or at once where ``parallel``. A ToolFinished is due for each."""

    calls: tuple[Call, ...]
    parallel: bool


class AskClient(Struct, frozen=True, kw_only=True):
    """The caller executes these. A ToolFinished is due for each."""

    calls: tuple[Call, ...]


class StopGenerating(Struct, frozen=True):
    """Leave the stream; nothing of it is wanted any more."""


class ShowText(Struct, frozen=True):
    """Tell who watches: ``output`` has grown by this."""

    text: str


class ShowReasoning(Struct, frozen=True):
    """Tell who watches: ``reasoning`` has grown by this."""

    text: str


class ShowSignal(Struct, frozen=True):
    """Tell who watches: ``signals`` has one more."""

    signal: Signal


class Finish(Struct, frozen=True):
    """The run is over and the `Outcome` of the loop final. Tools that still run are to be stopped."""


RunCommand = Generate | RunTools | AskClient | StopGenerating | ShowText | ShowReasoning | ShowSignal | Finish

# ---- what comes out --------------------------------------------------------------------------------------------------


class Trace(Struct, frozen=True, kw_only=True):
    """One call of a tool that was executed, or why it was not: exactly one of ``result`` and ``error`` is there.

    ``arguments`` that are no JSON are here as a JSON string.
    """

    id: str
    name: str
    arguments: Raw
    result: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    seconds: float = 0.0


class Outcome(Struct, frozen=True, kw_only=True):
    """What a run has so far, and at the end."""

    state: RunState
    output: str
    """Text meant to be seen: directives are cut out."""
    reasoning: str = ""
    signals: tuple[Signal, ...] = ()
    tool_trace: tuple[Trace, ...] = ()
    usage: Usage = Usage()
    finish_reason: FinishReason | None = None
    fail_reason: FailReason | None = None
    detail: str | None = None
    tool_iterations_used: int = 0
    tool_iterations_left: int = 0
    pending_tool_calls: tuple[Call, ...] = ()
    """What the caller has to execute."""
