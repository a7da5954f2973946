"""The decisions of a run: events in, commands out. No clock, no socket and no tool is touched here.

A run is turns of the model. The calls of a turn are parted by their tools: exit calls become signals; normal ones are
executed, by the program or by the caller, and answered before the next turn. A turn without normal calls is the last.
One turn with normal calls costs one iteration of the budget, however many they are.

    begin -> Generate -> deltas -> TurnEnded -> RunTools, AskClient -> a ToolFinished for each -> Generate -> ...
                                            or Finish

Finish comes exactly once and nothing after it. Text that was held back because it might become a call is shown when the
run fails: the model's words are never lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import assert_never

from msgspec import Struct

from appliance.core.turns.bios import explains_format
from appliance.core.turns.messages import (
    CallDelta,
    CancelAsked,
    FailReason,
    Finish,
    FinishReason,
    Generate,
    ModelCall,
    Outcome,
    ReasoningDelta,
    RunCommand,
    RunEvent,
    RunState,
    ShowReasoning,
    ShowSignal,
    ShowText,
    Signal,
    StopGenerating,
    Task,
    TextDelta,
    ToolFinished,
    Trace,
    TurnEnded,
    TurnFailed,
    TurnUsage,
)
from appliance.core.turns.turn import DirectiveReading, Judge, Judged, ModelTurn, Round, RunPrompt, as_json

MAX_HELD = 64 << 20
"""Largest number of characters of text, reasoning, calls and results in one run: all of it is kept, and sent again with
every turn.
"""
BUDGET_EXHAUSTED = "tool budget exhausted"
CUT_OFF = "length"
"""Engines' words for a turn that the token limit ended."""
_MAX_TOLD = 200
"""Characters of a repeated line in the detail of a failure."""


class OutOfTurn(Exception):
    """An event that cannot happen now: text while tools run, the answer to a call that nobody waits for."""


class _RunEnd(Struct, frozen=True, kw_only=True):
    state: RunState
    finish_reason: FinishReason
    fail_reason: FailReason | None = None
    detail: str | None = None
    pending: tuple[ModelCall, ...] = ()


class Loop:
    """One run. Its owner carries out the commands in order and reports the events; the loop never waits.

    After Finish every event is ignored: events that were under way may still come in.
    """

    def __init__(self, task: Task, *, worker: str = "llama-appliance", zone: tzinfo = UTC) -> None:
        """``worker`` and ``zone`` are facts for the BIOS. The tools' schemas are known to be usable."""
        self._task = task
        self._judge = Judge(task.tools)
        self._prompt = RunPrompt(task, worker=worker, zone=zone)
        self._turn: ModelTurn | None = None  # while the model speaks
        self._said = ("", "")  # text and reasoning of the turn whose calls are being answered
        self._round: Round | None = None  # those calls
        self._end: _RunEnd | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._signals: list[Signal] = []
        self._traces: list[Trace] = []
        self._usage = TurnUsage()
        self._used = 0
        self._held = 0

    def begin(self, now: float) -> list[RunCommand]:
        """Begin the first turn. ``now`` is in seconds since the epoch, here and below."""
        if self._end is not None:
            return []
        if self._turn is not None or self._round is not None:
            raise OutOfTurn("the run has begun already")
        return [self._generate(now)]

    def on_event(self, event: RunEvent, now: float) -> list[RunCommand]:
        """Return the commands for an event. Raises OutOfTurn, and then nothing has changed."""
        if self._end is not None:
            return []
        held = self._held + _size_of(event)
        if held > MAX_HELD:
            return self._fail("unknown_error", f"the run has become larger than {MAX_HELD} characters")
        commands = self._commands_for(event, now)
        self._held = held
        return commands

    def _commands_for(self, event: RunEvent, now: float) -> list[RunCommand]:
        match event:
            case TextDelta(text):
                turn = self._speaking(event)
                return self._unless_repeating(turn, self._show(turn.say(text)))
            case ReasoningDelta(text):
                turn = self._speaking(event)
                turn.think(text)
                self._reasoning.append(text)
                return self._unless_repeating(turn, [ShowReasoning(text)])
            case CallDelta():
                return self._show(self._speaking(event).call(event))
            case TurnUsage():
                self._speaking(event).usage = event
                return []
            case TurnEnded():
                return self._turn_ended(self._speaking(event), event.finish_reason, now)
            case TurnFailed():
                return [*self._leave(self._speaking(event), event.detail), *self._fail(event.reason, event.detail)]
            case ToolFinished():
                return self._tool_finished(event, now)
            case CancelAsked():
                return self._fail("canceled", event.detail)
        assert_never(event)

    def outcome(self) -> Outcome:
        """Return the results so far; final after Finish."""
        end = self._end
        pending = end.pending if end is not None else () if self._round is None else self._round.pending
        speaking = TurnUsage() if self._turn is None else self._turn.usage
        return Outcome(
            state=end.state if end is not None else "running" if self._round is None else "tool_running",
            output="".join(self._text),
            reasoning="".join(self._reasoning),
            signals=tuple(self._signals),
            tool_trace=tuple(self._traces),
            usage=_sum(self._usage, speaking),
            finish_reason=None if end is None else end.finish_reason,
            fail_reason=None if end is None else end.fail_reason,
            detail=None if end is None else end.detail,
            tool_iterations_used=self._used,
            tool_iterations_left=self._left,
            pending_tool_calls=pending,
        )

    @property
    def _left(self) -> int:
        return self._task.max_tool_iterations - self._used

    def _speaking(self, event: RunEvent) -> ModelTurn:
        if self._turn is None:
            raise OutOfTurn(f"{type(event).__name__} while the model does not speak")
        return self._turn

    def _generate(self, now: float) -> Generate:
        self._turn = ModelTurn(
            reads_directives=explains_format(self._task.bios) and bool(self._task.tools),
            line_limit=self._task.repeated_line_limit,
        )
        return Generate(body=self._prompt.body(now, self._left))

    def _show(self, text: str) -> list[RunCommand]:
        if not text:
            return []
        self._text.append(text)
        return [ShowText(text)]

    def _unless_repeating(self, turn: ModelTurn, commands: list[RunCommand]) -> list[RunCommand]:
        line = turn.repeated_line
        if line is None:
            return commands
        times = self._task.repeated_line_limit
        return [*commands, *self._fail("repeated_line_loop", f"{times} times in a row: {line[:_MAX_TOLD]!r}")]

    # ---- the end of a turn -------------------------------------------------------------------------------------------

    def _turn_ended(self, turn: ModelTurn, finish_reason: str, now: float) -> list[RunCommand]:
        written = turn.structured()
        reading = DirectiveReading(text="", raw="") if written else turn.written()
        judged = self._judge.judge(written or reading.directives)
        problem = reading.problem or next((one.problem for one in judged if one.problem is not None), None)
        commands = self._show(turn.show(reading.text if problem is None else reading.raw))
        self._close(turn)
        commands += self._note_signals(judged, now)
        if problem is not None:
            cut = "; the answer was cut off at the token limit" if finish_reason == CUT_OFF else ""
            self._note_unused(judged)
            return commands + self._fail("tool_parse_error", problem + cut)
        normal = [one.call for one in judged if one.runner != "exit"]
        return commands + (self._use(normal, turn, now) if normal else self._complete(finish_reason))

    def _close(self, turn: ModelTurn) -> None:
        self._usage = _sum(self._usage, turn.usage)
        self._turn = None

    def _note_signals(self, judged: Sequence[Judged], now: float) -> list[RunCommand]:
        signals = [
            Signal(name=one.call.name, arguments=as_json(one.call.arguments), at=now, raw=one.call.raw)
            for one in judged
            if one.runner == "exit" and one.problem is None
        ]
        self._signals += signals
        return [ShowSignal(signal) for signal in signals]

    def _note_unused(self, judged: Sequence[Judged]) -> None:
        for one in judged:
            if one.problem is not None:
                self._note(one.call, error=one.problem)
            elif one.runner != "exit":
                self._note(one.call, error="not executed: another call of the same turn cannot be used")

    def _use(self, calls: Sequence[ModelCall], turn: ModelTurn, now: float) -> list[RunCommand]:
        """Have the calls executed, unless they end the run."""
        theirs = [call for call in calls if self._judge.runner(call) == "client"]
        if theirs and self._task.hands_over:
            for call in calls:
                if call not in theirs:
                    self._note(call, error="not executed: the same turn calls tools of the caller")
            return self._finish(_RunEnd(state="completed", finish_reason="stop", pending=tuple(theirs)))
        if self._left <= 0:
            for call in calls:
                self._note(call, error=f"not executed: {BUDGET_EXHAUSTED}")
            return self._fail("tool_execution_error", BUDGET_EXHAUSTED)
        self._used += 1
        self._said = turn.text, turn.reasoning
        self._round = Round(calls, self._judge, parallel=self._task.parallel_tool_calls)
        return self._round.begin_next()

    def _tool_finished(self, event: ToolFinished, now: float) -> list[RunCommand]:
        calls = self._round
        if calls is None or not calls.waits_for(event.call_id):
            raise OutOfTurn(f"nobody waits for the answer to call '{event.call_id}'")
        call = calls.take(event.call_id)
        failure = event.failure
        if failure is None and not _is_unicode(event.content):
            failure = "its result cannot be serialised: it is not valid Unicode"
        if failure is not None:
            self._note(call, error=failure, seconds=event.seconds)
            return self._fail("tool_execution_error", f"tool '{call.name}': {failure}")
        calls.results[call.id] = event.content
        self._traces.append(
            Trace(
                id=call.id,
                name=call.name,
                arguments=as_json(call.arguments),
                result=event.content,
                seconds=event.seconds,
            )
        )
        if not calls.done:
            return calls.begin_next()
        self._prompt.answered(*self._said, calls.calls, calls.results)
        self._round = None
        return [self._generate(now)]

    def _note(self, call: ModelCall, *, error: str, seconds: float = 0.0) -> None:
        arguments = as_json(call.arguments)
        self._traces.append(Trace(id=call.id, name=call.name, arguments=arguments, error=error, seconds=seconds))

    # ---- the end of the run ------------------------------------------------------------------------------------------

    def _leave(self, turn: ModelTurn, why: str) -> list[RunCommand]:
        """End a turn that broke off."""
        shown = self._show(turn.release())
        for call in self._judge.judge(turn.structured()):
            self._note(call.call, error=f"not executed: {why}")
        self._close(turn)
        return shown

    def _complete(self, finish_reason: str) -> list[RunCommand]:
        return self._finish(
            _RunEnd(state="completed", finish_reason="max_tokens" if finish_reason == CUT_OFF else "stop")
        )

    def _fail(self, reason: FailReason, detail: str) -> list[RunCommand]:
        commands: list[RunCommand] = []
        if self._turn is not None:
            commands = [*self._leave(self._turn, detail), StopGenerating()]
        if self._round is not None:
            for call in self._round.unanswered:
                self._note(call, error=f"not answered: {detail}")
        canceled = reason == "canceled"
        end = _RunEnd(
            state="canceled" if canceled else "failed",
            finish_reason="canceled" if canceled else "failed",
            fail_reason=reason,
            detail=detail,
        )
        return [*commands, *self._finish(end)]

    def _finish(self, end: _RunEnd) -> list[RunCommand]:
        self._end = end
        self._round = None
        return [Finish()]


def _size_of(event: RunEvent) -> int:
    match event:
        case TextDelta(text) | ReasoningDelta(text):
            return len(text)
        case CallDelta(name=name, arguments=arguments):
            return len(name) + len(arguments)
        case ToolFinished(content=content, failure=failure):
            return len(content) + len(failure or "")
        case _:
            return 0


def _sum(one: TurnUsage, other: TurnUsage) -> TurnUsage:
    return TurnUsage(
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
