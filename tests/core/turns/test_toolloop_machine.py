"""Every order of events: no text is lost, no call goes unanswered or unrecorded, the budget holds, the end is one."""

from __future__ import annotations

import json

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import Struct
from run_play import MESSAGES, NOW, TOOLS

from appliance.core.turns import messages
from appliance.core.turns.toolloop import Loop

GOOD = {"read_file": '{"path": "a"}', "list_files": "{}", "ask_user": '{"question": "?"}', "report": '{"status": "ok"}'}
BAD = {"read_file": "{}", "list_files": "[]", "ask_user": "{", "report": '{"status": 1}', "fly": "{}"}
DIRECTIVES = [
    f'```tool_call\n{{"tool": "{name}", "arguments": {arguments}}}\n```\n'
    for name, arguments in [*GOOD.items(), ("fly", "{}"), ("read_file", "{}")]
]
TEXTS = ["Hello ", "world.\n", "\n", "```", "```tool_call\n", "```tool_call\n{oops}\n```\n", *DIRECTIVES]


class Speaks(Struct):
    """A piece of a turn. ``cut``: it comes in two deltas."""

    text: str
    cut: int
    thought: bool = False


class Calls(Struct):
    """A structured call. ``good``: there is such a tool, and the arguments fit."""

    name: str
    id: str
    good: bool
    whole: bool


PIECES = st.lists(
    st.builds(Speaks, st.sampled_from(TEXTS), st.integers(0, 30), st.integers(0, 9).map(lambda n: n == 0))
    | st.builds(
        Calls,
        st.sampled_from([*GOOD, *GOOD, "fly"]),
        st.sampled_from(["", "x", "y", "call_1"]),
        st.integers(0, 9).map(bool),
        st.booleans(),
    )
    | st.builds(messages.TurnUsage, prompt_tokens=st.integers(1, 9)),
    max_size=5,
)
ENDINGS = st.sampled_from(
    [
        *(
            messages.TurnEnded(finish_reason=reason)
            for reason in ("stop", "tool_calls", "length", "", "stop", "tool_calls")
        ),
        messages.TurnFailed(reason="server_died", detail="gone"),
        messages.CancelAsked(),
    ]
)
ANSWERS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["", "a", "b", "c", "a", "b", "\ud800", None, "cancel"]))
)
TASKS = st.builds(
    messages.Task,
    model=st.just("m"),
    messages=st.just(MESSAGES),
    tools=st.just(TOOLS),
    max_tool_iterations=st.integers(0, 3),
    parallel_tool_calls=st.booleans(),
    bios=st.sampled_from([True, False, "${iterations_left} left.\n${call_format}"]),
    hands_over=st.booleans(),
    repeated_line_limit=st.sampled_from([0, 2, 3]),
)
LATE = st.sampled_from(
    [
        messages.TextDelta("late"),
        messages.TurnEnded(finish_reason="stop"),
        messages.ToolFinished(call_id="x"),
        messages.CancelAsked(),
    ]
)
GENERATING, USING, OVER = "generating", "using", "over"


def without_directives(text: str) -> str:
    for directive in DIRECTIVES:
        text = text.replace(directive, "")
    return text


class World(RuleBasedStateMachine):
    """An engine, tools and a caller who do whatever they like whenever they may."""

    state = OVER

    @rule(task=TASKS, pieces=PIECES, ending=ENDINGS, answers=ANSWERS, late=LATE)
    def goes_on(
        self,
        task: messages.Task,
        pieces: list[Speaks | Calls | messages.TurnUsage],
        ending: messages.RunEvent,
        answers: list[tuple[int, str | None]],
        late: messages.RunEvent,
    ) -> None:
        """What is next: a run begins, the model speaks its turn, or calls are answered."""
        if self.state == OVER:
            self.begin(task)
        elif self.state == GENERATING:
            for piece in pieces:
                self.speak(piece)
            self.end_turn(ending)
        else:
            for which, how in answers:
                self.answer(which, how)
        if self.state == OVER:
            self.check_end(late)

    def begin(self, task: messages.Task) -> None:
        self.task = task
        self.loop = Loop(task)
        self.state = ""
        self.said = self.thought = self.shown = self.shown_thought = ""
        self.written = 0  # structured calls of the turn at hand
        self.calls = 0  # structured calls of the whole run
        self.due: dict[str, messages.ModelCall] = {}
        self.asked: set[str] = set()
        self.executed: set[str] = set()
        self.finished = 0
        self.signals = 0
        self.tokens = self.turn_tokens = 0
        self.perform(self.loop.begin(NOW))

    def perform(self, commands: list[messages.RunCommand]) -> None:
        for command in commands:
            assert not self.finished, f"{command} after Finish"
            match command:
                case messages.Generate():
                    assert self.state in ("", USING)
                    assert not self.due
                    self.state = GENERATING
                    self.check_request(command)
                case messages.RunTools(calls=calls) | messages.AskClient(calls=calls):
                    assert calls
                    assert self.state == USING
                    assert not {call.id for call in calls} & self.executed, "a call is executed twice"
                    for call in calls:
                        runner = "server" if isinstance(command, messages.RunTools) else "client"
                        assert [tool.runner for tool in TOOLS if tool.name == call.name] == [runner]
                        assert isinstance(json.loads(call.arguments), dict)
                        self.due[call.id] = call
                        self.executed.add(call.id)
                        if runner == "client":
                            self.asked.add(call.id)
                case messages.StopGenerating():
                    assert self.state == GENERATING
                    self.state = OVER
                case messages.ShowText(text):
                    assert text
                    self.shown += text
                case messages.ShowReasoning(text):
                    self.shown_thought += text
                case messages.ShowSignal(signal):
                    self.signals += 1
                    assert self.loop.outcome().signals[self.signals - 1] == signal
                case messages.Finish():
                    self.finished += 1
        if self.finished:
            self.state = OVER

    def check_request(self, command: messages.Generate) -> None:
        """Every call that the model is shown is a normal one and answered right behind it, in order."""
        sent, systems = json.loads(command.body)["messages"], 1 + bool(self.task.bios)
        assert [message["role"] for message in sent[:systems]] == ["system"] * systems
        open_calls: list[str] = []
        seen: set[str] = set()
        for message in sent:
            if message["role"] == "tool":
                assert message["tool_call_id"] == open_calls.pop(0)
                continue
            assert not open_calls
            open_calls = [call["id"] for call in message.get("tool_calls", ())]
            assert not seen & set(open_calls)
            seen |= set(open_calls)
            assert "report" not in [call["function"]["name"] for call in message.get("tool_calls", ())]
        assert not open_calls
        assert seen == self.executed

    def tell(self, event: messages.RunEvent) -> None:
        self.perform(self.loop.on_event(event, NOW))

    def speak(self, piece: Speaks | Calls | messages.TurnUsage) -> None:
        match piece:
            case Speaks(text=text, cut=cut, thought=thought):
                for part in (text[:cut], text[cut:]):
                    if self.state == GENERATING:
                        self.said += "" if thought else part
                        self.thought += part if thought else ""
                        self.tell(messages.ReasoningDelta(part) if thought else messages.TextDelta(part))
            case Calls() if self.state == GENERATING:
                arguments = GOOD[piece.name] if piece.good and piece.name in GOOD else BAD[piece.name]
                index = self.written
                self.written, self.calls = self.written + 1, self.calls + 1
                cut = len(arguments) if piece.whole else 2
                self.tell(messages.CallDelta(index=index, id=piece.id, name=piece.name, arguments=arguments[:cut]))
                self.tell(messages.CallDelta(index=index, arguments=arguments[cut:]))
            case messages.TurnUsage() if self.state == GENERATING:
                self.turn_tokens = piece.prompt_tokens
                self.tell(piece)
            case _:
                pass

    def end_turn(self, ending: messages.RunEvent) -> None:
        if self.state != GENERATING:
            return
        self.tokens, self.turn_tokens, self.written = self.tokens + self.turn_tokens, 0, 0
        if not isinstance(ending, messages.CancelAsked):
            self.state = USING
        self.tell(ending)
        outcome = self.loop.outcome()
        if isinstance(ending, messages.TurnFailed):
            assert outcome.fail_reason == ending.reason
        elif isinstance(ending, messages.CancelAsked):
            assert outcome.state == "canceled"
        else:
            assert outcome.fail_reason in (None, "tool_parse_error", "tool_execution_error")

    def answer(self, which: int, how: str | None) -> None:
        if self.state != USING:
            return
        if how == "cancel":
            self.tell(messages.CancelAsked())
            assert self.loop.outcome().state == "canceled"
            return
        call_id = sorted(self.due)[which % len(self.due)]
        del self.due[call_id]
        self.asked.discard(call_id)
        if how is None:
            self.tell(messages.ToolFinished(call_id=call_id, failure="it broke"))
        else:
            self.tell(messages.ToolFinished(call_id=call_id, content=how))
        assert (how in (None, "\ud800")) == (self.loop.outcome().fail_reason == "tool_execution_error")

    def check_end(self, late: messages.RunEvent) -> None:
        """Every call is recorded, and nothing changes any more."""
        outcome = self.loop.outcome()
        recorded = len(outcome.signals) + len(outcome.tool_trace) + len(outcome.pending_tool_calls)
        assert recorded >= self.calls
        assert len({trace.id for trace in outcome.tool_trace}) == len(outcome.tool_trace)
        assert self.executed <= {trace.id for trace in outcome.tool_trace}
        assert self.loop.on_event(late, NOW) == []
        assert self.loop.outcome() == outcome

    @invariant()
    def what_is_shown_is_what_there_is(self) -> None:
        if not hasattr(self, "loop"):
            return
        outcome = self.loop.outcome()
        assert outcome.output == self.shown
        assert outcome.reasoning == self.shown_thought == self.thought
        assert outcome.usage.prompt_tokens == self.tokens + self.turn_tokens
        if self.state != GENERATING:
            assert without_directives(outcome.output) == without_directives(self.said)
            if outcome.fail_reason in ("tool_parse_error", "server_died") and not self.executed:
                assert outcome.output == self.said

    @invariant()
    def the_budget_holds(self) -> None:
        if not hasattr(self, "loop"):
            return
        outcome = self.loop.outcome()
        assert 0 <= outcome.tool_iterations_used <= self.task.max_tool_iterations
        assert outcome.tool_iterations_used + outcome.tool_iterations_left == self.task.max_tool_iterations

    @invariant()
    def the_state_is_told(self) -> None:
        if not hasattr(self, "loop"):
            return
        outcome = self.loop.outcome()
        wanted = {GENERATING: ("running",), USING: ("tool_running",), OVER: ("completed", "failed", "canceled")}
        assert outcome.state in wanted[self.state]
        assert self.finished == (self.state == OVER)
        if self.state == USING:
            assert self.due
            assert {call.id for call in outcome.pending_tool_calls} == self.asked
        assert (outcome.finish_reason is not None) == (self.state == OVER)
        assert (outcome.fail_reason is not None) == (outcome.state in ("failed", "canceled"))


TestWorld = World.TestCase
