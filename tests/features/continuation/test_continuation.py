"""A stream cut anywhere and continued reads as the whole one would have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pytest
from cutting import cut
from drawn_json import json_values
from hypothesis import assume, given
from hypothesis import strategies as st

from appliance.core.answers.families import Family, is_over
from appliance.core.answers.going_on import Refusal, Seam
from appliance.core.bodies.sse import PING, Decoder, SseEvent, encode
from appliance.features.continuation.core.beginning import MAX_TEXT, Partial, SoFar, continued_body
from appliance.features.continuation.core.splice import Splicer

SEAM = Seam(origin="old:", on="new:", why="killed by signal 9", milliseconds=20.0)
PROMPT = 11
REQUESTS = {
    "chat": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40},
    "completion": {"prompt": "hi", "max_tokens": 40},
    "native": {"prompt": "hi", "n_predict": 40},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40},
    "responses": {"input": "hi", "max_output_tokens": 40},
}
FAMILIES = {
    "chat": Family.CHAT,
    "completion": Family.COMPLETION,
    "native": Family.COMPLETION,
    "messages": Family.MESSAGES,
    "responses": Family.RESPONSES,
}
Pieces = Sequence[str]
NAMES = [
    *("choices", "delta", "content", "type", "index", "item", "id", "response", "usage", "timings", "text", "part"),
    *("output", "item_id", "prompt", "role", "stop", "output_tokens", "completion_tokens", "predicted_n"),
    *("predicted_ms", "finish_reason", "error", "message", "content_block"),
]
VALUES = [
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message"),
    *("response.output_item.added", "response.output_item.done", "response.output_text.delta", "response.completed"),
    *("reasoning", "text", "thinking"),
]


def record(data: object, name: str | None = None) -> bytes:
    return encode(SseEvent(json.dumps(data), name))


def named(data: dict[str, object]) -> bytes:
    return record(data, str(data["type"]))


def timings(prompt: int, predicted: int) -> dict[str, object]:
    return {"cache_n": 0, "prompt_n": prompt, "predicted_n": predicted, "predicted_ms": 10.0 * predicted}


def text_so_far(pieces: Iterable[bytes], family: Family) -> Partial | Refusal:
    reader = SoFar(family)
    for piece in pieces:
        reader.feed(piece)
    return reader.partial()


class Engine:
    """Writes streams as llama-server b11434 does. ``before`` is what it was told to go on from.

    ``echoes``: its first delta says all of that again.
    """

    def __init__(self, kind: str, ident: str, before: tuple[str, str] = ("", ""), *, echoes: bool = False) -> None:
        self.kind, self.ident, self.before, self.echoes = kind, ident, before, echoes

    def stream(self, thoughts: Pieces, pieces: Pieces, prompt: int = PROMPT) -> list[bytes]:
        count = len(thoughts) + len(pieces)
        if self.echoes:
            if self.before[1] or pieces:
                thoughts = [self.before[0], *thoughts] if self.before[0] else thoughts
                pieces = [self.before[1] + (pieces[0] if pieces else ""), *pieces[1:]]
            else:
                thoughts = [self.before[0] + (thoughts[0] if thoughts else ""), *thoughts[1:]]
        thoughts, pieces = [t for t in thoughts if t], [p for p in pieces if p]
        match self.kind:
            case "chat":
                return self._chat(thoughts, pieces, prompt, count)
            case "completion":
                head = {"id": self.ident, "created": 7, "model": "m", "object": "text_completion"}
                said = [record(head | {"choices": [{"text": p, "index": 0, "finish_reason": None}]}) for p in pieces]
                usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
                last = {"choices": [{"text": "", "index": 0, "finish_reason": "stop"}], "usage": usage}
                return [*said, record(head | last | {"timings": timings(prompt, count)}), b"data: [DONE]\n\n"]
            case "native":
                told = [
                    {"index": 0, "content": p, "stop": False, "tokens_predicted": n + 1, "tokens_evaluated": prompt}
                    for n, p in enumerate(pieces)
                ]
                last = {"content": "", "stop": True, "tokens_predicted": count, "tokens_evaluated": prompt}
                last |= {"prompt": f"<s>hi{self.before[1]}", "timings": timings(prompt, count)}
                return [record(one) for one in [*told, last]]
            case "messages":
                return self._messages(thoughts, pieces, prompt, count)
            case _:
                return self._responses(thoughts, pieces, prompt, count)

    def _chat(self, thoughts: Pieces, pieces: Pieces, prompt: int, count: int) -> list[bytes]:
        def chunk(delta: dict[str, object], finish: str | None = None) -> dict[str, object]:
            choices = [{"finish_reason": finish, "index": 0, "delta": delta}]
            return {"choices": choices, "created": 7, "id": self.ident, "model": "m"}

        usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        return [
            record(chunk({"role": "assistant", "content": None})),
            *(record(chunk({"reasoning_content": thought})) for thought in thoughts),
            *(record(chunk({"content": piece})) for piece in pieces),
            record(chunk({}, "stop")),
            record(chunk({}) | {"choices": [], "usage": usage, "timings": timings(prompt, count)}),
            b"data: [DONE]\n\n",
        ]

    def _messages(self, thoughts: Pieces, pieces: Pieces, prompt: int, count: int) -> list[bytes]:
        usage = {"input_tokens": prompt, "output_tokens": 0}
        found = [named({"type": "message_start", "message": {"id": self.ident, "content": [], "usage": usage}})]
        at = 1 if thoughts or self.before[0] else 0
        for index, kind, field, said in ((0, "thinking", "thinking", thoughts), (at, "text", "text", pieces)):
            for number, piece in enumerate(said):
                if number == 0:
                    block = {"type": kind, field: ""}
                    found.append(named({"type": "content_block_start", "index": index, "content_block": block}))
                delta = {"type": f"{kind}_delta", field: piece}
                found.append(named({"type": "content_block_delta", "index": index, "delta": delta}))
        if at:
            delta = {"type": "signature_delta", "signature": ""}
            found.append(named({"type": "content_block_delta", "index": 0, "delta": delta}))
            found.append(named({"type": "content_block_stop", "index": 0}))
        if pieces:
            found.append(named({"type": "content_block_stop", "index": at}))
        last = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": count}}
        return [*found, named(last), named({"type": "message_stop"})]

    def _responses(self, thoughts: Pieces, pieces: Pieces, prompt: int, count: int) -> list[bytes]:
        whole = {"id": f"resp_{self.ident}", "object": "response", "status": "in_progress"}
        found = [named({"type": "response.created", "response": whole})]
        found.append(named({"type": "response.in_progress", "response": whole}))
        rs, msg = f"rs_{self.ident}", f"msg_{self.ident}"
        for number, thought in enumerate(thoughts):
            if number == 0:
                item = {"type": "reasoning", "id": rs, "summary": [], "content": []}
                found.append(named({"type": "response.output_item.added", "item": item}))
            found.append(named({"type": "response.reasoning_text.delta", "item_id": rs, "delta": thought}))
        for number, piece in enumerate(pieces):
            if number == 0:
                item = {"type": "message", "id": msg, "role": "assistant", "content": []}
                found.append(named({"type": "response.output_item.added", "item": item}))
                part = {"type": "output_text", "text": ""}
                found.append(named({"type": "response.content_part.added", "item_id": msg, "part": part}))
            found.append(named({"type": "response.output_text.delta", "item_id": msg, "delta": piece}))
        output: list[object] = []
        if thought := self.before[0] + "".join(thoughts):
            content = [{"type": "reasoning_text", "text": thought}]
            output.append({"type": "reasoning", "id": rs, "summary": [], "content": content})
            found.append(named({"type": "response.output_item.done", "item": output[-1]}))
        if text := self.before[1] + "".join(pieces):
            part = {"type": "output_text", "text": text}
            found.append(named({"type": "response.output_text.done", "item_id": msg, "text": text}))
            found.append(named({"type": "response.content_part.done", "item_id": msg, "part": part}))
            output.append({"type": "message", "id": msg, "role": "assistant", "content": [part]})
            found.append(named({"type": "response.output_item.done", "item": output[-1]}))
        usage = {"input_tokens": prompt, "output_tokens": count, "total_tokens": prompt + count}
        done = whole | {"status": "completed", "output": output, "usage": usage}
        found.append(named({"type": "response.completed", "response": done, "timings": timings(prompt, count)}))
        return found


class Seen:
    """What a client makes of a stream, and what would be wrong in it."""

    def __init__(self, kind: str, stream: bytes) -> None:
        self.thoughts = self.text = ""
        self.usage: dict[str, int] = {}
        self.timings: dict[str, float] = {}
        self.whole: dict[str, object] = {}
        self.marks: list[dict[str, object]] = []
        self.ids: set[object] = set()
        self.roles = self.ends = self.dones = 0
        self.open: dict[int, str] = {}
        self.kinds: list[str] = []
        for event in Decoder().feed(stream):
            if event.data == "[DONE]":
                self.dones += 1
                continue
            data = json.loads(event.data)
            assert kind in ("chat", "completion", "native") or event.name == data["type"]
            if "appliance" in data:
                self.marks.append(data["appliance"]["continued"])
            self.timings = data.get("timings", self.timings)
            getattr(self, f"_{kind}")(data)

    def _chat(self, data) -> None:
        self.ids.add((data["id"], data["created"], data["model"]))
        self.usage = data.get("usage", self.usage)
        for choice in data["choices"]:
            self.roles += "role" in choice["delta"]
            self.text += choice["delta"].get("content") or ""
            self.thoughts += choice["delta"].get("reasoning_content") or ""
            self.ends += choice["finish_reason"] is not None

    def _completion(self, data) -> None:
        self.ids.add((data["id"], data["created"], data["model"]))
        self.usage = data.get("usage", self.usage)
        for choice in data["choices"]:
            self.text += choice["text"]
            self.ends += choice["finish_reason"] is not None

    def _native(self, data) -> None:
        self.text += data["content"]
        self.usage = {"prompt_tokens": data["tokens_evaluated"], "completion_tokens": data["tokens_predicted"]}
        self.ends += data["stop"]
        self.whole = data

    def _messages(self, data) -> None:
        match data["type"]:
            case "message_start":
                self.roles += 1
                self.usage = {"prompt_tokens": data["message"]["usage"]["input_tokens"]}
            case "content_block_start":
                assert data["index"] == len(self.kinds)
                self.kinds.append(data["content_block"]["type"])
                self.open[data["index"]] = self.kinds[-1]
            case "content_block_delta":
                kind = self.open[data["index"]]
                assert data["delta"]["type"] in (f"{kind}_delta", "signature_delta")
                self.text += data["delta"].get("text", "")
                self.thoughts += data["delta"].get("thinking", "")
            case "content_block_stop":
                del self.open[data["index"]]
            case "message_delta":
                assert not self.open
                self.ends += 1
                self.usage["completion_tokens"] = data["usage"]["output_tokens"]
            case "message_stop":
                self.dones += 1

    def _responses(self, data) -> None:
        if "response" in data:
            self.ids.add(data["response"]["id"])
        match data["type"]:
            case "response.created":
                self.roles += 1
            case "response.output_item.added":
                self.kinds.append(data["item"]["type"])
                self.open[len(self.kinds)] = data["item"]["id"]
            case "response.output_text.delta":
                assert data["item_id"] in self.open.values()
                self.text += data["delta"]
            case "response.reasoning_text.delta":
                assert data["item_id"] in self.open.values()
                self.thoughts += data["delta"]
            case "response.output_item.done":
                assert data["item"]["id"] in self.open.values()
                said = "".join(part["text"] for part in data["item"]["content"])
                assert said == (self.text if data["item"]["type"] == "message" else self.thoughts)
            case "response.completed":
                usage = data["response"]["usage"]
                self.usage = {"prompt_tokens": usage["input_tokens"], "completion_tokens": usage["output_tokens"]}
                assert [item["id"] for item in data["response"]["output"]] == list(self.open.values())
                self.ends += 1


words = st.text(alphabet=st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6)
cutting = st.lists(st.integers(0, 1 << 16), max_size=12)


@given(
    kind=st.sampled_from(sorted(REQUESTS)),
    thoughts=st.lists(words, max_size=4),
    pieces=st.lists(words, max_size=6),
    data=st.data(),
    first_cuts=cutting,
    second_cuts=cutting,
)
def test_wherever_it_breaks_the_client_sees_one_answer(
    kind: str,
    thoughts: list[str],
    pieces: list[str],
    data: st.DataObject,
    first_cuts: list[int],
    second_cuts: list[int],
):
    if kind in ("completion", "native"):
        thoughts = []
    whole = Engine(kind, "one").stream(thoughts, pieces)
    said = len(thoughts) + len(pieces)
    head = b"".join(whole[: data.draw(st.integers(0, len(whole)))])
    partial = text_so_far(cut(head, first_cuts), FAMILIES[kind])
    if isinstance(partial, Refusal):
        assert kind == "responses"
        assert b"response.completed" not in head
        assert b".done" in head
        return
    expected = Seen(kind, b"".join(whole))
    if partial.finished:
        got = Seen(kind, head + partial.closing)
        assert (got.text, got.thoughts, got.dones) == (expected.text, expected.thoughts, expected.dones)
        return
    assert 0 <= partial.tokens <= said
    rest = thoughts[partial.reasoning_pieces :], pieces[partial.text_pieces :]
    assert (partial.reasoning, partial.text) == (
        "".join(thoughts[: partial.reasoning_pieces]),
        "".join(pieces[: partial.text_pieces]),
    )
    echoes = kind == "messages" and data.draw(st.booleans())
    if kind == "messages" and not echoes:  # nobody could tell these from an echo
        assume(not partial.text or not rest[1] or not rest[1][0].startswith(partial.text))
        assume(not partial.reasoning or not rest[0] or not rest[0][0].startswith(partial.reasoning))
    engine = Engine(kind, "two", (partial.reasoning, partial.text), echoes=echoes)
    splicer = Splicer(partial, SEAM)
    second = b"".join(engine.stream(*rest, prompt=PROMPT + partial.tokens))
    spliced = splicer.begin() + b"".join(splicer.feed(piece) for piece in cut(second, second_cuts))
    assert not splicer.broken
    if not partial.begun:
        return  # asked again as it was: there is nothing to be spliced to
    got = Seen(kind, head + spliced)
    assert (got.text, got.thoughts) == (expected.text, expected.thoughts)
    assert (got.dones, got.ends, got.roles) == (expected.dones, expected.ends, expected.roles)
    assert got.ids == expected.ids
    assert got.kinds == expected.kinds
    assert not got.open or kind == "responses"
    assert got.usage == expected.usage
    assert got.marks == [{"after": partial.tokens, "from": "old:", "on": "new:", "why": "killed by signal 9"}]
    if got.timings:
        assert (got.timings["prompt_n"], got.timings["predicted_n"]) == (PROMPT, said)
    if kind == "native":
        assert got.whole["prompt"] == "<s>hi"


@given(
    st.sampled_from(list(Family)),
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from([b"data: ", b"\n\n", b"data: {}\n\n", b'data: {"choices":[{"delta":[]}]}\n\n', PING]),
            json_values(NAMES, text=st.text(max_size=5) | st.sampled_from(VALUES)).map(record),
        ),
        max_size=8,
    ),
)
def test_garbage_never_raises(family: Family, pieces: list[bytes]):
    text_so_far(pieces, family)
    first = text_so_far(Engine("chat", "one").stream([], ["a", "b"])[:2], Family.CHAT)
    for partial in (first, text_so_far(pieces[:2], family)):
        if isinstance(partial, Partial):
            splicer = Splicer(partial, SEAM)
            splicer.begin()
            for piece in pieces:
                splicer.feed(piece)
            continued_body(b"".join(pieces), partial)
            continued_body(json.dumps(REQUESTS["chat"]).encode(), partial)


LAST_WORDS = [
    '"type":"message_stop"',
    "\n\ndata: [DONE]\n\n",
    '"type": "response.completed"',
    '\\"stop": true',
    "data: ",
]


@pytest.mark.parametrize("kind", sorted(REQUESTS))
@given(
    pieces=st.lists(st.sampled_from(LAST_WORDS) | st.text(min_size=1), max_size=4),
    at=st.floats(0, 1, exclude_max=True),
    held=st.integers(0, 2000),
)
def test_only_a_stream_with_its_last_record_is_over(kind: str, pieces: Pieces, at: float, held: int):
    records = Engine(kind, "one").stream([], pieces)
    stream = b"".join(records)
    tail = len(records[-1]) + held
    assert is_over(stream[-tail:])
    assert is_over(stream[-tail:].replace(b"\n", b"\r\n"))
    assert not is_over(stream + record({"index": 1, "content": "another answer", "stop": False}))
    early = stream[: int(len(stream) * at)]
    assert not is_over(early)
    assert not is_over(early[-held:])


def partial_of(kind: str, thoughts: Pieces = (), pieces: Pieces = ("Once", " upon")) -> Partial:
    reader = SoFar(FAMILIES[kind])
    for one in Engine(kind, "one").stream(thoughts, pieces):
        reader.feed(one)
        found = reader.partial()
        if isinstance(found, Partial) and found.tokens == len(thoughts) + len(pieces):
            return found
    raise AssertionError("the stream says less than it was told to")


def continued(kind: str, asked: dict[str, object], partial: Partial | None = None):
    found = continued_body(json.dumps(asked).encode(), partial or partial_of(kind))
    return found if isinstance(found, Refusal) else json.loads(found)


def test_the_request_for_the_rest():
    chat = continued("chat", REQUESTS["chat"] | {"x": 1.5}, partial_of("chat", ["Hm", "."], ["Once", " upon"]))
    assert chat["messages"][1:] == [{"role": "assistant", "content": "Once upon", "reasoning_content": "Hm."}]
    assert (chat["max_tokens"], chat["x"], chat["continue_final_message"]) == (36, 1.5, True)
    assert chat["add_generation_prompt"] is False
    assert continued("completion", {"prompt": "hi", "max_tokens": 2})["max_tokens"] == 1
    assert continued("completion", {"prompt": ["hi "]})["prompt"] == ["hi Once upon"]
    assert continued("native", {"prompt": [1, 2], "n_predict": -1}) == {"prompt": [1, 2, "Once upon"], "n_predict": -1}
    media = {"prompt": {"prompt_string": "<m>", "multimodal_data": ["x"]}}
    assert continued("native", media)["prompt"] == {"prompt_string": "<m>Once upon", "multimodal_data": ["x"]}
    messages = continued("messages", REQUESTS["messages"], partial_of("messages", ["Hm"]))
    assert messages["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Hm", "signature": ""},
        {"type": "text", "text": "Once upon"},
    ]
    assert "continue_final_message" not in messages
    answer = continued("responses", REQUESTS["responses"])
    assert [item["role"] for item in answer["input"]] == ["user", "assistant"]
    assert answer["max_output_tokens"] == 38


def test_what_it_does_not_change_keeps_its_bytes():
    body = b' {"messages" :[ {"role":"user","content":"\\u00e9"} ],"x": 1.50,\t"y":"\xc3\xa9"}\r\n'
    found = continued_body(body, partial_of("chat"))
    assert found.startswith(b' {"messages" :[ {"role":"user","content":"\\u00e9"},{"role":"assistant"')
    assert b'"x": 1.50,\t"y":"\xc3\xa9"' in found


@pytest.mark.parametrize(
    ("kind", "more", "word"),
    [
        ("chat", {"n": 2}, "'n'"),
        ("chat", {"logprobs": True}, "'logprobs'"),
        ("completion", {"logprobs": 1}, "'logprobs'"),
        ("native", {"n_probs": 3}, "'n_probs'"),
        ("native", {"grammar": 'root ::= "x"'}, "'grammar'"),
        ("chat", {"json_schema": {"type": "object"}}, "'json_schema'"),
        ("chat", {"response_format": {"type": "json_object"}}, "'response_format'"),
        ("responses", {"text": {"format": {"type": "json_schema"}}}, "'text.format'"),
        ("chat", {"tool_choice": "required"}, "'tool_choice'"),
        ("messages", {"tool_choice": {"type": "any"}}, "'tool_choice'"),
        ("chat", {"add_generation_prompt": False}, "'add_generation_prompt'"),
        ("chat", {"messages": [{"role": "assistant", "content": "I"}]}, "continues"),
        ("messages", {"messages": [{"role": "assistant", "content": "I"}]}, "continues"),
        ("completion", {"prompt": ["a", "b"]}, "not a single text"),
    ],
)
def test_what_cannot_be_continued_says_why(kind: str, more: dict[str, object], word: str):
    found = continued(kind, REQUESTS[kind] | more)
    assert word in found.why


def test_no_constraint_is_no_obstacle():
    allowed = {"n": 1, "logprobs": False, "response_format": {"type": "text"}, "tool_choice": "auto", "tools": []}
    assert not isinstance(continued("chat", REQUESTS["chat"] | allowed), Refusal)


def test_streams_that_cannot_be_continued():
    call = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"a'}}]}
    chunk = {"id": "x", "choices": [{"index": 0, "delta": call, "finish_reason": None}]}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t"}}
    item = {"type": "response.output_item.added", "item": {"type": "function_call", "id": "t"}}
    for family, one in ((Family.CHAT, chunk), (Family.MESSAGES, block), (Family.RESPONSES, item)):
        found = text_so_far([record(one)], family)
        assert "tool call" in found.why
    several = {"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": None}]}
    failed = {"error": {"code": 500, "message": "no memory"}}
    for one in (several, failed):
        assert isinstance(text_so_far([record(one)], Family.CHAT), Refusal)
    assert isinstance(text_so_far([b'error: {"code":500}\n\n'], Family.CHAT), Refusal)
    long = [record({"choices": [{"index": 0, "delta": {"content": "x" * (1 << 16)}}]}) for _ in range(17)]
    found = text_so_far(long, Family.CHAT)
    assert "1 MiB" in found.why
    assert isinstance(text_so_far(long[: MAX_TEXT >> 16], Family.CHAT), Partial)
    thoughts = partial_of("chat", pieces=["<think>", "Hm"])
    assert isinstance(continued("chat", REQUESTS["chat"], thoughts), Refusal)


def test_an_engine_that_says_the_beginning_again_is_not_quoted_twice():
    first = partial_of("chat", pieces=["Once upon", " a time, a", " young"])
    engine = Engine("chat", "two", ("", first.text), echoes=True)
    splicer = Splicer(first, SEAM)
    assert Seen("chat", splicer.feed(b"".join(engine.stream([], [" llama", "."])))).text == " llama."


def test_an_error_record_of_the_second_engine_passes_as_it_is():
    splicer = Splicer(partial_of("chat"), SEAM)
    told = b'data: {"error":{"code":500,"message":"no memory"}}\n\n'
    assert splicer.feed(told) == told


def test_a_stream_ends_once():
    splicer = Splicer(partial_of("chat"), SEAM)
    end = b"data: [DONE]\n\n"
    assert splicer.feed(end + end + record({"choices": [{"index": 0, "delta": {"content": "more"}}]})) == end


def test_blocks_that_begin_and_say_nothing_do_not_fill_the_memory():
    splicer = Splicer(partial_of("messages"), SEAM)
    for index in range(1000):
        block = {"type": "text", "text": "x" * 1000}
        splicer.feed(record({"type": "content_block_start", "index": index + 5, "content_block": block}))
    assert splicer.broken
