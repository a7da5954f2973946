"""Requests reach the engine, and its answers the client, byte for byte."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
import trio
from http_harness import CHAT, Appliance, OpenServer, chat, model
from waiting import until

from appliance.core.bodies.sse import Dialect
from appliance.core.exchange import error_in
from appliance.core.settings import FleetSettings
from appliance.http.way.routes import NAMELESS
from appliance.upstream.client import HttpCall

JSON = ("Content-Type", "application/json")
VOLATILE = re.compile(rb'"(?:id|created)":\s*(?:"[^"]*"|\d+)')


async def test_fifty_streams_at_once_are_what_the_engine_says(server: Appliance):
    body = json.dumps(chat(stream=True, tokens=40, token_delay=0.001)).encode()
    async with server.asking(body, times=50, patience=40) as asked:
        pass
    async with HttpCall(
        server.fleet.address("alpha"), "POST", CHAT, [(b"Content-Type", b"application/json")], body
    ) as response:
        direct = await response.read(1 << 26)
    assert len({VOLATILE.sub(b"", each) for each in (direct, *(answer.body for answer in asked))}) == 1


async def test_the_request_arrives_as_it_was_sent(server: Appliance):
    body = b' {"model" :"al", "fake":{"echo":true},\t"x": 1.50, "messages":[], "y":"\\u00e9 \xc3\xa9"}\r\n '
    sent = [JSON, ("X-CaSe", "Kept"), ("X-Twice", "1"), ("X-Twice", "2"), ("Accept-Encoding", "gzip")]
    answer = await server.ask("POST", f"{CHAT}?q=%20%2F&model=beta", body, sent)
    assert answer.json["body"].encode("latin-1") == body
    head = answer.json["head"].split("\r\n")
    assert head[0] == f"POST {CHAT}?q=%20%2F&model=beta HTTP/1.1"
    assert {"X-CaSe: Kept", "X-Twice: 1", "X-Twice: 2"} <= set(head)
    names = [line.partition(":")[0].lower() for line in head[1:]]
    assert names.count("host") == names.count("content-length") == 1
    assert not {"accept-encoding", "connection"} & set(names)


DIALECTS = (CHAT, "/v1/messages", "/v1/responses", "/api/chat")


async def test_compressed_bodies_are_read_and_other_codings_named(server: Appliance):
    asked = json.dumps(chat() | {"input": "a", "stream": False, "max_tokens": 4}).encode()
    whole, bomb = gzip.compress(asked), gzip.compress(bytes(101 << 20), compresslevel=1)
    for path in DIALECTS:
        for coding, body in (("gzip", whole), ("deflate", zlib.compress(asked))):
            await server.good("POST", path, body, [("Content-Encoding", coding)])
        refused = ("br", asked, 415), ("gzip", asked, 400), ("gzip", whole[:-6], 400), ("gzip", bomb, 413)
        for coding, body, status in refused:
            answer = await server.ask("POST", path, body, [("Content-Encoding", coding)])
            assert (answer.status, status == 413 or coding in answer.body.decode()) == (status, True), path


async def test_half_a_character_is_a_mark(server: Appliance):
    asked = json.dumps(chat() | {"input": "cut \ud83d", "stream": False, "max_tokens": 4})
    body = asked.replace('"content": "', '"content": "cut \\ud83d ', 1)
    for path in DIALECTS:
        await server.good("POST", path, body.encode())


async def test_the_answers_head_keeps_its_case_and_loses_what_is_the_engines_own(server: Appliance):
    answer = await server.ask("POST", CHAT, chat(), [("Origin", "http://localhost:1")])
    names = [name for name, _ in answer.headers]
    assert names.count("Content-Length") == 1
    assert [value for name, value in answer.headers if name.lower() == "server"] == ["llama-appliance"]
    assert "Keep-Alive" not in names
    allowed = [value for name, value in answer.headers if name.lower() == "access-control-allow-origin"]
    assert allowed == ["http://localhost:1"], "this server's own, and not the engine's beside it"
    stream = await server.ask("POST", CHAT, chat(stream=True))
    assert stream.header("transfer-encoding") == "chunked"
    assert stream.header("X-Accel-Buffering") == "no"
    assert stream.header("content-length") is None


async def test_the_engines_own_refusals_pass_unchanged(server: Appliance):
    for status, stream in itertools.product((400, 404, 422, 429, 500, 503), (False, True)):
        answer = await server.refuses(status, None, "POST", CHAT, chat(stream=stream, status=status))
        assert answer.error["fake"] is True


async def test_how_the_model_is_chosen(server: Appliance):
    form = (
        b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n'
        b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nal\r\n--XX--\r\n'
    )
    for query, name in (("", "al"), ("", "ALPHA"), ("?model=alpha", None)):
        assert (await server.ask("POST", f"{CHAT}{query}", chat(name))).json["model"] == "alpha"
    for kind in ("json", "json; charset=utf-8", "x-www-form-urlencoded"):  # the last one is what curl -d says
        told = [("Content-Type", f"application/{kind}")]
        adapters = await server.ask("POST", "/lora-adapters?model=alpha", b"[]", told)
        assert adapters.json == {"success": True}, kind
    multipart = [("Content-Type", "multipart/form-data; boundary=XX")]
    heard = await server.ask("POST", "/v1/audio/transcriptions", form, multipart)
    assert heard.error["message"].startswith("the model 'alpha' reads no sound")
    assert server.state("alpha") == "loaded"
    missing = await server.refuses(400, "invalid_request", "POST", CHAT, chat(None))
    unknown = await server.refuses(404, "model_not_found", "POST", CHAT, chat("alpah"), words="'alpha'")
    assert (missing.error["param"], unknown.error["param"]) == ("model", None)
    assert server.state("beta") == "unknown"
    await server.ask("POST", "/v1/completions", b"model=beta&prompt=x", told)
    assert server.state("beta") == "loaded"


async def test_llama_cpps_own_clients_name_no_model_and_mean_the_one_in_use(server: Appliance):
    async def is_refused(path: str) -> bool:
        answer = await server.ask("POST", path, {"prompt": "x", "content": "x"})
        return answer.status == 400 and answer.error.get("param") == "model"

    assert await is_refused("/completion"), "nobody has used one"
    for name in ("alpha", "beta"):
        await server.good("POST", CHAT, chat(name))
        for path in sorted(NAMELESS):
            assert not await is_refused(path), path
            assert server.fleet.latest_used() == name
    assert await is_refused(CHAT)
    await server.fleet.unload("beta")
    assert server.fleet.latest_used() == "alpha"
    await server.fleet.unload("alpha")
    assert not await is_refused("/tokenize")
    assert server.state("beta") == "loaded", "the one that was used last is loaded again"


async def test_the_only_model_needs_no_name(open_server: OpenServer, fake_model: Path):
    async with open_server(models=[model(fake_model, "only")]) as server:
        assert (await server.ask("POST", CHAT, chat(None))).json["model"] == "only"
        assert (await server.ask("POST", CHAT, chat("other"))).status == 404


async def test_a_broken_model_says_why_and_starts_nothing(open_server: OpenServer, fake_model: Path):
    async with open_server(models=[model(fake_model, "bad", error="it is truncated")]) as server:
        await server.refuses(500, "invalid_model_file", "POST", CHAT, chat("bad"), words="it is truncated")
        assert server.state("bad") == "unknown"


async def test_asking_never_loads(server: Appliance):
    for path in ("/slots", "/props", "/metrics", "/lora-adapters"):
        await server.refuses(400, "model_not_loaded", "GET", f"{path}?model=alpha")
        assert (await server.ask("GET", f"{path}?model=nope")).status == 404
    assert server.state("alpha") == "unknown"
    await server.ask("POST", "/models/load", {"model": "alpha", "wait": True})
    for path in ("/slots", "/props", "/lora-adapters"):
        answer = await server.ask("GET", f"{path}?model=al")
        assert (answer.status, answer.cut) == (200, False), path
        assert (await server.ask("HEAD", f"{path}?model=al")).body == b""


def last_error(events: list[str]) -> tuple[str | None, dict[str, Any]]:
    """Name and data of the last record."""
    lines = dict(line.split(": ", 1) for line in events[-1].split("\n"))
    return lines.get("event"), json.loads(lines["data"])


async def test_the_official_client_hears_why_a_response_failed(server: Appliance):
    """Its events carry on the numbers of the engine's; codex takes any other end for a lost connection."""
    import openai  # not at the top: it takes a second of each process that collects the tests

    def ask(headers: dict[str, str]) -> list[Any]:
        base, fake = f"{server.url}/v1", {"fake": {"die_after_tokens": 3}}
        with openai.OpenAI(base_url=base, api_key="-", max_retries=0, default_headers=headers) as client:
            return list(client.responses.create(model="alpha", input=f"x{headers}", stream=True, extra_body=fake))

    for headers in ({}, {"X-Conversation-Id": "c"}):
        events = await trio.to_thread.run_sync(ask, headers)
        assert [event.type for event in events[-2:]] == ["response.output_text.delta", "response.failed"]
        assert events[-1].sequence_number == len(events) - 1
        assert events[-1].response.id == events[0].response.id
        assert events[-1].response.error.message.startswith("the engine of model 'alpha' failed")


async def test_an_engine_that_gives_no_answer_is_a_502_that_says_why(server: Appliance):
    for fault, words in (
        ({"close_without_answer": True}, "without an answer"),
        ({"not_http": True}, "not HTTP"),
        ({"die_before_head": True, "exit_code": 42}, "exit status 42"),
    ):
        for path in (CHAT, "/v1/messages"):
            answer = await server.refuses(502, "upstream_failed", "POST", path, chat(**fault), words=words)
        assert (answer.json["type"], answer.error["type"]) == ("error", "api_error")
        assert (await server.ask("POST", CHAT, chat())).status == 200


async def test_a_model_that_cannot_start_says_why(open_server: OpenServer, fake_model: Path):
    async with open_server(models=[model(fake_model, "bad", args=("--fail-to-load", "--exit-code", "9"))]) as server:
        await server.refuses(500, "model_failed_to_start", "POST", CHAT, chat("bad"), words="9")
        status = (await server.ask("GET", "/v1/models")).json["data"][0]["status"]
        assert (status["failed"], status["exit_code"]) == (True, 9)


async def test_a_slow_load_is_bridged_with_comments_and_then_the_stream(open_server: OpenServer, fake_model: Path):
    slow = model(fake_model, "slow", args=("--load-delay", "0.6"))
    async with open_server(models=[slow], ping_after=0.15) as server:
        answer = await server.ask("POST", CHAT, chat("slow", stream=True))
        comments = [event for event in answer.events if event == ": ping"]
        assert len(comments) >= 2
        assert answer.events[: len(comments)] == comments
        assert answer.events[-1] == "data: [DONE]"
        assert answer.header("content-type") == "text/event-stream"
        assert "0123" not in (await server.ask("POST", CHAT, chat("slow"))).body.decode()


@pytest.mark.parametrize(
    ("path", "name", "flags", "code"),
    [
        (CHAT, None, (), 429),
        ("/v1/messages", "error", (), "rate_limit_error"),
        ("/v1/responses", "response.failed", (), "rate_limit_exceeded"),
        (CHAT, None, ("--fail-to-load",), 500),
    ],
)
async def test_an_error_after_comments_becomes_a_record(
    open_server: OpenServer, fake_model: Path, path: str, name: str | None, flags: tuple[str, ...], code: int | str
):
    slow = model(fake_model, "slow", args=("--load-delay", "0.4", *flags))
    async with open_server(models=[slow], ping_after=0.1) as server:
        answer = await server.ask("POST", path, chat("slow", stream=True, status=429) | {"input": "x"})
        assert (answer.status, answer.events[0]) == (200, ": ping")
        found, data = last_error(answer.events)
        error = data["response"]["error"] if name == "response.failed" else data["error"]
        assert (found, error["type"] if path == "/v1/messages" else error["code"]) == (name, code)


@pytest.mark.parametrize(("ping_after", "stream"), [(0.0, True), (0.05, False)])
async def test_comments_can_be_switched_off_and_are_for_streams_alone(
    open_server: OpenServer, ping_after: float, stream: bool
):
    async with open_server(ping_after=ping_after) as server:
        assert b": ping" not in (await server.good("POST", CHAT, chat(stream=stream, slow_prompt=0.3))).body


async def test_a_slow_reader_slows_its_own_engine_only(server: Appliance):
    async with server.begun(chat(stream=True, tokens=200, token_size=200_000)):
        await server.wait_held_up("alpha")
        assert server.fleet.known("alpha").leases == 1
        assert (await server.ask("POST", CHAT, chat(stream=True))).events[-1] == "data: [DONE]"
        await server.wait_held_up("alpha")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_unload_under_an_answer_is_told_as_that(open_server: OpenServer, stream: bool):
    """To its client, in the log and in the activity row; nothing says that an engine has failed."""
    async with open_server(fleet=FleetSettings(stop_timeout=0.3)) as server:
        async with server.asking(chat(stream=stream, tokens=200, token_delay=0.05), times=4) as answers:
            await until(lambda: server.state("alpha") == "loaded")
            await until(lambda: server.slots_busy("alpha"), lambda busy: len(busy) == 4)
            await server.fleet.unload("alpha")
        rows = await server.rows()
    for answer in answers:
        error = json.loads(answer.body.rpartition(b"data: ")[2])["error"] if stream else answer.error
        assert error["reason"] == "model_unloaded"
        assert "was unloaded while the request was under way" in error["message"]
        assert stream or (answer.status, answer.header("Retry-After")) == (503, "1")
    assert len(rows) == 4
    assert all("was unloaded while" in row["error_msg"] for row in rows)


async def test_an_answer_that_is_shorter_than_told_is_the_engine_s_fault(server: Appliance):
    """The client keeps what came, and the row does not say that it has left."""
    answer = await server.ask("POST", CHAT, chat(close_after_tokens=4))
    assert answer.cut
    assert answer.body.startswith(b"{")
    await until(lambda: server.traffic.metrics.under_way == 0)  # the client knew it before the row was written
    [row] = await server.rows()
    assert row["resp_status_code"] == 502
    assert "ended early or is garbled" in row["error_msg"]
    assert (await server.ask("POST", CHAT, chat())).status == 200


@pytest.mark.parametrize("body", [b'{"error": "\xff"}', b'{"error": {"more": ' + b"[" * 100_000, b"[", b"no"])
def test_an_error_that_cannot_be_read_is_told_all_the_same(body: bytes) -> None:
    record = error_in(body, 500, Dialect.OPENAI)
    assert record.startswith(b"data: ")
    assert json.loads(record.removeprefix(b"data: ").partition(b"\n")[0])["error"]["code"] == 500
