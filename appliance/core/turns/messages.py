"""The words of an agent run: its request, its events, its commands, its results.

`core.turns.toolloop` turns events into commands; `agents` carries the commands out and tells the events.
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
"""The largest budget of turns with tools that a caller can ask for."""


class Tool(Struct, frozen=True, kw_only=True):
    """A function that is offered to the model. ``runner`` executes it; an exit tool is only recorded."""

    name: str
    description: str
    parameters: Raw
    runner: Literal["server", "client", "exit"]
    timeout: float | None = None
    """Longest time for one execution, in seconds; None: the worker's setting."""
    arguments: Literal["schema", "object", "any"] = "schema"
    """The form that a call's arguments must have: fit for ``parameters``, a JSON object, or any text."""


class Task(Struct, frozen=True, kw_only=True):
    """The request for one run, checked and complete."""

    model: str
    messages: tuple[Raw, ...]
    """The conversation in OpenAI's form, with the caller's system message first, if there is one."""
    tools: tuple[Tool, ...] = ()
    params: dict[str, Raw] = {}
    """Parameters for the engine, unchanged; never ``messages``, ``tools`` or ``stream``."""
    max_tool_iterations: int = 8
    repeated_line_limit: int = 0
    """A line that is repeated so many times in a row ends the run; 0 means never. Empty lines do not count."""
    parallel_tool_calls: bool = False
    bios: bool | str = True
    """The program's own system message comes before the caller's, or this text in its place, or none. Calls in plain
    text are read where it explains them: see `appliance.core.turns.bios.bios_of`.
    """
    hands_over: bool = False
    """A turn that calls tools of the caller ends the run, completed, with those calls as ``pending_tool_calls``.

    Nothing of such a turn is executed here. Without it, the run waits until the caller has executed them.
    """


class ModelCall(Struct, frozen=True, kw_only=True):
    """One tool call of the model. ``arguments`` is JSON text, checked to be an object that fits the schema."""

    id: str
    name: str
    arguments: str
    raw: str
    """The model's own spelling."""


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


class TurnUsage(Struct, frozen=True, kw_only=True):
    """Tokens of one turn."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class TurnEnded(Struct, frozen=True, kw_only=True):
    """The stream came to its end. ``finish_reason`` is the engine's; "" if it gave none."""

    finish_reason: str


class TurnFailed(Struct, frozen=True, kw_only=True):
    """The stream did not end: the engine died, was silent too long, reported an error, or could not be reached."""

    reason: FailReason
    detail: str


class ToolFinished(Struct, frozen=True, kw_only=True):
    """The result of a call. ``content`` is for the model. ``failure`` says why the tool could not be executed."""

    call_id: str
    content: str = ""
    failure: str | None = None
    seconds: float = 0.0


class CancelAsked(Struct, frozen=True):
    detail: str = "canceled by the caller"


RunEvent = TextDelta | ReasoningDelta | CallDelta | TurnUsage | TurnEnded | TurnFailed | ToolFinished | CancelAsked

# ---- what it wants done ----------------------------------------------------------------------------------------------


class Signal(Struct, frozen=True, kw_only=True):
    """A call of an exit tool. ``at`` is in seconds since the epoch."""

    name: str
    arguments: Raw
    at: float
    raw: str


class Generate(Struct, frozen=True, kw_only=True):
    """Send this body to ``/v1/chat/completions`` and report the result."""

    body: bytes


class RunTools(Struct, frozen=True, kw_only=True):
    """Execute these; in order, or at once if ``parallel``. A ToolFinished is due for each."""

    calls: tuple[ModelCall, ...]
    parallel: bool


class AskClient(Struct, frozen=True, kw_only=True):
    """The caller executes these. A ToolFinished is due for each."""

    calls: tuple[ModelCall, ...]


class StopGenerating(Struct, frozen=True):
    """Leave the stream; the rest of it is not wanted."""


class ShowText(Struct, frozen=True):
    """Tell watchers that ``output`` has grown by this."""

    text: str


class ShowReasoning(Struct, frozen=True):
    """Tell watchers that ``reasoning`` has grown by this."""

    text: str


class ShowSignal(Struct, frozen=True):
    """Tell watchers that ``signals`` has one more."""

    signal: Signal


class Finish(Struct, frozen=True):
    """The run is over and the `Outcome` of the loop final. Tools that still run must be stopped."""


RunCommand = Generate | RunTools | AskClient | StopGenerating | ShowText | ShowReasoning | ShowSignal | Finish

# ---- what comes out --------------------------------------------------------------------------------------------------


class Trace(Struct, frozen=True, kw_only=True):
    """One executed call of a tool, or the reason why it was not executed: exactly one of ``result`` and ``error`` is
    set.

    ``arguments`` that are not JSON appear here as a JSON string.
    """

    id: str
    name: str
    arguments: Raw
    result: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    seconds: float = 0.0


class Outcome(Struct, frozen=True, kw_only=True):
    """The results of a run so far, and at the end."""

    state: RunState
    output: str
    """Visible text: directives are cut out."""
    reasoning: str = ""
    signals: tuple[Signal, ...] = ()
    tool_trace: tuple[Trace, ...] = ()
    usage: TurnUsage = TurnUsage()
    finish_reason: FinishReason | None = None
    fail_reason: FailReason | None = None
    detail: str | None = None
    tool_iterations_used: int = 0
    tool_iterations_left: int = 0
    pending_tool_calls: tuple[ModelCall, ...] = ()
    """The calls that the caller has to execute."""
