"""The chain of one request, from its slash commands to its background work, and what is left when it ends early."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from plugin_folders import write_plugin

from appliance.core.answers.families import Family, family_of
from appliance.core.runs.inward import ProgressWatch
from appliance.errors import BadRequest, ModelNotFound, PluginFailed
from appliance.features.plugins.chain import Chain, open_chain
from appliance.features.plugins.core.slash import MAX_COMMANDS, Commands, split
from appliance.features.plugins.registry import open_plugins
from appliance.plugins import Event, Response
from appliance.plugins.folders import PluginSelection
from appliance.plugins.testing import reply, streamed

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[]}'
TRACE = """
def on_request(request, context):
    request.body.setdefault("trace", []).append(context.folder.name)

def on_response(response, context):
    response.body.setdefault("trace", []).append(context.folder.name)

async def on_stream(events, context):
    async for event in events:
        if event.data:
            event.data.setdefault("trace", []).append(context.folder.name)
        yield event
"""


class NoModels:
    """An `Asker` in a program without models."""

    def ask(self, path: str, body: bytes, *, origin: str = "program", watch: ProgressWatch | None = None) -> NoReturn:
        raise ModelNotFound("any")


class Slowly:
    """Events with a pause before each."""

    def __init__(self, events: Sequence[Event], pause: float = 0.0) -> None:
        self._events = iter(events)
        self._pause = pause

    def __aiter__(self) -> Slowly:
        return self

    async def __anext__(self) -> Event:
        await trio.sleep(self._pause)
        for event in self._events:
            return event
        raise StopAsyncIteration


@asynccontextmanager
async def chain_of(folder: Path, *commands: str, path: str = CHAT) -> AsyncGenerator[Chain]:
    failure: Exception | None = None
    async with open_plugins(PluginSelection(folders=(folder,)), folder / "data") as plugins:
        try:
            entries = [plugins.entries[name] for name in commands]
            async with open_chain(entries, path, "m", NoModels(), lambda: ["m"]) as chain:
                yield chain
        except Exception as error:  # noqa: BLE001  raised below, as itself and not as a group
            failure = error
    if failure is not None:
        raise failure


async def collected(answer: Response | AsyncIterator[Event]) -> list[Event]:
    assert not isinstance(answer, Response)
    return [event async for event in answer]


def text_of(events: Sequence[Event]) -> str:
    text = ""
    for event in events:
        match event.data:
            case {"choices": [{"delta": {"content": str(piece)}}]}:
                text += piece
            case _:
                pass
    return text


async def test_the_same_order_for_requests_whole_answers_and_streams(tmp_path: Path):
    for name in ("a", "b", "c"):
        write_plugin(tmp_path, name, TRACE)
    async with chain_of(tmp_path, "c", "a", "b", "a") as chain:
        body, streams = await chain.request(BODY, stream=False)
        assert (body, streams) == (BODY[:-1] + b',"trace":["c","a","b","a"]}', False)
        answer = await chain.respond(Response(status=200, body=reply("hi")), stream=False)
        assert isinstance(answer, Response)
        assert answer.body["trace"] == ["c", "a", "b", "a"]
        events = await collected(await chain.respond(Slowly(streamed("h", "i")), stream=True))
        assert [event.data and event.data["trace"] for event in events] == [["c", "a", "b", "a"]] * 4 + [None]


async def test_a_body_that_no_plugin_looks_at_is_not_written_anew(tmp_path: Path):
    write_plugin(tmp_path, "late", "def on_response(r, c): pass")
    odd = b'{ "model" : "m", "temperature": 1.50e-1 }'
    async with chain_of(tmp_path, "late") as chain:
        assert await chain.request(odd, stream=True) == (odd, True)
        assert chain.answers


async def test_each_use_of_a_plugin_has_a_state_of_its_own_for_all_its_hooks(tmp_path: Path):
    code = """
    def on_request(request, context):
        context.state["n"] = request.body.setdefault("n", 0)
        request.body["n"] += 1

    def on_response(response, context):
        response.body.setdefault("found", []).append(context.state["n"])
    """
    write_plugin(tmp_path, "p", code)
    async with chain_of(tmp_path, "p", "p", "p") as chain:
        await chain.request(BODY, stream=False)
        answer = await chain.respond(Response(status=200, body=reply("")), stream=False)
        assert isinstance(answer, Response)
        assert answer.body["found"] == [0, 1, 2]


async def test_the_time_of_a_stream_hook_is_its_own_and_not_the_models(tmp_path: Path):
    write_plugin(tmp_path, "quick", TRACE, {"timeout": 0.3})
    async with chain_of(tmp_path, "quick", "quick") as chain:
        events = await collected(await chain.respond(Slowly(streamed("h", "i"), 0.35), stream=True))
        assert text_of(events) == "hi"


@pytest.mark.parametrize("where", ["before", "between", "after"])
async def test_a_stream_hook_that_takes_too_long_itself_fails(tmp_path: Path, where: str):
    pause = "    await trio.sleep(60)\n"
    code = "import trio\nasync def on_stream(events, context):\n"
    code += pause if where == "before" else ""
    code += (
        "    async for event in events:\n" + ("    " + pause if where == "between" else "") + "        yield event\n"
    )
    code += pause if where == "after" else ""
    write_plugin(tmp_path, "slow", code, {"timeout": 0.2})
    write_plugin(tmp_path, "next", TRACE, {"timeout": 30})
    with (
        trio.fail_after(20),
        pytest.raises(PluginFailed, match=r"'slow' failed in on_stream: it took longer than 0\.2 s"),
    ):
        async with chain_of(tmp_path, "slow", "next") as chain:
            await collected(await chain.respond(Slowly(streamed("h")), stream=True))


async def test_a_failure_is_told_of_the_plugin_that_failed_first(tmp_path: Path):
    write_plugin(tmp_path, "first", "async def on_stream(events, context):\n    raise KeyError('a')\n    yield")
    code = """
    async def on_stream(events, context):
        try:
            async for event in events:
                yield event
        except KeyError:
            yield "never"
    """
    write_plugin(tmp_path, "second", code)
    with pytest.raises(PluginFailed, match="'first' failed in on_stream: KeyError"):
        async with chain_of(tmp_path, "first", "second") as chain:
            await collected(await chain.respond(Slowly(streamed("h")), stream=True))


async def test_hooks_clean_up_when_nobody_wants_their_events_any_more(tmp_path: Path):
    code = """
    async def on_stream(events, context):
        try:
            async for event in events:
                yield event
        finally:
            with (context.data / "order").open("a") as file:
                file.write(context.folder.name)
    """
    for name in ("a", "b"):
        write_plugin(tmp_path, name, code.replace("context.data /", "context.data.parent /"))
    async with chain_of(tmp_path, "a", "b") as chain:
        answer = await chain.respond(Slowly(streamed("h", "i")), stream=True)
        assert not isinstance(answer, Response)
        await anext(answer)
    assert (tmp_path / "data" / "order").read_text() == "ba"
    with trio.move_on_after(0.2):
        async with chain_of(tmp_path, "a", "b") as chain:
            answer = await chain.respond(Slowly(streamed("h"), 60), stream=True)
            assert not isinstance(answer, Response)
            await anext(answer)
    assert sorted((tmp_path / "data" / "order").read_text()) == ["a", "a", "b", "b"]


async def test_work_beside_the_request(tmp_path: Path):
    code = """
    import trio
    from appliance.plugins import AskFailed

    async def on_request(request, context):
        async def quick(value):
            return value

        async def fails():
            raise KeyError("kept")

        done = context.begin(lambda: quick(3))
        failing = context.begin(fails)
        late = context.begin(trio.sleep_forever, within=0.05)
        cancelled = context.begin(trio.sleep_forever)
        endless = context.begin(trio.sleep_forever)
        await context.wait_any([endless, done])
        found = [await done.wait(), done.done, endless.done]
        try:
            await failing.wait()
        except KeyError as error:
            found.append(error.args[0])
        cancelled.cancel()
        for pending in (late, cancelled):
            try:
                await pending.wait()
            except AskFailed as error:
                found.append(str(error))
        request.body["found"] = found
        request.body["asked"] = []
        for content in ("words", object(), "\\ud800"):
            try:
                await context.appliance.chat("any", [{"role": "user", "content": content}])
            except AskFailed as error:
                request.body["asked"].append(str(error))
    """
    write_plugin(tmp_path, "p", code)
    with trio.fail_after(20):
        async with chain_of(tmp_path, "p") as chain:
            body, _ = await chain.request(BODY, stream=False)
    late = "it was cancelled, or took too long"
    assert b'"found":[3,true,false,"kept","%s","%s"]' % (late.encode(), late.encode()) in body
    assert b"model 'any' not found" in body
    assert body.count(b"the question is not JSON: ") == 2


async def test_events_that_are_no_answer_cannot_become_a_whole_one(tmp_path: Path):
    write_plugin(
        tmp_path, "swallows", "async def on_stream(events, context):\n    async for e in events: pass\n    yield e"
    )
    write_plugin(tmp_path, "whole", "def on_response(r, c): pass")
    with pytest.raises(PluginFailed, match="the answer cannot be put together"):
        async with chain_of(tmp_path, "swallows", "whole") as chain:
            await chain.respond(Slowly(streamed("h")), stream=True)


KNOWN = frozenset(("rag", "parallel", "a-b.c_9"))
CHATTED = Commands(Family.CHAT, KNOWN)
names = st.sampled_from(sorted(KNOWN))
blanks = st.text(" \t\n", min_size=1, max_size=3)


def chat(text: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


@pytest.mark.parametrize(
    ("text", "commands", "rest"),
    [
        ("/rag hi", ("rag",), "hi"),
        ("  /rag hi", ("rag",), "hi"),
        ("/rag", ("rag",), ""),
        ("/a-b.c_9 x", ("a-b.c_9",), "x"),
        ("/rag\n   /parallel  x\n y", ("rag", "parallel"), "x\n y"),
        ("/rag\n\n    indented", ("rag",), "    indented"),
        ("/rag /unknown hi", ("rag",), "/unknown hi"),
        ("/rag /unknown /parallel hi", ("rag",), "/unknown /parallel hi"),
        ("\\/rag hi", (), "/rag hi"),
        (" \\/rag hi", (), " /rag hi"),
        ("/rag \\/parallel hi", ("rag",), "/parallel hi"),
        ("/rag \\/unknown hi", ("rag",), "\\/unknown hi"),
    ],
)
def test_the_head_of_a_text(text: str, commands: tuple[str, ...], rest: str):
    found = split(text, KNOWN)
    assert (found.commands, found.text) == (commands, rest)


@pytest.mark.parametrize(
    "text",
    ["", "hi", "hi /rag", "/unknown /rag hi", "/rag, hi", "/rag/x", "/RAG hi", "//rag", "\\/unknown", "\\\\/rag"],
)
def test_a_text_without_commands_stays_as_it_is(text: str):
    assert split(text, KNOWN) is None
    assert CHATTED.plan(chat(text)) is None


@given(st.lists(names, min_size=1, max_size=6), st.lists(blanks, min_size=7, max_size=7), st.text())
def test_what_was_written_in_front_is_found_in_its_order(commands: list[str], between: list[str], text: str):
    written = "".join(f"/{name}{blank}" for name, blank in zip(commands, between, strict=False))
    found = split(written + "." + text, KNOWN)
    assert found.commands == tuple(commands)
    assert found.text.lstrip(" \t\n") == "." + text


@given(st.text())
def test_a_text_is_a_fixed_point_once_its_commands_are_gone_or_it_is_escaped(text: str):
    found = split(text, KNOWN)
    if found is None:
        assert split(f"/rag .{text}", KNOWN) is not None
    escaped = split(f"\\/rag {text}", KNOWN)
    assert escaped.commands == ()
    assert escaped.text == f"/rag {text}"


def test_more_commands_than_anybody_needs_are_refused():
    assert split("/rag " * MAX_COMMANDS, KNOWN) is not None
    with pytest.raises(BadRequest, match="at most 16"):
        split("/rag " * (MAX_COMMANDS + 1), KNOWN)


TEXT_PARTS = [{"type": "image_url", "image_url": {"url": "/rag"}}, {"type": "text", "text": "/rag hi"}]
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "/rag hi"}]}


@pytest.mark.parametrize(
    ("family", "body", "changed"),
    [
        (Family.COMPLETION, {"prompt": "/rag hi", "x": 1}, {"prompt": "hi", "x": 1}),
        (Family.CHAT, {"messages": [{"role": "user", "content": TEXT_PARTS}]}, None),
        (Family.MESSAGES, {"messages": [{"role": "user", "content": [TOOL_RESULT, TEXT_PARTS[1]]}]}, None),
        (Family.RESPONSES, {"input": "/rag hi"}, {"input": "hi"}),
        (Family.RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "/rag hi"}]}]}, None),
        (
            Family.CHAT,
            {"messages": [{"role": "user", "content": "/rag hi"}, {"role": "tool", "content": "/rag no"}]},
            {"messages": [{"role": "user", "content": "hi"}, {"role": "tool", "content": "/rag no"}]},
        ),
    ],
)
def test_the_newest_text_of_the_user(family: Family, body: object, changed: object):
    sent = json.dumps(body)
    plan = Commands(family, KNOWN).plan(sent.encode())
    assert plan.commands == ("rag",)
    expected = json.dumps(changed) if changed is not None else sent[::-1].replace("ih gar/", "ih", 1)[::-1]
    assert plan.body.decode() == expected


@pytest.mark.parametrize(
    ("family", "body"),
    [
        (Family.COMPLETION, {"prompt": ["/rag hi"]}),
        (Family.COMPLETION, {"messages": [{"role": "user", "content": "/rag hi"}]}),
        (Family.CHAT, {"messages": [{"role": "system", "content": "/rag hi"}]}),
        (Family.CHAT, {"messages": [{"role": "user", "content": "/rag hi"}, {"role": "user", "content": "so?"}]}),
        (Family.CHAT, {"messages": [{"role": "user", "content": {"text": "/rag hi"}}]}),
        (Family.MESSAGES, {"messages": [{"role": "user", "content": [TOOL_RESULT]}]}),
        (Family.RESPONSES, {"input": [{"type": "function_call_output", "role": "user", "content": "/rag hi"}]}),
        (Family.CHAT, ["/rag hi"]),
    ],
)
def test_nothing_else_is_looked_at(family: Family, body: object):
    assert Commands(family, KNOWN).plan(json.dumps(body).encode()) is None


def test_a_body_that_is_no_json_is_left_to_its_server():
    assert CHATTED.plan(b'{"messages": [{"role": "user", "content": "/rag') is None
    assert CHATTED.plan(b'{"messages": [{"role": "user", "content": "/rag \xff"}]}') is None


def test_a_slash_may_be_written_by_its_number():
    plan = CHATTED.plan(chat("/rag hi").replace(b"/rag", b"\\u002Frag"))
    assert plan.body == chat("hi")


@given(st.lists(names, min_size=1, max_size=3), st.text('/\\ragx é\n"😀', max_size=20), st.integers(1, 1500))
def test_only_the_text_changes_of_a_body(commands: list[str], text: str, turns: int):
    before = [{"role": "assistant", "content": "/rag"}] * (turns - 1)
    head = "".join(f"/{name} " for name in commands)

    def body(content: str) -> bytes:
        messages = [*before, {"role": "user", "content": content, "n": 1}]
        return b' {"temperature": 1.0e-1,\n"messages":' + json.dumps(messages).encode() + b', "model" : "m"} '

    plan = CHATTED.plan(body(f"{head}.{text}"))
    assert plan.commands == tuple(commands)
    assert json.loads(plan.body) == json.loads(body(f".{text}"))
    assert plan.body.startswith(b' {"temperature": 1.0e-1,\n"messages":')
    assert plan.body.endswith(b', "model" : "m"} ')


def test_routes_with_a_prompt_and_without_one():
    for path in ("/completion", "/v1/completions", "/v/chat/completions", "/v1/messages", "/responses"):
        assert family_of(path) is not None, path
    for path in ("/v1/embeddings", "/infill", "/v1/chat/completions/input_tokens", "/v", "/v1", ""):
        assert family_of(path) is None, path
