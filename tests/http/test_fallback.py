"""An engine that dies under a request: the next one answers it, from the beginning or from where the stream broke."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from fleet_harness import InOrder, fake_engine
from http_harness import CHAT, Answer, Appliance, OpenServer, chat, model
from msgspec import structs
from slow import one_of
from swap_harness import Configure
from waiting import until

from appliance.core.bodies.sse import Decoder
from appliance.core.engine import EMBEDDED, Engine
from appliance.core.settings import FleetSettings
from appliance.core.tools.choice import chosen_tools
from appliance.errors import UpstreamFailed
from appliance.features.engines.found import find_engine, list_engines
from appliance.features.tools.box import open_own_tools

STORY = "Once upon a time a small llama carried"
"""What the fake says in its eight tokens."""
DIES = ("--die-after-tokens", "3", "--exit-code", "7")
PATHS = [CHAT, "/v1/completions", "/completion", "/v1/messages", "/v1/responses"]


@asynccontextmanager
async def serving(open_server: OpenServer, *engines: Engine, **more: object) -> AsyncGenerator[Appliance]:
    async with open_server(chooser=InOrder(*engines), **more) as server:
        yield server


def asked(path: str, **more: object) -> dict[str, object]:
    limit = {"/v1/responses": "max_output_tokens", "/completion": "n_predict"}.get(path, "max_tokens")
    prompt = {"input": "hi"} if path == "/v1/responses" else {"prompt": "hi"}
    return chat(stream=True) | prompt | {limit: 8} | more


def records(answer: Answer) -> list[dict[str, object]]:
    found = Decoder().feed(answer.body)
    return [json.loads(event.data) for event in found if event.data != "[DONE]"]


def said(record: dict[str, Any]) -> str:
    """What one record adds to the text."""
    for choice in record.get("choices", ()):
        return choice.get("text") or choice.get("delta", {}).get("content") or ""
    delta = record.get("delta", "")
    return delta.get("text", "") if isinstance(delta, dict) else str(delta or record.get("content", ""))


def text(answer: Answer) -> str:
    return "".join(map(said, records(answer)))


def marks(answer: Answer) -> list[dict[str, object]]:
    return [record["appliance"]["continued"] for record in records(answer) if "appliance" in record]


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_breaks_is_continued_on_the_next_engine(open_server: OpenServer, path: str):
    async with serving(open_server, fake_engine("gpu", *DIES), fake_engine("cpu")) as server:
        answer = await server.ask("POST", path, asked(path))
        assert (answer.status, answer.cut) == (200, False)
        assert text(answer) == STORY
        [mark] = marks(answer)
        assert (mark["after"], mark["from"], mark["on"]) == (3, "gpu", "cpu")
        assert mark["why"] == "it died: exit status 7"
        assert b": continued on cpu after 3 tokens" in answer.body
        assert answer.body.count(b"[DONE]") == (path in (CHAT, "/v1/completions"))
        assert answer.body.count(b'"role":"assistant"') == (path in (CHAT, "/v1/messages")) + 3 * (
            path == "/v1/responses"
        )
        heads = {(one["id"], one["created"], one["model"]) for one in records(answer) if "choices" in one}
        assert len(heads) == (path in (CHAT, "/v1/completions"))
        noted = (await server.rows())[0]
        assert noted["metadata"]["fallback"] == "continued; from=gpu; on=cpu"
        parts = [part.rpartition(" ")[0] for part in noted["metadata"]["parts"].split(", ")]
        loaded = [part for part in parts if part != "wait"]  # a busy machine has such parts as well
        assert loaded == ["load", "prompt", "answer", "fallback", "load", "answer"]
        assert noted["resp_status_code"] == 200
        assert noted["tokens"]["output_tokens"] == 8
        assert noted["build"] == "cpu"
        assert server.fleet.seat_of("alpha") == "cpu"


@pytest.mark.parametrize("path", one_of(PATHS))
async def test_a_stream_that_breaks_within_a_record_is_continued_as_well(open_server: OpenServer, path: str):
    within = fake_engine("gpu", *DIES, "--die-mid-record")
    async with serving(open_server, within, fake_engine("cpu")) as server:
        answer = await server.ask("POST", path, asked(path))
        assert text(answer) == STORY
        assert len(marks(answer)) == 1


@pytest.mark.parametrize("fast", [True, False], ids=["no task", "in a task"])
async def test_a_death_is_one_too_if_the_model_is_to_go_for_another_in_that_moment(
    open_server: OpenServer, *, fast: bool
):
    """The broken answer frees the model, the schedule evicts it, and only then is the end of its process noticed."""
    async with serving(
        open_server, fake_engine("gpu", *DIES), fake_engine("cpu"), fleet=FleetSettings(models_max=1)
    ) as server:
        if fast:
            assert (await server.ask("POST", "/models/load", {"model": "alpha", "wait": True})).status == 200
        async with server.asking(asked(CHAT, fake={"token_delay": 0.1})) as found:
            while not server.fleet.busy or not server.fleet.is_ready("alpha"):
                await server.fleet.wait_changed()
            other = await server.ask("POST", CHAT, asked(CHAT) | {"model": "beta"})
        assert text(other) == STORY
        assert text(found[0]) == STORY
        assert [mark["why"] for mark in marks(found[0])] == ["it died: exit status 7"]


async def test_a_client_of_ollamas_api_only_sees_more_lines(open_server: OpenServer):
    asks = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}], "options": {"num_predict": 8}}
    for headers in ((), (("X-Conversation-Id", "c"),)):
        async with serving(open_server, fake_engine("gpu", *DIES), fake_engine("cpu")) as server:
            answer = await server.ask("POST", "/api/chat", asks, headers)
            lines = [json.loads(line) for line in answer.body.splitlines()]
            assert "".join(line["message"]["content"] for line in lines) == STORY
            assert [line["done"] for line in lines].index(True) == len(lines) - 1
            assert lines[-1]["eval_count"] == 8
            noted = (await server.rows())[0]["metadata"]
        assert noted["fallback"] == "continued; from=gpu; on=cpu"
        assert noted["prompt_cache"].endswith(": it went on with another engine")
    async with serving(open_server, fake_engine("gpu", "--die-before-head"), fake_engine("cpu")) as server:
        whole = await server.ask("POST", "/api/chat", {**asks, "stream": False})
        assert whole.json["message"]["content"] == STORY
    async with serving(open_server, fake_engine("gpu", *DIES)) as server:
        answer = await server.ask("POST", "/api/chat", asks)
        *told, last = [json.loads(line) for line in answer.body.splitlines()]
        assert [line["done"] for line in told] == [False] * 3
        assert last.keys() == {"error"}
        assert "exit status 7" in last["error"]
        refused = await server.ask("POST", "/api/chat", {**asks, "stream": False})
        assert (refused.status, refused.json.keys()) == (502, {"error"})


@pytest.mark.parametrize(("path", "stream"), [*((path, True) for path in PATHS), (CHAT, False)])
async def test_what_had_not_begun_is_asked_again(open_server: OpenServer, path: str, stream: bool):
    async with serving(open_server, fake_engine("gpu", "--die-before-head"), fake_engine("cpu")) as server:
        answer = await server.good("POST", path, asked(path, stream=stream))
        assert answer.header("X-Appliance-Fallback") == "replayed; from=gpu; on=cpu"
        assert text(answer) == STORY if stream else STORY in answer.body.decode()
        assert not stream or not marks(answer)
        assert (await server.rows())[0]["metadata"]["fallback"] == "replayed; from=gpu; on=cpu"


async def test_a_client_that_was_told_to_wait_is_answered_in_the_same_stream(open_server: OpenServer):
    first = fake_engine("gpu", "--die-before-head", "--slow-prompt", "0.3")
    async with serving(open_server, first, fake_engine("cpu"), ping_after=0.05) as server:
        answer = await server.ask("POST", CHAT, asked(CHAT))
        assert b": ping\n\n" in answer.body
        assert b": replayed; from=gpu; on=cpu\n\n" in answer.body
        assert answer.header("X-Appliance-Fallback") is None
        assert text(answer) == STORY


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_kills_two_engines_is_not_sent_to_a_third(open_server: OpenServer, stream: bool):
    """No seat is spoilt by it, others are served, and it is refused from the start when it comes again."""
    chooser = InOrder(fake_engine("gpu0"), fake_engine("gpu1"), fake_engine("cpu"))
    kills = {"die_after_tokens": 2, "exit_code": 4} if stream else {"die_before_head": True, "exit_code": 4}
    body = asked(CHAT, stream=stream, fake=kills)
    async with open_server(chooser=chooser) as server:
        answer = await server.ask("POST", CHAT, body)
        error = records(answer)[-1]["error"] if stream else answer.error
        assert error["reason"] == "kills_engines"
        assert "exit status 4" in error["message"]
        assert (len(chooser.told), set(chooser.pardons)) == (1, {"gpu0", "gpu1"})
        assert (await server.ask("POST", CHAT, asked(CHAT))).status == 200
        before = server.fleet.known("alpha")
        await server.refuses(400, "kills_engines", "POST", CHAT, body)
        after = server.fleet.known("alpha")  # its own description may have come meanwhile
        assert (after.pid, after.state, after.leases) == (before.pid, "loaded", 0)


async def test_a_request_that_is_answered_elsewhere_is_no_suspect(open_server: OpenServer):
    """A seat that always breaks is to blame, however often the same is asked."""
    chooser = InOrder(fake_engine("gpu", *DIES), fake_engine("cpu"))
    async with open_server(chooser=chooser) as server:
        for _ in range(3):
            assert text(await server.ask("POST", CHAT, asked(CHAT))) == STORY
            chooser.engines.sort(key=lambda one: one.seat, reverse=True)  # its time is over: gpu, then cpu
            await server.fleet.unload("alpha")
        assert (len(chooser.told), chooser.pardons) == (3, [])


async def test_a_client_may_forbid_it(open_server: OpenServer):
    for wish in ("none", "replay"):
        async with serving(open_server, fake_engine("gpu", *DIES), fake_engine("cpu")) as server:
            answer = await server.ask("POST", CHAT, asked(CHAT), [("X-Appliance-Fallback", wish)])
            error = records(answer)[-1]["error"]
            assert "exit status 7" in error["message"]
            assert ("X-Appliance-Fallback" in error["message"]) is (wish == "replay")
            assert text(answer) == "Once upon a"
    for wish, status in (("none", 502), ("Replay", 200)):
        async with serving(open_server, fake_engine("gpu", "--die-before-head"), fake_engine("cpu")) as server:
            asks = ("POST", CHAT, asked(CHAT), [("X-Appliance-Fallback", wish)])
            assert (await server.ask(*asks)).status == status
    async with serving(open_server, fake_engine("cpu")) as server:
        asks = ("POST", CHAT, asked(CHAT), [("X-Appliance-Fallback", "maybe")])
        await server.refuses(400, "invalid_request", *asks, words="none, replay, continue")


async def test_what_cannot_be_continued_ends_with_the_reason(open_server: OpenServer):
    """`tests/features/continuation/test_continuation.py` has every reason."""
    async with serving(open_server, fake_engine("gpu", *DIES), fake_engine("cpu")) as server:
        answer = await server.ask("POST", CHAT, asked(CHAT, n=2))
        error = records(answer)[-1]["error"]
        assert error["reason"] == "upstream_failed"
        for words in ("exit status 7", "it was not continued on cpu: ", "several answers"):
            assert words in error["message"]
        assert not marks(answer)


async def test_a_kept_stream_goes_on_without_its_reader(open_server: OpenServer):
    name = [("X-Conversation-Id", "c1")]
    async with serving(open_server, fake_engine("gpu", *DIES, "--token-delay", "0.05"), fake_engine("cpu")) as server:
        async with server.begun(asked(CHAT), CHAT, name) as client:
            await client.data()
        answer = await server.ask("GET", "/v1/stream?conv_id=c1&from=0")  # to its end
        assert text(answer) == STORY
        assert len(marks(answer)) == 1
        assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_the_programs_own_requests_are_asked_again_and_never_continued(open_server: OpenServer):
    async with serving(open_server, fake_engine("gpu", "--die-before-head"), fake_engine("cpu")) as server:
        async with server.opened.kernel.inward.ask(CHAT, json.dumps(asked(CHAT)).encode()) as reply:
            body = await reply.read(1 << 20)
        assert b"carried" in body
    async with serving(open_server, fake_engine("gpu", *DIES), fake_engine("cpu")) as server:
        got = bytearray()

        async def take() -> None:
            async with server.opened.kernel.inward.ask(CHAT, json.dumps(asked(CHAT)).encode()) as reply:
                while data := await reply.receive():
                    got.extend(data)

        with pytest.raises(UpstreamFailed, match="exit status 7"):
            await take()
        assert b"upon" in got


async def test_a_chat_with_tools_of_the_server_is_asked_again_and_never_continued(open_server: OpenServer):
    """Its records are written by the program, which has read the engine's."""
    body = asked(CHAT, appliance={"tools": ["get_info"]})
    async with open_own_tools(chosen_tools(["get_info"], runtime="", root="")) as tools:
        with_tools = partial(open_server, tools=tools)
        async with serving(with_tools, fake_engine("gpu", "--die-before-head"), fake_engine("cpu")) as server:
            assert text(await server.ask("POST", CHAT, body)) == STORY
        async with serving(with_tools, fake_engine("gpu", *DIES), fake_engine("cpu")) as server:
            answer = await server.ask("POST", CHAT, body)
            assert "exit status 7" in records(answer)[-1]["error"]["message"]
            assert not marks(answer)


async def test_a_configured_server_is_never_asked_twice(open_server: OpenServer, configured: Configure):
    path = configured({"alpha": {"args": ["--die-before-head"]}})
    async with serving(open_server, fake_engine("gpu"), fake_engine("cpu"), config=path) as server:
        await server.refuses(502, "upstream_failed", "POST", CHAT, asked(CHAT, stream=False))
        assert server.fleet.seat_of("alpha") is None
        assert server.fleet.known("alpha").pid is None


async def test_questions_that_change_a_process_are_not_asked_again(open_server: OpenServer):
    async with serving(open_server, fake_engine("gpu"), fake_engine("cpu")) as server:
        await server.ask("POST", "/models/load", {"model": "alpha", "wait": True})
        async with server.connect() as client, trio.open_nursery() as nursery:
            server.process().suspend()
            nursery.start_soon(partial(client.send, "POST", "/slots/0?action=save&model=alpha", b"{}"))
            await trio.sleep(0.2)  # the request is on its way to it, which nothing tells
            server.process().kill()
            answer = await client.answer()
        assert (answer.status, answer.error["reason"]) == (502, "upstream_failed")


async def test_all_streams_of_an_engine_are_continued_when_it_dies(open_server: OpenServer):
    """Wherever each is, and with counts that cover both halves."""
    slow = ("--token-delay", "0.1", "--tokens", "20", "--parallel", "20")
    async with serving(open_server, fake_engine("gpu", *slow), fake_engine("cpu", *slow)) as server:
        body = asked(CHAT, max_tokens=18, stream_options={"include_usage": True})
        async with server.asking(body, times=20) as answers:
            await until(server.passed, lambda passed: len(passed) == 20 and min(passed) > 1000)  # of some 4000
            server.process().kill()
        for answer in answers:
            assert len(text(answer).split()) == 18
            assert text(answer).startswith(STORY)
            assert len(marks(answer)) == 1
            assert records(answer)[-1]["usage"]["completion_tokens"] == 18
        assert [noted["tokens"]["output_tokens"] for noted in await server.rows()] == [18] * 20


@pytest.mark.slow
async def test_the_official_clients_see_one_answer(open_server: OpenServer, fake_model: Path):
    """Each in a thread, as they do not know Trio."""
    import anthropic  # not at the top: these take two seconds of each process that collects the tests
    import openai

    alone = [model(fake_model, "alpha")]
    ask = [{"role": "user", "content": "hi"}]

    def with_openai(client: openai.OpenAI) -> None:
        with client.chat.completions.stream(model="alpha", messages=ask, max_tokens=8) as stream:  # pyright: ignore
            for _ in stream:
                pass
            assert stream.current_completion_snapshot.choices[0].message.content == STORY

    def with_completions(client: openai.OpenAI) -> None:
        found = client.completions.create(model="alpha", prompt="hi", max_tokens=8, stream=True)
        assert "".join(one.choices[0].text for one in found) == STORY

    def with_responses(client: openai.OpenAI) -> None:
        events = list(client.responses.create(model="alpha", input="hi", max_output_tokens=8, stream=True))
        said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        last = events[-1]
        assert last.type == "response.incomplete"
        assert last.response.incomplete_details.reason == "max_output_tokens"
        assert said == last.response.output_text == STORY
        assert last.response.usage.output_tokens == 8

    def with_anthropic(client: anthropic.Anthropic) -> None:
        with client.messages.stream(model="alpha", max_tokens=8, messages=ask) as stream:  # pyright: ignore
            assert stream.get_final_text() == STORY
            assert stream.get_final_message().usage.output_tokens == 8

    makers = [openai.OpenAI, openai.OpenAI, openai.OpenAI, anthropic.Anthropic]
    for make, use in zip(makers, (with_openai, with_completions, with_responses, with_anthropic), strict=True):
        async with serving(open_server, fake_engine("gpu", *DIES), fake_engine("cpu"), models=alone) as server:
            base = f"http://127.0.0.1:{server.port}" + ("/v1" if make is openai.OpenAI else "")
            with make(base_url=base, api_key="x", max_retries=0, timeout=30) as client:
                await trio.to_thread.run_sync(use, client)  # pyright: ignore
            noted = (await server.rows())[0]["metadata"]
        assert noted["fallback"] == "continued; from=gpu; on=cpu"
        assert noted["prompt_cache"].endswith(": it went on with another engine")


async def test_an_answer_is_not_continued_by_the_file_that_has_taken_its_models_place(
    open_server: OpenServer, fake_model: Path
):
    async with serving(open_server, fake_engine("gpu", *DIES), fake_engine("cpu")) as server:
        async with server.begun(chat(stream=True, token_delay=0.2) | {"max_tokens": 8}) as client:
            got = await client.until(b"data: ", 2)
            await trio.Path(fake_model).write_bytes(b"GGUF, another one")
            got += await client.rest()
        broken = Answer(200, [], got, cut=False)
        assert not marks(broken)
        assert b"files or command have changed meanwhile" in broken.body


LENGTH = 600
"""Tokens: enough that an engine can be killed before it has said all of them."""
ENDLESS = ("--ignore-eos",)
"""An option of the engine, and not a member of the request, which Anthropic's requests do not have."""
USER = [{"role": "user", "content": "Tell me a story."}]
REQUESTS = {
    CHAT: {"messages": USER, "max_tokens": LENGTH, "stream_options": {"include_usage": True}},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": LENGTH},
    "/completion": {"prompt": "Once upon a time", "n_predict": LENGTH},
    "/v1/messages": {"messages": USER, "max_tokens": LENGTH},
    "/v1/responses": {"input": "Tell me a story.", "max_output_tokens": LENGTH},
}


COMPILED = (pytest.mark.needs("llama-server"), pytest.mark.slow)


@pytest.fixture(
    params=["the same twice", *(pytest.param(f"{way} the embedded one", marks=COMPILED) for way in ("from", "to"))]
)
def engines(request: pytest.FixtureRequest) -> InOrder:
    """The embedded engine and a compiled one, or the embedded one twice."""
    pair = [find_engine(EMBEDDED)] * 2
    if request.param != "the same twice":
        pair[1] = next(engine for engine in list_engines() if engine.name != EMBEDDED)
    if request.param == "to the embedded one":
        pair.reverse()
    seated = [
        structs.replace(engine, seat=f"{engine.name}:{number}", args=("--threads", "1"))
        for number, engine in enumerate(pair)
    ]
    return InOrder(*seated)


def tokens_of(path: str, found: list[dict[str, Any]]) -> int:
    last = found[-1]
    match path:
        case "/completion":
            return last["tokens_predicted"]
        case "/v1/messages":
            return found[-2]["usage"]["output_tokens"]
        case "/v1/responses":
            return last["response"]["usage"]["output_tokens"]
        case _:
            return last["usage"]["completion_tokens"]


async def broken_off(server: Appliance, path: str, body: dict[str, object]) -> tuple[bytes, list[dict[str, Any]], int]:
    """A stream whose engine is killed after some records: its bytes, its records, and which one marks the break."""
    async with server.begun(body, path) as client:
        got = await client.until(b"data: ", 12)
        server.process("starter").kill()
        got += await client.rest()
    found = records(Answer(200, [], got, cut=False))
    assert "error" not in found[-1], found[-1]
    [at] = [number for number, one in enumerate(found) if "appliance" in one]
    return got, found, at


@pytest.mark.parametrize("path", one_of(REQUESTS))
async def test_a_story_goes_on_where_it_broke_off(
    open_server: OpenServer, starter_model: Path, engines: InOrder, path: str
):
    body = REQUESTS[path] | {"model": "starter", "stream": True, "temperature": 0}
    async with open_server(chooser=engines, models=[model(starter_model, "starter", args=ENDLESS)]) as server:
        _, found, at = await broken_off(server, path, body)
        first, rest = "".join(map(said, found[:at])), "".join(map(said, found[at:]))
        mark = found[at]["appliance"]["continued"]
        assert 0 < mark["after"] < LENGTH
        assert first
        assert rest
        assert not rest.startswith(first), "the second engine's echo of the first half was passed on"
        assert tokens_of(path, found) == LENGTH
        again = await server.ask("POST", path, body, patience=60)
        whole = "".join(map(said, records(again)))
        assert (first + rest)[:40] == whole[:40]
        noted = (await server.rows())[1]
        assert noted["metadata"]["fallback"].startswith("continued; from=")
        assert noted["tokens"]["output_tokens"] == tokens_of(path, found)


THINKS = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content.split('</think>')[-1] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
"""A template under which the model begins with a thought; the starter model never ends it."""


def thought(data: dict[str, Any]) -> str:
    for choice in data.get("choices", ()):
        return choice.get("delta", {}).get("reasoning_content") or ""
    delta = data.get("delta", "")
    if isinstance(delta, dict):
        return delta.get("thinking", "")
    return str(delta) if data.get("type") == "response.reasoning_text.delta" else ""


@pytest.mark.parametrize("path", one_of([CHAT, "/v1/messages", "/v1/responses"]))
async def test_a_thought_goes_on_where_it_broke_off(
    open_server: OpenServer, starter_model: Path, engines: InOrder, tmp_path: Path, path: str
):
    template = tmp_path / "thinks.jinja"
    template.write_text(THINKS)
    thinking = model(starter_model, "starter", args=(*ENDLESS, "--chat-template-file", str(template)))
    body = REQUESTS[path] | {"model": "starter", "stream": True, "temperature": 0}
    async with open_server(chooser=engines, models=[thinking]) as server:
        got, found, at = await broken_off(server, path, body)
        first, rest = "".join(map(thought, found[:at])), "".join(map(thought, found[at:]))
        assert len(first) > 8
        assert len(rest) > 8
        assert not rest.startswith(first)
        assert got.count(b"event: content_block_start") == (path == "/v1/messages")
        assert got.count(b"event: response.output_item.added") == (path == "/v1/responses")
