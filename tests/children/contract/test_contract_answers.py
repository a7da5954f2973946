"""What every route answers, on an engine that is ready. Shapes: llama.cpp b11434."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Generator

import pytest
from contract_harness import ALIAS, HOST, Engine, Json, Running, started
from waiting import wait

CHAT: Json = {"messages": [{"role": "user", "content": "Hello, who are you?"}], "max_tokens": 4, "ignore_eos": True}
PROMPT: Json = {"prompt": "Hello", "n_predict": 4, "max_tokens": 4, "ignore_eos": True}
JSON = "application/json; charset=utf-8"
FREED_WITHIN = 1.5
"""Seconds until a slot is free after its client left."""

CHUNK = "choices created id model object system_fingerprint"
TIMINGS = """cache_n prompt_n prompt_ms prompt_per_token_ms prompt_per_second predicted_n predicted_ms
predicted_per_token_ms predicted_per_second"""
USAGE = "completion_tokens prompt_tokens total_tokens prompt_tokens_details"
NATIVE = """index content tokens id_slot stop model tokens_predicted tokens_evaluated generation_settings prompt
has_new_line truncated stop_type stopping_word tokens_cached timings"""
PROPS = """default_generation_settings total_slots model_alias model_ftype model_path modalities media_marker
endpoint_slots endpoint_props endpoint_metrics ui ui_settings chat_template chat_template_caps bos_token eos_token
build_info is_sleeping cors_proxy_enabled"""
METRICS = """prompt_tokens_total prompt_tokens_cached_total prompt_seconds_total tokens_predicted_total
tokens_predicted_seconds_total n_decode_total n_tokens_max spec_decode_num_draft_tokens_total
spec_decode_num_accepted_tokens_total spec_decode_num_drafts_total prompt_tokens_seconds predicted_tokens_seconds
requests_processing requests_deferred n_busy_slots_per_decode"""


@pytest.fixture(scope="module")
def server(
    engine: Engine, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Generator[Running]:
    port = free_port()
    argv = engine.argv(port, "--parallel", "2", "--ctx-size", "16384", "--metrics", "--no-ui")
    with started(argv, port, tmp_path_factory.mktemp(engine.name)) as running:
        running.wait_ready()
        yield running


def test_health(server: Running) -> None:
    answer = server.ask("GET", "/health")
    assert (answer.status, answer.json()) == (200, {"status": "ok"})
    assert answer.header("Content-Type") == JSON
    assert answer.header("Server") == "llama.cpp"
    assert server.ask("GET", "/v1/health").json() == {"status": "ok"}


def test_head_has_the_headers_of_get_and_no_body(server: Running) -> None:
    answer = server.ask("HEAD", "/health")
    assert (answer.status, answer.body, answer.header("Content-Length")) == (200, b"", "15")


def test_a_connection_serves_one_request_after_another(server: Running) -> None:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=30)
    for _ in range(2):
        connection.request("GET", "/health")
        response = connection.getresponse()
        assert response.getheader("Keep-Alive") == "timeout=5, max=100"
        assert response.read() == b'{"status":"ok"}'
    connection.close()


def test_models_lists_the_one_model_under_its_alias(engine: Engine, server: Running) -> None:
    answer = server.ask("GET", "/v1/models").json()
    engine.check_keys(answer, "data models object")
    (entry,) = answer["data"]
    model = engine.check_keys(entry, "id aliases tags object architecture created owned_by meta")
    assert (model["id"], model["aliases"], model["owned_by"]) == (ALIAS, [ALIAS], "llamacpp")
    engine.check_keys(model["architecture"], "input_modalities output_modalities")
    engine.check_keys(model["meta"], "vocab_type n_vocab n_ctx n_ctx_train n_embd n_params size ftype")
    assert server.ask("GET", "/models").json()["object"] == answer["object"] == "list"


def test_props(engine: Engine, server: Running) -> None:
    props = engine.check_keys(server.ask("GET", "/props").json(), PROPS)
    assert (props["total_slots"], props["model_alias"], props["endpoint_metrics"]) == (2, ALIAS, True)
    assert str(props["build_info"]).startswith("b")
    engine.check_keys(props["default_generation_settings"], "params n_ctx")
    engine.check_keys(props["modalities"], "vision video audio")


def test_slots(engine: Engine, server: Running) -> None:
    slots = json.loads(server.ask("GET", "/slots").body)
    assert [slot["id"] for slot in slots] == [0, 1]
    for slot in slots:
        engine.check_keys(slot, "id n_ctx speculative is_processing", "id_task params")


def test_metrics(server: Running) -> None:
    answer = server.ask("GET", "/metrics")
    assert answer.header("Content-Type") == "text/plain; version=0.0.4"
    assert answer.header("Process-Start-Time-Unix") is not None
    lines = answer.body.decode().splitlines()
    names = [line.split()[0].removeprefix("llamacpp:").partition("{")[0] for line in lines if line[:1] != "#"]
    assert set(names) >= set(METRICS.split())
    assert all(f"# TYPE llamacpp:{name} " in answer.body.decode() for name in METRICS.split())


def test_tokens_come_back_as_the_text_they_came_from(engine: Engine, server: Running) -> None:
    text = "Hello, world"
    tokens = server.ask("POST", "/tokenize", {"content": text}).json()["tokens"]
    assert all(isinstance(token, int) for token in tokens)
    back = server.ask("POST", "/detokenize", {"tokens": tokens}).json()
    assert str(engine.check_keys(back, "content")["content"]).strip() == text
    pieces = server.ask("POST", "/tokenize", {"content": text, "with_pieces": True}).json()
    assert [engine.check_keys(piece, "id piece")["id"] for piece in pieces["tokens"]] == tokens


def test_template_and_its_length(engine: Engine, server: Running) -> None:
    prompt = engine.check_keys(server.ask("POST", "/apply-template", CHAT).json(), "prompt")["prompt"]
    assert "Hello, who are you?" in str(prompt)
    count = engine.check_keys(server.ask("POST", "/v1/messages/count_tokens", CHAT).json(), "input_tokens")
    assert isinstance(count["input_tokens"], int)
    assert 0 < count["input_tokens"] <= len(str(prompt)) + 1


def test_chat_whole(engine: Engine, server: Running) -> None:
    answer = server.ask("POST", "/v1/chat/completions", CHAT | {"model": "whatever"})
    assert (answer.status, answer.header("Content-Type")) == (200, JSON)
    whole = engine.check_keys(answer.json(), f"{CHUNK} usage timings")
    assert (whole["object"], whole["model"]) == ("chat.completion", ALIAS)
    (choice,) = whole["choices"]
    assert engine.check_keys(choice, "finish_reason index message")["finish_reason"] == "length"
    message = engine.check_keys(choice["message"], "role content")
    assert message["role"] == "assistant"
    assert isinstance(message["content"], str)
    assert engine.check_keys(whole["usage"], USAGE)["completion_tokens"] == 4
    engine.check_keys(whole["timings"], TIMINGS)


def test_chat_stream(engine: Engine, server: Running) -> None:
    answer = server.stream("/v1/chat/completions", CHAT)
    assert answer.status == 200
    assert answer.header("Content-Type") == "text/event-stream"
    assert answer.header("Transfer-Encoding") == "chunked"
    assert answer.header("X-Accel-Buffering") == "no"
    assert answer.header("Content-Length") is None
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in answer.chunks)
    assert answer.chunks[-1] == b"data: [DONE]\n\n"
    assert [data for _, data in answer.records()].count("[DONE]") == 1
    chunks = [engine.check_keys(record, CHUNK, "timings") for record in answer.objects()]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["model"] for chunk in chunks} == {ALIAS}
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0] for chunk in chunks]
    assert deltas[0]["delta"] == {"role": "assistant", "content": None}
    assert all(isinstance(delta["delta"]["content"], str) for delta in deltas[1:-1])
    assert [delta["finish_reason"] for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert deltas[-1]["delta"] == {}
    engine.check_keys(chunks[-1]["timings"], TIMINGS)


def test_chat_stream_with_usage_ends_with_a_record_without_choices(engine: Engine, server: Running) -> None:
    answer = server.stream("/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}})
    last = engine.check_keys(answer.objects()[-1], f"{CHUNK} usage timings")
    assert last["choices"] == []
    assert engine.check_keys(last["usage"], USAGE)["completion_tokens"] == 4


def test_completion_native(engine: Engine, server: Running) -> None:
    whole = engine.check_keys(server.ask("POST", "/completion", PROMPT).json(), NATIVE)
    assert (whole["stop"], whole["stop_type"], whole["tokens_predicted"]) == (True, "limit", 4)
    answer = server.stream("/completion", PROMPT)
    *partial, final = answer.objects()
    for record in partial:
        fields = "index content tokens stop id_slot tokens_predicted tokens_evaluated"
        assert engine.check_keys(record, fields)["stop"] is False
    assert engine.check_keys(final, NATIVE)["stop"] is True
    assert b"[DONE]" not in answer.body


def test_completion_openai(engine: Engine, server: Running) -> None:
    whole = engine.check_keys(server.ask("POST", "/v1/completions", PROMPT).json(), f"{CHUNK} usage timings")
    assert whole["object"] == "text_completion"
    (choice,) = whole["choices"]
    assert engine.check_keys(choice, "text index logprobs finish_reason")["finish_reason"] == "length"
    answer = server.stream("/v1/completions", PROMPT)
    assert answer.chunks[-1] == b"data: [DONE]\n\n"
    records = [engine.check_keys(record, CHUNK, "usage timings") for record in answer.objects()]
    reasons = [record["choices"][0]["finish_reason"] for record in records]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]


def test_messages_whole(engine: Engine, server: Running) -> None:
    whole = server.ask("POST", "/v1/messages", CHAT).json()
    engine.check_keys(whole, "id type role content model stop_reason stop_sequence usage")
    assert (whole["type"], whole["role"], whole["stop_reason"]) == ("message", "assistant", "max_tokens")
    engine.check_keys(whole["usage"], "cache_read_input_tokens input_tokens output_tokens")
    (block,) = whole["content"]
    assert engine.check_keys(block, "type text")["type"] == "text"


def test_messages_stream_order(engine: Engine, server: Running) -> None:
    answer = server.stream("/v1/messages", CHAT)
    names = [name for name, _ in answer.records()]
    assert names[:2] == ["message_start", "content_block_start"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert [record["type"] for record in answer.objects()] == names
    start = answer.objects()[0]["message"]
    engine.check_keys(start, "id type role content model stop_reason stop_sequence usage")
    assert b"[DONE]" not in answer.body


def test_responses_stream_order(engine: Engine, server: Running) -> None:
    body: Json = {"input": "Hello, who are you?", "max_output_tokens": 4, "ignore_eos": True}
    answer = server.stream("/v1/responses", body)
    names = [name.removeprefix("response.") for name, _ in answer.records()]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(names[4:-4]) == {"output_text.delta"}
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    done = answer.objects()[-1]["response"]
    required = "id object created_at status model output usage"
    assert engine.check_keys(done, required, "completed_at")["status"] == "completed"
    engine.check_keys(done["usage"], "input_tokens output_tokens total_tokens input_tokens_details")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", "/v1/chat/completions", b"not json", 400, "invalid_request_error"),
        ("POST", "/v1/chat/completions", b"{}", 400, "invalid_request_error"),
        ("POST", "/v1/completions", b"{}", 400, "invalid_request_error"),
        ("POST", "/completion", b"{}", 400, "invalid_request_error"),
        ("POST", "/v1/messages", b"{}", 500, "server_error"),
        ("POST", "/tokenize", b"x", 400, "invalid_request_error"),
        ("POST", "/v1/embeddings", b'{"input":"x"}', 501, "not_supported_error"),
        ("POST", "/v1/rerank", b'{"query":"x","documents":["x"]}', 501, "not_supported_error"),
        ("POST", "/props", b"{}", 501, "not_supported_error"),
        ("POST", "/slots/0?action=erase", b"{}", 501, "not_supported_error"),
        ("GET", "/nowhere", b"", 404, "not_found_error"),
        ("PUT", "/v1/models", b"{}", 404, "not_found_error"),
        ("GET", "/v1/streams", b"", 404, "not_found_error"),
    ],
)
def test_refusals(engine: Engine, server: Running, method: str, path: str, body: bytes, status: int, kind: str) -> None:
    answer = server.ask(method, path, body)
    error = engine.check_keys(answer.json()["error"], "code message type")
    assert (answer.status, error["code"], error["type"]) == (status, status, kind)
    assert error["message"]
    assert answer.header("Content-Type") == JSON
    assert answer.header("Connection") == "close"


def test_lora_adapters_take_an_array(server: Running) -> None:
    assert server.ask("GET", "/lora-adapters").body == b"[]"
    assert server.ask("POST", "/lora-adapters", b"[]").json() == {"success": True}


def test_preflight_is_answered_for_any_path(server: Running) -> None:
    answer = server.ask("OPTIONS", "/anything", headers={"Origin": "http://example.com"})
    assert answer.status == 200
    assert answer.header("Access-Control-Allow-Origin") == "http://example.com"
    assert answer.header("Access-Control-Allow-Methods") == "GET, POST, DELETE, OPTIONS"
    assert answer.header("Access-Control-Allow-Headers") == "*"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(engine: Engine, server: Running, stream: bool) -> None:
    """A real server looks for the client of a whole answer only after a second without results for anybody.

    Even a question to /slots is such a result, hence the silence here instead of asking until it is so.
    """
    before = predicted(server)
    with server.open("/completion", {"prompt": "Hello", "stream": stream, **engine.long}) as sock:
        wait(lambda: server.busy_slots() == 1, within=10)
        if stream:
            assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    if not stream:
        time.sleep(FREED_WITHIN)  # in silence, as said above
    wait(lambda: server.busy_slots() == 0, within=FREED_WITHIN)
    assert predicted(server) - before < 8000, "it was generated to the end of the context"


def test_a_request_beyond_the_slots_waits_for_one(engine: Engine, server: Running) -> None:
    long: Json = {"prompt": "Hello", "stream": True, **engine.long}
    with server.open("/completion", long), server.open("/completion", long) as second:
        wait(lambda: server.busy_slots() == 2, within=10)
        with server.open("/completion", PROMPT) as third:
            wait(lambda: metric(server, "requests_deferred") == 1)
            second.close()
            assert third.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def predicted(server: Running) -> float:
    return metric(server, "tokens_predicted_total")


def metric(server: Running, name: str) -> float:
    lines = server.ask("GET", "/metrics").body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"llamacpp:{name} "))
