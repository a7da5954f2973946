"""The loading stream, in front of a real engine's answer."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from http_harness import CHAT, Answer, chat, model
from openai.types.chat import ChatCompletionChunk
from swap_harness import OpenSwap, Swap, open_swap

HEADER = "━━━━━\nllama-appliance loading model: alpha\n"


@pytest.fixture
def open_server(fake_llama_server, fake_model: Path) -> OpenSwap:
    return partial(open_swap, fake_llama_server, fake_model)


def slow(fake_model: Path, *args: str) -> list:
    return [model(fake_model, "alpha", args=args or ("--load-delay", "1.9"))]


async def ask(server: Swap, **fake: object) -> Answer:
    server.loading_state = True
    return await server.ask("POST", f"{CHAT}?model=alpha", chat("alpha", stream=True, **fake))


def chunks(answer: Answer) -> list[ChatCompletionChunk]:
    """Every record but the last, as the official client reads them."""
    *records, done = answer.events
    assert done == "data: [DONE]"
    return [ChatCompletionChunk.model_validate_json(r.removeprefix("data: ")) for r in records if r != ": ping"]


def reasoning(answer: Answer) -> list[str]:
    texts = (getattr(chunk.choices[0].delta, "reasoning_content", None) for chunk in chunks(answer) if chunk.choices)
    return [text for text in texts if text]


async def test_the_load_is_told_and_the_answer_follows(open_server: OpenSwap, fake_model: Path):
    async with open_server(models=slow(fake_model)) as server:
        answer = await ask(server)
        assert answer.status == 200
        assert answer.header("content-type") == "text/event-stream"
        assert answer.header("x-accel-buffering") == "no"
        told = reasoning(answer)
        assert told[0] == HEADER
        assert set(told[1:-1]) == {"."}
        assert 2 <= len(told[1:-1]) <= 3
        assert told[-1].startswith("\nDone! (")
        assert told[-1].endswith("s)\n━━━━━\n ")
        seconds = float(told[-1].partition("(")[2].partition("s")[0])
        assert 1.8 < seconds < 5
        content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks(answer) if chunk.choices)
        assert content


async def test_its_records_are_whole_chunks(open_server: OpenSwap, fake_model: Path):
    async with open_server(models=slow(fake_model, "--load-delay", "0.3")) as server:
        first, second = chunks(await ask(server))[:2]
        assert first.object == second.object == "chat.completion.chunk"
        assert first.id == second.id
        assert first.id.startswith("chatcmpl-")
        assert first.model == "alpha"
        assert first.created > 1_700_000_000
        assert first.choices[0].index == 0
        assert first.choices[0].finish_reason is None


async def test_a_model_that_is_there_is_not_talked_about(open_server: OpenSwap):
    async with open_server() as server:
        await ask(server)
        answer = await ask(server)
        assert reasoning(answer) == []
        assert answer.status == 200


async def test_the_first_words_come_at_once_and_the_request_is_not_held_up(open_server: OpenSwap, fake_model: Path):
    async with open_server(models=slow(fake_model, "--load-delay", "1")) as server:
        server.loading_state = True
        async with server.connect() as client:
            body = msgspec.json.encode(chat("alpha", stream=True))
            await client.send("POST", f"{CHAT}?model=alpha", body)
            began = trio.current_time()
            with trio.fail_after(0.5):
                await client.head()
                assert "loading model" in (await client.data()).decode()
            assert server.state("alpha") == "loading"
            assert trio.current_time() - began < 0.5


async def test_queue_position_progress_and_jokes(open_server: OpenSwap, fake_model: Path):
    async with open_server(models=slow(fake_model, "--load-delay", "3")) as server:
        server.jokes = True
        async with trio.open_nursery() as nursery:

            async def tell() -> None:
                for server.position, server.progress in ((3, None), (3, None), (None, 0.25), (None, 0.5)):
                    await trio.sleep(0.75)

            nursery.start_soon(tell)
            told = reasoning(await ask(server))
        assert told[0] == HEADER
        assert told[1].startswith("Queue position: #3\n")
        assert len(told[1].splitlines()) == 2  # and a joke
        assert "Loading: 25 %" in "".join(told)
        assert "Loading: 50 %" in "".join(told)


async def test_a_start_that_fails_ends_the_stream_with_an_error_record(open_server: OpenSwap, fake_model: Path):
    failing = slow(fake_model, "--load-delay", "0.3", "--fail-to-load")
    async with open_server(models=failing) as server:
        answer = await ask(server)
        assert answer.status == 200
        assert not answer.cut
        error = msgspec.json.decode(answer.events[-1].removeprefix("data: "))["error"]
        assert (error["code"], error["reason"]) == (500, "model_failed_to_start")
        assert "Done!" not in answer.body.decode()


async def test_what_is_refused_at_once_keeps_its_status(open_server: OpenSwap, fake_model: Path):
    async with open_server(models=slow(fake_model)) as server:
        server.fleet.close()
        answer = await ask(server)
        assert (answer.status, answer.error["reason"]) == (503, "shutting_down")


async def test_an_engine_that_refuses_the_request_becomes_a_record(open_server: OpenSwap, fake_model: Path):
    async with open_server(models=slow(fake_model, "--load-delay", "0.3")) as server:
        answer = await ask(server, status=400)
        assert answer.status == 200
        assert "Done!" in answer.body.decode()
        assert msgspec.json.decode(answer.events[-1].removeprefix("data: "))["error"]["code"] == 400


async def test_a_long_prompt_after_the_load_gets_pings(open_server: OpenSwap, fake_model: Path):
    async with open_server(models=slow(fake_model, "--load-delay", "0.2")) as server:
        server.ping_after = 0.2
        loading = await ask(server, slow_prompt=0.7)
        at = [event == ": ping" for event in loading.events].index(True)
        assert "Done!" in loading.events[at - 1]
        ready = await ask(server, slow_prompt=0.7)
        assert ready.events[0] == ": ping"
        assert reasoning(ready) == []


async def test_a_client_that_does_not_read_costs_the_model_nothing(open_server: OpenSwap, fake_model: Path):
    async with open_server(models=slow(fake_model, "--load-delay", "0.4")) as server:
        server.loading_state = True
        async with server.connect() as deaf:
            body = msgspec.json.encode(chat("alpha", stream=True))
            await deaf.send("POST", f"{CHAT}?model=alpha", body)
            answer = await ask(server)
            assert answer.status == 200
            seen = b""
            with trio.fail_after(5):
                await deaf.head()
                while chunk := await deaf.data():
                    seen += chunk
            assert seen.count(b"loading model") == seen.count(b"Done!") == 1
            assert seen.endswith(b"data: [DONE]\n\n")
