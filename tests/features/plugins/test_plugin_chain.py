"""Requests through plugins, with real plugins in real folders: every dialect, whole and streamed, and every failure."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from http_harness import CHAT, Appliance, OpenServer, chat
from plugin_folders import write_plugin

from appliance.core.answers.families import Family, family_of
from appliance.core.answers.forms import whole_of
from appliance.core.bodies.sse import Decoder
from appliance.core.settings import FleetSettings
from appliance.features import FEATURES
from appliance.features.plugins.feature import PLUGINS

SEEN = '''
"""Writes its name into whatever passes."""


def on_request(request, context):
    request.body.setdefault("seen", []).append(context.folder.name)
    context.state["model"] = context.model


async def on_response(response, context):
    response.body.setdefault("seen", []).append(f"{context.folder.name} of {context.state['model']}")


async def on_stream(events, context):
    async for event in events:
        if event.data is not None:
            event.data.setdefault("seen", []).append(context.folder.name)
        yield event
'''
UPPER = """
def upper(value):
    if isinstance(value, list):
        return [upper(item) for item in value]
    if isinstance(value, dict):
        return {k: v.upper() if k in ("content", "text", "delta") and isinstance(v, str) else upper(v)
                for k, v in value.items()}
    return value
"""
WHOLE = UPPER + "def on_response(response, context): response.body.update(upper(response.body))"
STREAM = (
    UPPER
    + """
async def on_stream(events, context):
    async for event in events:
        if event.data is not None:
            event.data = upper(event.data)
        yield event
"""
)
TEXT = "Once upon a time a small llama carried"  # what the fake engine says
ROUTES = {
    "/v1/chat/completions": "messages",
    "/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/completion": "prompt",
    "/v1/messages": "messages",
    "/v1/responses": "input",
}


def asked(path: str, text: str, **more: object) -> dict[str, object]:
    prompt: object = [{"role": "user", "content": text}] if ROUTES[path] == "messages" else text
    return {"model": "alpha", ROUTES[path]: prompt, "max_tokens": 8, **more}


def words_of(path: str, body: dict[str, object]) -> str:
    """What the model has said in a whole answer."""
    match body:
        case {"choices": [{"message": {"content": str(text)}}]} | {"choices": [{"text": str(text)}]}:
            return text
        case {"output": [{"content": [{"text": str(text)}]}]} | {"content": [{"text": str(text)}]}:
            return text
        case {"content": str(text)}:
            return text
        case _:
            pytest.fail(f"{path} answered {body}")


def joined(path: str, stream: bytes) -> dict[str, object]:
    """A stream as the whole answer that it is."""
    events = [json.loads(event.data) for event in Decoder().feed(stream) if event.data != "[DONE]"]
    return dict(whole_of(family_of(path) or Family.CHAT, events))


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    folder = tmp_path / "plugins"
    for name in ("one", "two", "three"):
        write_plugin(folder, name, SEEN)
    write_plugin(folder, "whole", WHOLE)
    write_plugin(folder, "stream", STREAM)
    return folder


@pytest.fixture
async def server(open_server: OpenServer, plugins: Path) -> AsyncGenerator[Appliance]:
    async with open_server(plugins=[plugins]) as running:
        yield running


async def echo(server: Appliance, text: str, **more: object) -> dict[str, object]:
    """The body that the engine gets for a chat."""
    answer = await server.good("POST", CHAT, asked(CHAT, text, fake={"echo": True}, **more))
    return json.loads(answer.json["body"])


async def test_plugins_run_in_the_order_in_which_they_are_named(
    server: Appliance, plugins: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "appliance")
    sent = await echo(server, "/two /one /three Hello")
    assert sent["messages"] == [{"role": "user", "content": "Hello"}]
    assert sent["seen"] == ["two", "one", "three"]
    answer = (await server.ask("POST", CHAT, asked(CHAT, "/two /one Hello"))).json
    assert answer["seen"] == ["two of alpha", "one of alpha"]
    assert "plugins of a request for 'alpha': two one three" in caplog.messages


async def test_a_request_that_names_none_reaches_the_engine_byte_for_byte(server: Appliance, plugins: Path):
    for text in ("hi", "/unknown /one hi", "say /one", "/one, hi"):
        body = json.dumps(asked(CHAT, text, fake={"echo": True}), indent=1).encode()
        answer = await server.ask("POST", CHAT, body, [("Content-Type", "application/json")])
        assert answer.json["body"].encode() == body
    escaped = await echo(server, "\\/one hi")
    assert escaped["messages"] == [{"role": "user", "content": "/one hi"}]
    assert "seen" not in escaped


async def test_only_routes_with_a_prompt_have_commands(server: Appliance, plugins: Path):
    answer = await server.ask("POST", "/tokenize", {"model": "alpha", "content": "/one hi"})
    assert bytes(answer.json["tokens"]) == b"/one hi"
    passed = await server.ask("POST", f"/upstream/alpha{CHAT}", asked(CHAT, "/one hi", fake={"echo": True}))
    assert "/one hi" in passed.json["body"]


async def test_without_the_feature_a_slash_is_only_a_slash(open_server: OpenServer, plugins: Path):
    others = [each for each in FEATURES if each is not PLUGINS]
    async with open_server(plugins=[plugins], features=others) as server:
        assert (await echo(server, "/two /one Hello"))["messages"] == [{"role": "user", "content": "/two /one Hello"}]
        assert (await server.ask("GET", "/api/agents")).status == 404


async def test_a_plugin_is_for_its_end_points(open_server: OpenServer, tmp_path: Path):
    write_plugin(tmp_path / "plugins", "one", SEEN, {"end_point": ["/completions", "/v1/messages"]})
    write_plugin(tmp_path / "plugins", "off", SEEN, {"enabled": False})
    async with open_server(plugins=[tmp_path / "plugins"]) as server:
        assert (await echo(server, "/one hi"))["messages"] == [{"role": "user", "content": "/one hi"}]
        assert (await echo(server, "/off hi"))["messages"] == [{"role": "user", "content": "/off hi"}]
        for path in ("/completion", "/v1/messages"):
            assert "seen" in (await server.ask("POST", path, asked(path, "/one hi"))).json


@pytest.mark.parametrize("commands", ["/whole", "/stream", "/one /whole /two /stream"])
async def test_an_answer_passes_hooks_of_either_form(server: Appliance, commands: str):
    for path in ROUTES:
        plain = (await server.ask("POST", path, asked(path, "Hello"))).json
        whole = (await server.ask("POST", path, asked(path, f"{commands} Hello"))).json
        stream = await server.ask("POST", path, asked(path, f"{commands} Hello", stream=True))
        assert (words_of(path, plain), words_of(path, whole)) == (TEXT, TEXT.upper())
        assert plain.keys() <= whole.keys() | {"tokens"}
        assert stream.status == 200
        assert stream.header("content-type").startswith("text/event-stream")
        assert words_of(path, joined(path, stream.body)) == TEXT.upper()
        assert stream.body.endswith(b"data: [DONE]\n\n") == ("completions" in path)


async def test_a_stream_that_is_passed_on_has_the_engines_own_events(server: Appliance):
    for path in ROUTES:
        direct = await server.ask("POST", path, asked(path, "Hello", stream=True))
        hooked = await server.ask("POST", path, asked(path, "/one /two Hello", stream=True))
        ours, theirs = Decoder().feed(hooked.body), Decoder().feed(direct.body)
        assert [event.name for event in ours] == [event.name for event in theirs]
        assert all(json.loads(event.data)["seen"] == ["one", "two"] for event in ours if event.data != "[DONE]")


async def test_a_hook_may_ask_for_the_whole_answer_of_a_stream(open_server: OpenServer, tmp_path: Path):
    code = "def on_request(request, context): request.body['stream'] = not request.stream"
    write_plugin(tmp_path / "plugins", "turn", code)
    async with open_server(plugins=[tmp_path / "plugins"]) as server:
        stream = await server.ask("POST", CHAT, asked(CHAT, "/turn hi", stream=True))
        whole = await server.ask("POST", CHAT, asked(CHAT, "/turn hi"))
    assert words_of(CHAT, joined(CHAT, stream.body)) == TEXT
    assert words_of(CHAT, whole.json) == TEXT


async def test_events_arrive_as_the_engine_makes_them(server: Appliance):
    body = asked(CHAT, "/one /two /three hi", stream=True, fake={"stall_after_tokens": 3})
    async with server.begun(body) as client:
        await client.until(b'" a"')  # the third word; the engine says no more


async def test_a_plugin_asks_models_through_the_program(open_server: OpenServer, tmp_path: Path):
    code = """
    async def on_request(request, context):
        messages = request.body["messages"]
        said = await context.appliance.chat("beta", [{"role": "user", "content": "/ask hello"}])
        async with context.appliance.stream("/v1/chat/completions", {"model": "beta", "messages": messages}) as events:
            count = len([event async for event in events if event.data])
        work = context.begin(lambda: context.appliance.post("/tokenize", {"model": "beta", "content": "ab"}))
        await context.wait_any([work])
        tokens = (await work.wait())["tokens"]
        request.body["found"] = [said, count, tokens, sorted(context.appliance.models()), context.settings["k"]]


    async def on_response(response, context):
        (context.data / "kept.txt").write_text("kept")
        threaded = await context.in_thread(lambda: (context.data / "kept.txt").read_text())
        response.body["threaded"] = threaded
    """
    write_plugin(tmp_path / "plugins", "ask", code, {"settings": {"k": [1, None]}})
    async with open_server(plugins=[tmp_path / "plugins"]) as server:
        answer = await server.good("POST", CHAT, asked(CHAT, "/ask hi", fake={"echo": True}))
    found = json.loads(answer.json["body"])["found"]
    assert found == [TEXT, 10, [97, 98], ["alpha", "beta"], [1, None]]
    assert answer.json["threaded"] == "kept"
    assert (tmp_path / "plugins" / "ask" / "kept.txt").read_text() == "kept"


async def test_a_hook_for_answers_may_load_another_model_in_place_of_the_one_that_answered(
    open_server: OpenServer, tmp_path: Path
):
    """With room for one model this works only if the lease of the first is given back before its hooks run."""
    ask = "await context.appliance.chat('beta', [{'role': 'user', 'content': 'hello'}])"
    write_plugin(
        tmp_path / "plugins",
        "both",
        f"""
        async def on_response(response, context):
            response.body["beta"] = {ask}

        async def on_stream(events, context):
            async for event in events:
                yield event
                last = event
            last.data = {{"beta": {ask}, "choices": []}}
            yield last
        """,
    )
    fleet = FleetSettings(models_max=1, stop_timeout=2.0)
    async with open_server(plugins=[tmp_path / "plugins"], fleet=fleet) as server:
        whole = await server.ask("POST", CHAT, asked(CHAT, "/both hi"), patience=30)
        stream = await server.ask("POST", CHAT, asked(CHAT, "/both hi", stream=True), patience=30)
    assert whole.json["beta"] == TEXT
    assert TEXT.encode() in stream.body


FAILING = {
    "raises": ("async def on_request(r, c): raise KeyError('x')", "on_request: KeyError: 'x'"),
    "threaded": ("def on_request(r, c): raise ValueError('in a thread')", "on_request: ValueError: in a thread"),
    "exits": ("def on_request(r, c): raise SystemExit(3)", "on_request: SystemExit: 3"),
    "returns": ("def on_request(r, c): return 'text'", "on_request: it must return a Request"),
    "nojson": ("def on_request(r, c): r.body['x'] = object()", "on_request: its result is not JSON"),
    "model": ("def on_request(r, c): r.body['model'] = 'beta'", "on_request: it changed 'model'"),
    "slow": ("import trio\nasync def on_request(r, c): await trio.sleep(60)", "on_request: it took longer than 0.5 s"),
    "group": (
        "import trio\nasync def f(): raise KeyError('inner')\n"
        "async def on_response(r, c):\n    async with trio.open_nursery() as n: n.start_soon(f)",
        "on_response: KeyError: 'inner'",
    ),
    "answers": ("def on_response(r, c): raise ValueError('no')", "on_response: ValueError: no"),
    "asks": (
        "async def on_response(r, c): await c.appliance.chat('nobody', [])",
        "AskFailed: model 'nobody' not found",
    ),
    "imports": ("import nothing_of_the_kind", "agent.py: agent.py:1: ModuleNotFoundError"),
}


async def test_a_plugin_that_fails_is_a_502_with_its_name_and_logged(
    open_server: OpenServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    for name, (code, _) in FAILING.items():
        write_plugin(tmp_path / "plugins", name, code, {"timeout": 0.5 if name == "slow" else 60})
    async with open_server(plugins=[tmp_path / "plugins"]) as server:
        for name, (_, says) in FAILING.items():
            for stream in (False, True):
                body = asked(CHAT, f"/{name} hi", stream=stream)
                answer = await server.refuses(502, "plugin_failed", "POST", CHAT, body, words=says)
                assert answer.error["message"].startswith(f"plugin '{name}' failed in ")
        assert (await server.ask("POST", CHAT, chat())).status == 200
    logged = [f"{record.name} {record.getMessage()}" for record in caplog.records if record.levelname == "WARNING"]
    for name, (_, says) in FAILING.items():
        assert any(name in line and says.rpartition("agent.py: ")[2] in line for line in logged), (name, logged)


FAILING_STREAMS = {
    "raises": ("        raise ValueError('third')", "on_stream: ValueError: third"),
    "yields": ("        yield 'text'", "on_stream: it must yield Events"),
    "slow": ("        await trio.sleep(60)", "on_stream: it took longer than 0.5 s"),
    "nojson": ("        event.data = {'x': object()}", "on_stream: an event is not JSON"),
}


async def test_a_plugin_that_fails_in_a_stream_is_an_error_record(open_server: OpenServer, tmp_path: Path):
    for name, (line, _) in FAILING_STREAMS.items():
        code = "import trio\nasync def on_stream(events, context):\n  n = 0\n  async for event in events:\n    n += 1\n"
        code += f"    if n == 5:\n{line}\n    yield event\n"
        write_plugin(tmp_path / "plugins", name, code, {"timeout": 0.5 if name == "slow" else 60})
    async with open_server(plugins=[tmp_path / "plugins"]) as server:
        for path, name in product(("/v1/chat/completions", "/v1/messages", "/v1/responses"), FAILING_STREAMS):
            answer = await server.ask("POST", path, asked(path, f"/{name} hi", stream=True))
            events = Decoder().feed(answer.body)
            told = json.loads(events[-1].data)
            told = told["response"] if path == "/v1/responses" else told  # response.failed
            assert (len(events), answer.cut) == (5, False)
            assert FAILING_STREAMS[name][1] in told["error"]["message"]


async def test_what_fails_in_the_engine_is_told_as_without_plugins(server: Appliance):
    for stream in (False, True):
        body = partial(asked, CHAT, stream=stream, fake={"status": 400})
        direct = await server.ask("POST", CHAT, body(text="hi"))
        hooked = await server.ask("POST", CHAT, body(text="/one /whole /stream hi"))
        assert (hooked.status, hooked.body) == (direct.status, direct.body)
    for command in ("/one", "/whole", "/stream /whole"):
        answer = await server.ask("POST", CHAT, asked(CHAT, f"{command} hi", stream=True, fake={"error_record": 3}))
        last = json.loads(Decoder().feed(answer.body)[-1].data)
        assert last["error"]["message"] == "the fake was told to fail"
        assert b"plugin_failed" not in answer.body
    for command in ("/one", "/whole"):
        body = partial(asked, CHAT, f"{command} hi", fake={"die_after_tokens": 3})
        answer, whole = [await server.ask("POST", CHAT, body(stream=stream)) for stream in (True, False)]
        said = answer.body if answer.status != 200 else Decoder().feed(answer.body)[-1].data
        assert json.loads(said)["error"]["reason"] == whole.error["reason"] == "upstream_failed"


async def test_a_client_that_leaves_ends_hooks_and_generation(open_server: OpenServer, tmp_path: Path):
    code = """
    import trio

    async def on_stream(events, context):
        try:
            async for event in events:
                yield event
        finally:
            (context.data / "ended").touch()
    """
    write_plugin(tmp_path / "plugins", "waits", code)
    async with open_server(plugins=[tmp_path / "plugins"]) as server:
        async with server.begun(asked(CHAT, "/waits hi", stream=True, fake={"stall_after_tokens": 2})) as client:
            await client.data()
        await server.wait_idle("alpha")
    assert (tmp_path / "plugins" / "waits" / "ended").exists()


async def test_a_client_of_a_stream_is_told_while_hooks_are_silent(open_server: OpenServer, tmp_path: Path):
    code = """
    import trio

    async def on_request(request, context):
        await trio.sleep(0.2)

    async def on_response(response, context):
        await trio.sleep(0.2)
    """
    write_plugin(tmp_path / "plugins", "slow", code)
    async with open_server(plugins=[tmp_path / "plugins"], ping_after=0.05) as server:
        answer = await server.ask("POST", CHAT, asked(CHAT, "/slow hi", stream=True))
        refused = await server.ask("POST", CHAT, asked(CHAT, "/slow hi", stream=True, fake={"status": 400}))
    assert answer.body.startswith(b": ping\n\n")
    assert answer.body.count(b": ping\n\n") >= 2
    assert words_of(CHAT, joined(CHAT, answer.body)) == TEXT
    assert json.loads(Decoder().feed(refused.body)[-1].data)["error"]["code"] == 400


async def test_streams_survive_and_are_accounted_with_plugins(server: Appliance, plugins: Path):
    body = asked(CHAT, "/one hi", stream=True)
    first = await server.ask("POST", CHAT, body, [("X-Conversation-Id", "c1")])
    again = await server.ask("GET", "/v1/stream/c1")
    [row] = await server.rows()
    assert again.body == first.body
    assert b'"seen":["one"]' in again.body
    assert (row["model"], row["tokens"]["output_tokens"]) == ("alpha", 8)
    assert row["metadata"]["plugins"] == "one"


async def test_the_list_of_agents_and_looking_again(open_server: OpenServer, tmp_path: Path):
    write_plugin(tmp_path / "plugins", "one", SEEN, {"description": "first", "end_point": "/chat/completions"})
    async with open_server(plugins=[tmp_path / "plugins"]) as server:
        before = (await server.ask("POST", "/api/agents/reload")).json
        mine = next(each for each in before["agents"] if each["name"] == "one")
        told = (mine["state"], mine["description"], mine["end_points"])
        assert told == ("ready", "first", ["/chat/completions"])
        assert str(tmp_path / "plugins") in before["folders"]
        write_plugin(tmp_path / "plugins", "two", SEEN)
        write_plugin(tmp_path / "plugins", "bad", "1 / 0")
        await server.ask("POST", "/api/agents/reload")
        after = (await server.ask("GET", "/api/agents")).json
        states = {each["name"]: (each["state"], each["error"]) for each in after["agents"]}
        assert states["two"] == ("ready", None)
        assert states["bad"] == ("error", "agent.py:1: ZeroDivisionError: division by zero")
        assert (await echo(server, "/two hi"))["seen"] == ["two"]
