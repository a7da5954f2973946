"""A client that waits for its model is told of it: the loading stream, its place in the queue, and its time."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import h11
import msgspec
import pytest
import trio
from http_harness import CHAT, Answer, Appliance, Client, OpenServer, chat
from msgspec import Raw
from swap_harness import Configure
from waiting import until

from appliance.core.settings import FleetSettings
from appliance.fleet.lease import QueuePlace
from appliance.http.way.progress import TICK, LoadingStream
from appliance.traffic.request import Headers

HEADER = "━━━━━\nllama-appliance loading model: alpha\n"


@pytest.fixture
def loading(configured: Configure) -> Configure:
    """As `configured`, and loads are told."""
    return partial(configured, sendLoadingState=True)


def slow(*args: str) -> dict[str, object]:
    return {"alpha": {"args": args or ("--load-delay", "1.9")}}


async def ask(server: Appliance, **fake: object) -> Answer:
    return await server.ask("POST", CHAT, chat("alpha", stream=True, **fake))


def chunks(answer: Answer) -> list[Any]:
    """Every record but the last, as the official client reads them."""
    # not at the top: it takes a second of each process that collects the tests
    from openai.types.chat import ChatCompletionChunk

    *records, done = answer.events
    assert done == "data: [DONE]"
    return [ChatCompletionChunk.model_validate_json(r.removeprefix("data: ")) for r in records if r != ": ping"]


def reasoning(answer: Answer) -> list[str]:
    texts = (getattr(chunk.choices[0].delta, "reasoning_content", None) for chunk in chunks(answer) if chunk.choices)
    return [text for text in texts if text]


async def test_the_load_is_told_and_the_answer_follows(open_server: OpenServer, loading: Configure):
    async with open_server(config=loading(slow())) as server:
        began = trio.current_time()
        answer = await ask(server)
        took = trio.current_time() - began
        assert answer.header("content-type") == "text/event-stream"
        assert (answer.status, answer.header("x-accel-buffering")) == (200, "no")
        told = reasoning(answer)
        assert told[0] == HEADER
        assert set(told[1:-1]) == {"."}
        assert told[-1].startswith("\nDone! (")
        assert told[-1].endswith("s)\n━━━━━\n ")
        seconds = float(told[-1].partition("(")[2].partition("s")[0])
        assert 1.8 < seconds < took + 0.1  # it is told with one decimal place
        assert 2 <= len(told[1:-1]) <= seconds / TICK
        assert any(chunk.choices[0].delta.content for chunk in chunks(answer) if chunk.choices)
        first, second = chunks(answer)[:2]
        assert first.object == second.object == "chat.completion.chunk"
        assert first.id == second.id
        assert first.id.startswith("chatcmpl-")
        assert (first.model, first.created > 1_700_000_000) == ("alpha", True)
        assert (first.choices[0].index, first.choices[0].finish_reason) == (0, None)


async def test_the_place_in_the_queue_and_jokes(open_server: OpenServer, loading: Configure):
    models = {"alpha": {"args": ("--load-delay", "0.5")}, "beta": {}}
    busy = chat("beta", stream=True, tokens=20, token_delay=0.05)
    async with open_server(config=loading(models, loadingJokes=True)) as server, server.begun(busy):
        told = reasoning(await ask(server))  # alpha has to wait for beta's end
        assert told[0] == HEADER
        first, joke, rest = told[1].split("\n")
        assert (first, joke[-1], rest) == ("Queue position: #1", ".", "")


class Heard:
    """A sink that keeps what it is told, and when."""

    event_stream = True
    ended = False
    sent = 0
    began = 0.0

    def __init__(self) -> None:
        self.status: int | None = None
        self.said: list[tuple[float, str]] = []

    def start(self, status: int, headers: Headers) -> None:
        self.status = status

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()

    async def write(self, data: bytes) -> None:
        self.push(data)

    def push(self, data: bytes) -> bool:
        text = data.decode()
        if text.startswith("data: "):
            text = msgspec.json.decode(text[6:])["choices"][0]["delta"]["reasoning_content"]
        self.said.append((round(trio.current_time() - self.began, 2), text))
        return True


async def test_progress_is_told_in_per_cent(autojump_clock: trio.testing.MockClock):
    sink = Heard()
    sink.began = trio.current_time()
    progress: list[float | None] = [None]
    place = QueuePlace()
    place.take(lambda: None, lambda: Raw(msgspec.json.encode({"value": progress[0]})), lambda: None)
    stream = LoadingStream(sink, "alpha", place, 5, jokes=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        for progress[0] in (None, 0.25, 0.25, 0.5):
            await trio.sleep(0.75)
        await trio.sleep(0.05)
        stream.ready()
        await trio.sleep(11)
        stream.stop()
    assert sink.said == [
        (0.02, HEADER),
        (0.77, "Loading: 25 %\n"),
        (1.52, "."),
        (2.27, "\nLoading: 50 %\n"),
        (3.02, "."),
        (3.05, "\nDone! (3.05s)\n━━━━━\n "),
        (8.05, ": ping\n\n"),
        (13.05, ": ping\n\n"),
    ]


async def test_nothing_is_written_once_it_is_stopped(autojump_clock: trio.testing.MockClock):
    for after, status, said in ((0, None, []), (1, 200, [HEADER, "."])):
        sink = Heard()
        stream = LoadingStream(sink, "alpha", QueuePlace(), 15, jokes=not after)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            if after:
                await trio.sleep(after)
            stream.stop()
        assert (sink.status, [text for _, text in sink.said]) == (status, said)


@pytest.mark.parametrize(
    ("flags", "code", "reason"), [(("--fail-to-load",), 500, "model_failed_to_start"), ((), 400, "engine_error")]
)
async def test_what_fails_ends_the_stream_with_an_error_record(
    open_server: OpenServer, loading: Configure, flags: tuple[str, ...], code: int, reason: str
):
    """The start of the engine, or the request there."""
    async with open_server(config=loading(slow("--load-delay", "0.3", *flags))) as server:
        answer = await ask(server, status=400)
        assert (answer.status, answer.cut) == (200, False)
        error = msgspec.json.decode(answer.events[-1].removeprefix("data: "))["error"]
        assert (error["code"], error["reason"]) == (code, reason)
        assert ("Done!" in answer.body.decode()) is not bool(flags)


async def test_a_long_prompt_after_the_load_gets_pings(open_server: OpenServer, loading: Configure):
    async with open_server(config=loading(slow("--load-delay", "0.2")), ping_after=0.2) as server:
        loading = await ask(server, slow_prompt=0.5)
        at = [event == ": ping" for event in loading.events].index(True)
        assert "Done!" in loading.events[at - 1]
        ready = await ask(server, slow_prompt=0.5)
        assert ready.events[0] == ": ping"
        assert reasoning(ready) == []


async def test_a_client_that_does_not_read_costs_the_model_nothing(open_server: OpenServer, loading: Configure):
    async with open_server(config=loading(slow("--load-delay", "0.4"))) as server, server.connect() as deaf:
        await deaf.send("POST", CHAT, msgspec.json.encode(chat("alpha", stream=True)))
        assert (await ask(server)).status == 200
        seen = await deaf.rest()
        assert seen.count(b"loading model") == seen.count(b"Done!") == 1
        assert seen.endswith(b"data: [DONE]\n\n")


ONE_BY_ONE = FleetSettings(models_max=1, stop_timeout=2.0, engine_args=("--load-delay", "0.5"))
BUSY = chat("beta", stream=True, tokens=1000, token_delay=0.05)
"""Beta answers until the client leaves."""


async def known(server: Appliance) -> None:
    """Both models have been loaded, so that their times are known; beta is there."""
    for name in ("alpha", "beta"):
        answer = await server.ask("POST", CHAT, chat(name))
        assert answer.header("X-Queue-Position") in ("0", "1")  # the other one's process may have had to go first
        assert float(answer.header("X-Queue-Wait") or 0) >= 0.5
        assert answer.header("X-Queue-Expected") is None
    assert (await server.ask("POST", CHAT, chat("beta"))).header("X-Queue-Position") is None


def headers(head: h11.Response) -> dict[str, str]:
    return {name.decode().lower(): value.decode() for name, value in head.headers}


async def comment(client: Client, prefix: str) -> str:
    while not (record := (await client.record()).decode()).startswith(prefix):
        pass
    return record


async def test_a_stream_hears_its_place_and_what_is_to_be_expected(open_server: OpenServer):
    async with open_server(fleet=ONE_BY_ONE, ping_after=0.1) as server:
        await known(server)
        async with server.begun(BUSY) as beta, server.connect() as alpha:
            await alpha.send("POST", CHAT, chat("alpha", stream=True))
            told = headers(await alpha.head())
            assert told["x-queue-position"] == "1"
            assert float(told["x-queue-expected"]) > 0.4
            assert (await comment(alpha, ": ping; queue_position=1; expected_wait=")).rpartition("=")[2] != "0.0"
            await beta.stream.aclose()
            await comment(alpha, ": ping; expected_wait=")  # it loads now
            await alpha.until(b"data: [DONE]")


async def test_a_plain_answer_says_at_the_end_how_long_it_waited_and_where(open_server: OpenServer):
    async with open_server(fleet=ONE_BY_ONE) as server:
        await known(server)
        async with server.begun(BUSY) as beta, server.connect() as first, server.connect() as second:
            for number, client in enumerate((first, second), 1):
                await client.send("POST", CHAT, chat("alpha"))
                await until(lambda: server.fleet.queued, lambda queued, number=number: queued == number)
            began = trio.current_time()
            await trio.sleep(0.3)  # they wait for so long, and then for the load
            await beta.stream.aclose()
            for client, place in ((first, "1"), (second, "2")):
                told = headers(await client.head())
                assert told["x-queue-position"] == place
                assert 0.8 <= float(told["x-queue-wait"]) <= trio.current_time() - began + 5


async def test_clients_of_ollama_are_told_in_the_same_headers(open_server: OpenServer):
    async with open_server(fleet=ONE_BY_ONE, ping_after=0.1) as server:
        await known(server)
        answer = await server.ask("POST", "/api/chat", chat("alpha"))
        assert answer.header("content-type") == "application/x-ndjson"
        assert answer.header("X-Queue-Position") in ("0", "1")
        assert float(answer.header("X-Queue-Expected") or 0) > 0
        assert all(json.loads(line) for line in answer.body.splitlines())
