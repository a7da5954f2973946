"""Ollama's API over a real server and fake engines: answers, errors, how long models stay, derived models, pulls."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from http_harness import CHAT, Answer, Appliance, OpenServer, chat, model
from hub_process import FakeHub
from known_models import known
from msgspec import structs
from waiting import PATIENCE, until

from appliance.core.models.model import OwnWords
from appliance.core.settings import FleetSettings

STORY = "Once upon a time a small llama carried"  # what the fake says in its eight tokens
ASK = {"model": "alpha", "messages": [{"role": "user", "content": "hi"}]}
THINKS = "<think></think>{{ tools }}"
RAW = "raw mode does not support template, system, or context"
TAKEN = "the name 'vectors' is taken by a model that was not made here; choose another"
QUANTIZE = "'quantize' is not supported here; derive models with from, system, parameters, messages"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def lines(answer: Answer) -> list[dict]:
    assert answer.header("content-type") == "application/x-ndjson"
    assert answer.body.endswith(b"\n")
    return [json.loads(line) for line in answer.body.splitlines()]


def said(records: list[dict]) -> str:
    return "".join(record["message"]["content"] for record in records)


async def ask(server: Appliance, path: str, body: object, *headers: tuple[str, str]) -> Answer:
    return await server.ask("POST", f"/api/{path}", body, headers)


async def error(server: Appliance, path: str, body: object) -> tuple[int, str]:
    answer = await ask(server, path, body)
    assert (answer.header("content-type") or "").startswith("application/json")
    assert answer.json.keys() == {"error"}
    return answer.status, answer.json["error"]


async def listed(server: Appliance) -> dict[str, dict]:
    return {entry["name"]: entry for entry in (await server.ask("GET", "/api/tags")).json["models"]}


async def loaded(server: Appliance) -> dict[str, dict]:
    return {entry["name"]: entry for entry in (await server.ask("GET", "/api/ps")).json["models"]}


def left(entry: dict) -> timedelta:
    return datetime.fromisoformat(entry["expires_at"]) - datetime.now(UTC)


async def test_a_chat_is_lines_unless_it_says_otherwise(server: Appliance):
    records = lines(await ask(server, "chat", ASK))
    assert said(records) == STORY
    assert [record["done"] for record in records] == [False] * 8 + [True]
    assert all(record["model"] == "alpha" for record in records)
    last = records[-1]
    assert last["done_reason"] in ("stop", "length")
    for name in ("total_duration", "load_duration", "prompt_eval_count", "eval_count"):
        assert last[name] > 0
    assert last["total_duration"] > last["load_duration"]
    whole = await ask(server, "chat", {**ASK, "stream": False})
    assert whole.header("content-type") == "application/json; charset=utf-8"
    assert whole.json["message"]["content"] == STORY
    assert whole.json.keys() == last.keys()


@pytest.mark.parametrize("raw", [False, True])
async def test_generate(server: Appliance, raw: bool):
    body = {"model": "ALPHA:latest", "prompt": "hi", "raw": raw}
    records = lines(await ask(server, "generate", body))
    assert "".join(record["response"] for record in records) == STORY
    assert {record["model"] for record in records} == {"ALPHA:latest"}
    assert (await ask(server, "generate", {**body, "stream": False})).json["response"] == STORY


async def test_a_model_without_tools_answers_as_if_none_were_sent(
    open_server: OpenServer, fake_model: Path, caplog: pytest.LogCaptureFixture
):
    """Open WebUI's page sends some twenty tools with every question, whatever the model can do."""
    echo = ("--script", '[{"echo": true}]')
    plain = known(fake_model, "alpha", *echo, tokenizer__chat_template="{{ messages }}")
    caplog.set_level("INFO")
    async with open_server(models=[plain, model(fake_model, "beta", args=echo)]) as server:
        for name in ("alpha", "alpha:latest", "ALPHA"):
            for streams in (True, False):
                body = {**ASK, "model": name, "stream": streams}
                bare, full = [await ask(server, "chat", sent) for sent in (body, {**body, "tools": [TOOL]})]
                texts = [said(lines(answer) if streams else [answer.json]) for answer in (bare, full)]
                assert texts[1] == texts[0]
                assert '"tools"' not in texts[1]
        prompted = await ask(server, "generate", {"model": "alpha", "prompt": "x", "stream": False, "tools": [TOOL]})
        assert '"tools"' not in prompted.json["response"]
        assert (await ask(server, "show", {"model": "alpha"})).json["capabilities"] == ["completion"]
        passed = await ask(server, "chat", {**ASK, "model": "beta", "stream": False, "tools": [TOOL]})
        assert json.loads(passed.json["message"]["content"])["tools"] == [TOOL]
    [told] = [record.getMessage() for record in caplog.records if "tools" in record.getMessage()]
    assert "'alpha'" in told


async def test_names(open_server: OpenServer, fake_model: Path):
    models = [model(fake_model, name) for name in ("alpha", "Org/Repo:Q8_0", "with spaces :: and more")]
    async with open_server(models=models) as server:
        for name in ("alpha", "alpha:latest", "ALPHA", "hf.co/org/repo:q8_0", "with spaces :: and more"):
            body = {**ASK, "model": name, "stream": False}
            assert (await ask(server, "chat", body)).json["model"] == name
            assert (await server.ask("POST", CHAT, {**body})).status == 200
        tags = await listed(server)
        assert tags.keys() == {"alpha:latest", "Org/Repo:Q8_0", "with spaces :: and more"}
        assert all(name == entry["model"] and len(entry["digest"]) == 64 for name, entry in tags.items())


REFUSED = [
    ("chat", {}, 400, "model is required"),
    ("chat", b"", 400, "missing request body"),
    ("chat", {**ASK, "model": "alpha:cloud"}, 404, "model 'alpha:cloud' not found"),
    ("chat", {**ASK, "think": True}, 400, '"alpha" does not support thinking'),
    ("chat", {**ASK, "model": "vectors"}, 400, '"vectors" does not support chat'),
    ("generate", {"prompt": "x"}, 404, "model '' not found"),
    ("generate", {"model": "x y", "prompt": "x"}, 400, "invalid model name"),
    ("generate", {"model": "vectors", "prompt": "x"}, 400, '"vectors" does not support generate'),
    ("generate", {"model": "alpha", "prompt": "x", "raw": True, "system": "y"}, 400, RAW),
    ("generate", {"model": "alpha", "prompt": "x", "suffix": "y"}, 400, '"alpha" does not support insert'),
    ("show", {}, 400, "model is required"),
    ("show", {"name": "nope"}, 404, "model 'nope:latest' not found"),
    ("embed", {"model": "nope", "input": "x"}, 404, 'model "nope" not found, try pulling it first'),
    ("embed", {"model": "vectors", "input": [1]}, 400, "invalid input type"),
    ("embed", {"model": "alpha", "input": "x"}, 400, '"alpha" does not support embeddings'),
    ("copy", {"source": "nope", "destination": "x"}, 404, 'model "nope" not found'),
    ("copy", {"source": "alpha", "destination": "x y"}, 400, 'destination "x y" is invalid'),
    ("copy", {"source": "alpha", "destination": "vectors"}, 400, TAKEN),
    ("create", {"model": "x"}, 400, "neither 'from' or 'files' was specified"),
    ("create", {"model": "x y", "from": "alpha"}, 400, "invalid model name"),
    ("create", {"model": "x", "from": "nope"}, 404, "model 'nope' not found; pull it first"),
    ("create", {"model": "x", "from": "alpha", "quantize": "q4_0"}, 501, QUANTIZE),
    ("push", {"model": "alpha"}, 501, "models cannot be published from here"),
    ("me", None, 401, "unauthorized"),
    ("tags", {}, 405, "POST is not allowed for /api/tags; use GET"),
]


async def test_errors_in_ollamas_words(open_server: OpenServer, fake_model: Path):
    vectors = known(fake_model, "vectors", architecture="bert")
    async with open_server(models=[known(fake_model, "alpha"), vectors]) as server:
        for path, body, status, text in REFUSED:
            assert await error(server, path, body) == (status, text)
        assert (await loaded(server)) == {}


async def test_what_an_engine_refuses_is_told_in_ollamas_shape(open_server: OpenServer):
    async with open_server(fleet=FleetSettings(engine_args=("--error-record", "3"))) as server:
        records = lines(await ask(server, "chat", ASK))
        assert [record.get("done") for record in records] == [False] * 3 + [None]
        assert records[-1].keys() == {"error"}
    async with open_server(fleet=FleetSettings(engine_args=("--error-record", "0"))) as server:
        for streams in (True, False):
            assert (await error(server, "chat", {**ASK, "stream": streams}))[0] == 500
    async with open_server(fleet=FleetSettings(engine_args=("--fail-to-load",))) as server:
        assert (await error(server, "chat", ASK))[0] == 500
        assert (await error(server, "generate", {"model": "alpha"}))[0] == 500


async def test_keys_hosts_and_origins(open_server: OpenServer):
    """In Ollama's words; whose origin is let in, `test_guard.py` has."""
    async with open_server(api_keys=("k",)) as server:
        for method, path in (("GET", "/api/tags"), ("POST", "/api/chat"), ("POST", "/api/pull")):
            refused = await server.ask(method, path, ASK if method == "POST" else None)
            assert (refused.status, refused.json) == (401, {"error": "unauthorized"})
        assert (await ask(server, "chat", ASK, ("Authorization", "Bearer k"))).status == 200
    async with open_server() as server:
        refused = await ask(server, "chat", ASK, ("Origin", "https://evil.example"))
        assert (refused.status, refused.json.keys()) == (403, {"error"})
        assert (await ask(server, "chat", ASK, ("Authorization", "Bearer anything"))).status == 200


async def test_somebody_is_there(server: Appliance):
    alive = await server.ask("GET", "/", headers=[("Accept", "*/*")])
    assert (alive.body, alive.header("content-type")) == (b"Ollama is running", "text/plain; charset=utf-8")
    assert b"<!doctype html>" in (await server.ask("GET", "/", headers=[("Accept", "text/html")])).body
    for path in ("/", "/api/version", "/api/tags"):
        head = await server.ask("HEAD", path)
        assert (head.status, head.body) == (200, b"")
    version = (await server.ask("GET", "/api/version")).json["version"]
    assert [int(part) for part in version.split(".")] >= [0, 6, 4]
    assert (await server.ask("GET", "/api/status")).json["cloud"]["disabled"] is True


async def test_a_model_is_loaded_kept_and_unloaded_by_wish(server: Appliance):
    load = await ask(server, "generate", {"model": "alpha"})
    assert load.header("content-type") == "application/json; charset=utf-8"
    assert (load.json["response"], load.json["done"], load.json["done_reason"]) == ("", True, "load")
    assert left((await loaded(server))["alpha:latest"]) > timedelta(days=100_000)
    await ask(server, "chat", {**ASK, "keep_alive": "30s"})
    assert timedelta(seconds=20) < left((await loaded(server))["alpha:latest"]) <= timedelta(seconds=30)
    await ask(server, "chat", ASK)  # the wish stays with the model
    assert left((await loaded(server))["alpha:latest"]) <= timedelta(seconds=30)
    await server.ask("POST", CHAT, chat(), [("X-Keep-Alive", "2m")])
    assert timedelta(seconds=100) < left((await loaded(server))["alpha:latest"]) <= timedelta(minutes=2)
    await ask(server, "chat", {**ASK, "keep_alive": -1})
    assert left((await loaded(server))["alpha:latest"]) > timedelta(days=100_000)
    unload = await ask(server, "chat", {"model": "alpha", "messages": [], "keep_alive": 0})
    assert (unload.json["message"], unload.json["done_reason"]) == ({"role": "assistant", "content": ""}, "unload")
    assert await loaded(server) == {}
    assert (await error(server, "chat", {**ASK, "keep_alive": "-1"}))[0] == 400
    assert (await server.ask("POST", CHAT, chat(), [("X-Keep-Alive", "soon")])).status == 400
    assert {row["req_path"] for row in await server.rows()} == {"/api/chat", CHAT}  # to load is no generation


async def test_a_model_goes_when_its_time_is_over(server: Appliance):
    await ask(server, "chat", {**ASK, "keep_alive": 0})
    await until(lambda: server.state("alpha"), lambda state: state == "unloaded")
    await ask(server, "chat", {**ASK, "keep_alive": 0.3})
    assert "alpha:latest" in await loaded(server)
    await until(lambda: server.state("alpha"), lambda state: state == "unloaded")


async def test_an_unload_lets_a_generation_end(open_server: OpenServer):
    slow = FleetSettings(stop_timeout=2.0, engine_args=("--token-delay", "0.1", "--tokens", "12"))
    async with open_server(fleet=slow) as server:
        async with server.begun(ASK, "/api/chat") as client:
            first = await client.data()
            unload = await ask(server, "generate", {"model": "alpha", "keep_alive": 0})
            assert unload.json["done_reason"] == "unload"
            assert json.loads((first + await client.rest()).splitlines()[-1])["done"] is True
        await until(lambda: server.state("alpha"), lambda state: state == "unloaded")


async def test_clients_that_wish_for_other_contexts_share_an_engine(server: Appliance):
    engines = set[int | None]()
    for number in range(4):
        options = {"num_ctx": 8192 if number % 2 else 131_072, "num_gpu": number, "num_thread": 1}
        assert (await ask(server, "chat", {**ASK, "stream": False, "options": options})).status == 200
        engines.add(server.fleet.known("alpha").pid)
    assert len(engines) == 1


async def test_a_chat_that_is_too_long_loses_its_oldest_messages(open_server: OpenServer, fake_model: Path):
    """The fake has 4096 tokens, and takes a byte for one."""
    echo = model(fake_model, "alpha", args=("--script", '[{"echo": true}]'))
    texts = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{n % 10}" * 500} for n in range(11)]
    body = {"model": "alpha", "stream": False, "messages": [{"role": "system", "content": "be brief"}, *texts]}
    async with open_server(models=[echo]) as server:
        for _ in range(2):  # before and after it is loaded
            sent = (await sent_for(server, body))["messages"]
            assert [sent[0], *sent[-7:]] == [{"role": "system", "content": "be brief"}, *texts[-7:]]
            assert len(sent) == 8
        assert len((await sent_for(server, {**body, "truncate": False}))["messages"]) == 12


async def test_lists_answer_while_a_model_loads(open_server: OpenServer):
    slow = FleetSettings(engine_args=("--load-delay", "90"))
    async with open_server(fleet=slow) as server, trio.open_nursery() as nursery:
        nursery.start_soon(ask, server, "generate", {"model": "alpha"})
        await until(lambda: server.state("alpha"), lambda state: state == "loading")
        for path in ("tags", "version", "ps") * 20:
            assert (await server.ask("GET", f"/api/{path}")).status == 200
        assert server.state("alpha") == "loading"
        assert (await loaded(server))["alpha:latest"]["state"] == "loading"
        nursery.cancel_scope.cancel()


async def test_a_stream_with_an_id_is_kept_as_lines(server: Appliance):
    whole = await ask(server, "chat", ASK, ("X-Conversation-Id", "c"))
    assert said(lines(whole)) == STORY
    again = await server.ask("GET", "/v1/stream?conv_id=c&from=0")
    assert (again.body, again.header("content-type")) == (whole.body, "application/x-ndjson")
    at = len(whole.body.splitlines(keepends=True)[0])
    assert (await server.ask("GET", f"/v1/stream?conv_id=c&from={at}")).body == whole.body[at:]
    assert (await server.ask("GET", "/v1/stream?conv_id=c&from=0&sse_ids=1")).status == 400
    plain = await ask(server, "chat", {**ASK, "stream": False}, ("X-Conversation-Id", "d"))
    assert plain.json["message"]["content"] == STORY
    missing = await ask(server, "chat", {**ASK, "model": "nope"}, ("X-Conversation-Id", "e"))
    assert (missing.status, missing.json) == (404, {"error": "model 'nope' not found"})


async def test_details_of_a_model(open_server: OpenServer, fake_model: Path):
    keys = {"tokenizer__chat_template": THINKS, "llama__context_length": 4096, "tokenizer__ggml__fim_pre_token_id": 1}
    async with open_server(models=[known(fake_model, "alpha", **keys)]) as server:
        shown = (await ask(server, "show", {"model": "alpha"})).json
        assert shown["capabilities"] == ["completion", "tools", "thinking", "insert"]
        assert shown["model_info"]["general.architecture"] == "llama"
        assert shown["model_info"]["llama.context_length"] == 4096
        assert shown["template"].startswith(THINKS)
        assert ".Suffix" in shown["template"]
        assert {type(shown["details"][name]) for name in ("family", "parameter_size", "quantization_level")} == {str}
        assert "/" not in shown["modelfile"]
        copilot = await ask(server, "show", {"name": "alpha"}, ("User-Agent", "GitHubCopilotChat/0.1"))
        assert copilot.json["model_info"]["general.basename"] == "alpha"
        assert (await listed(server))["alpha:latest"]["capabilities"] == shown["capabilities"]


async def test_the_list_is_kept_and_follows_what_changes(open_server: OpenServer, fake_model: Path):
    sees = model(fake_model, "alpha", "al", args=("--mmproj", str(fake_model)))
    async with open_server(models=[sees, model(fake_model, "beta")]) as server:

        async def able() -> dict[str, list[str]]:
            return {name: each["capabilities"] for name, each in (await listed(server)).items()}

        first = await able()
        assert first == await able() == {key: ["completion"] for key in ("alpha:latest", "al:latest", "beta:latest")}
        await server.ask("POST", "/models/load", {"model": "alpha", "wait": True})
        shown = (await ask(server, "show", {"model": "alpha"})).json["capabilities"]  # now the engine has been asked
        assert shown != first["alpha:latest"]
        after = {**first, "alpha:latest": shown, "al:latest": shown}
        assert await able() == after
        await ask(server, "copy", {"source": "alpha", "destination": "mine"})
        assert await able() == {**after, "mine:latest": shown}
        await server.ask("DELETE", "/api/delete", {"model": "mine"})
        assert await able() == after


async def sent_for(server: Appliance, members: dict) -> dict:
    """What the engine gets for a chat."""
    return json.loads((await ask(server, "chat", members)).json["message"]["content"])


async def test_the_words_of_a_models_maker_come_with_it_and_give_way_to_those_of_a_request(
    open_server: OpenServer, fake_model: Path
):
    words = OwnWords(system="be Mario", stop=("<x>",), messages=(("user", "a"), ("assistant", "b")))
    alpha = structs.replace(known(fake_model, "alpha", "--script", '[{"echo": true}]'), words=words)
    async with open_server(models=[alpha]) as server:
        said = {"role": "user", "content": "hi"}
        before = [{"role": "system", "content": "be Mario"}, {"role": "user", "content": "a"}]
        body = {"model": "alpha", "stream": False, "messages": [said]}
        assert (shown := (await ask(server, "show", {"model": "alpha"})).json)["system"] == "be Mario"
        assert "<x>" in shown["parameters"]
        sent = await sent_for(server, body)
        assert [*sent["messages"][:2], sent["messages"][-1], sent["stop"]] == [*before, said, ["<x>"]]
        own = {**body, "options": {"stop": ["y"]}, "messages": [{"role": "system", "content": "be Luigi"}, said]}
        await ask(server, "create", {"model": "luigi", "from": "alpha", "system": "be Luigi", "stream": False})
        assert (await sent_for(server, own))["stop"] == ["y"]
        derived = await sent_for(server, {**body, "model": "luigi"})
        assert (derived["messages"][0]["content"], derived["stop"]) == ("be Luigi", ["<x>"])


async def test_derived_models(open_server: OpenServer, fake_model: Path):
    async with open_server(models=[known(fake_model, "alpha", "--script", '[{"echo": true}]')]) as server:
        assert (await ask(server, "copy", {"source": "alpha", "destination": "mine"})).body == b""
        parameters = {"temperature": 0.25, "stop": ["x", "y"]}
        made = {"model": "poet", "from": "mine", "system": "rhyme", "parameters": parameters}
        assert lines(await ask(server, "create", made))[-1] == {"status": "success"}
        assert (await ask(server, "create", {**made, "model": "poet2", "stream": False})).json == {"status": "success"}
        assert (await listed(server)).keys() == {"alpha:latest", "mine:latest", "poet:latest", "poet2:latest"}
        shown = (await ask(server, "show", {"model": "Poet"})).json
        assert (shown["system"], shown["details"]["parent_model"]) == ("rhyme", "alpha")
        assert shown["parameters"].splitlines()[-2:] == [f'{"stop":<30} "x"', f'{"stop":<30} "y"']
        sent = await sent_for(server, {**ASK, "model": "poet", "stream": False})
        assert sent["messages"] == [{"role": "system", "content": "rhyme"}, {"role": "user", "content": "hi"}]
        assert sent["temperature"] == 0.25
        assert (await server.ask("POST", CHAT, chat("mine"))).status == 200
        assert (await server.ask("DELETE", "/api/delete", {"model": "mine"})).status == 200
        assert await error(server, "show", {"model": "mine"}) == (404, "model 'mine:latest' not found")
        refused = await server.ask("DELETE", "/api/delete", {"model": "alpha"})
        assert (refused.status, refused.json.keys()) == (403, {"error"})
        missing = await server.ask("DELETE", "/api/delete", {"name": "nope"})
        assert (missing.status, missing.json) == (404, {"error": "model 'nope' not found"})


async def test_vectors(open_server: OpenServer, fake_model: Path):
    vectors = known(fake_model, "vectors", architecture="bert")
    async with open_server(models=[vectors]) as server:
        found = (await ask(server, "embed", {"model": "vectors", "input": ["a", "b"], "keep_alive": "1m"})).json
        assert len(found["embeddings"]) == 2
        assert sum(x * x for x in found["embeddings"][0]) == pytest.approx(1)
        assert left((await loaded(server))["vectors:latest"]) <= timedelta(minutes=1)
        cut = (await ask(server, "embed", {"model": "vectors", "input": "a", "dimensions": 2})).json["embeddings"]
        assert [len(vector) for vector in cut] == [2]
        assert (await ask(server, "embed", {"model": "vectors", "input": ""})).json["embeddings"] == []
        assert len((await ask(server, "embeddings", {"model": "vectors", "prompt": "a"})).json["embedding"]) > 2
        assert (await ask(server, "embeddings", {"model": "vectors"})).json == {"embedding": []}


REPO = "acme/tiny-GGUF"
NAME = f"hf.co/{REPO}:Q8_0"
SIZE = 1 << 20


async def test_a_pull_tells_how_far_it_is_and_can_be_removed(served: Appliance, hub: FakeHub):
    hub.behave(rate=SIZE * 2)
    records = lines(await ask(served, "pull", {"model": NAME, "insecure": True}))
    assert records[0] == {"status": "pulling manifest"}
    last = ["verifying sha256 digest", "writing manifest", "removing unused layers", "success"]
    assert [record["status"] for record in records[-4:]] == last
    layers = [record for record in records if "digest" in record]
    assert len(layers) > 3
    done = [record.get("completed", 0) for record in layers]
    assert done == sorted(done)
    assert done[-1] == layers[-1]["total"]
    assert layers[0]["status"] == f"pulling {layers[0]['digest'][7:19]}"
    assert (await ask(served, "pull", {"name": NAME, "stream": False})).json == {"status": "success"}
    assert said(lines(await ask(served, "chat", {**ASK, "model": NAME}))) == STORY
    assert (await served.ask("DELETE", "/api/delete", {"model": NAME})).status == 200
    assert await listed(served) == {}


async def test_a_pull_that_is_left_ends_and_resumes(served: Appliance, hub: FakeHub):
    hub.behave(rate=SIZE // 2)
    async with served.begun({"model": NAME}, "/api/pull") as client:
        await client.until(b"completed", 8)
    download = served.opened.owners.supply.find(f"{REPO}:Q8_0")
    with trio.fail_after(PATIENCE):
        assert (await download.wait()).state == "cancelled"
    sent = hub.sent()
    assert download.status.done > 0
    hub.behave()
    assert (await ask(served, "pull", {"model": NAME, "stream": False})).status == 200
    assert hub.sent() - sent < SIZE + 8192


async def test_two_share_a_pull_and_the_first_that_leaves_does_not_end_it(served: Appliance, hub: FakeHub):
    hub.behave(rate=SIZE)
    async with served.begun({"model": NAME}, "/api/pull") as second:
        async with served.begun({"model": NAME}, "/api/pull") as first:
            for client in (first, second):
                await client.until(b"digest")  # from here on it follows the download
        assert json.loads((await second.rest()).splitlines()[-1]) == {"status": "success"}


async def test_pulls_that_fail(served: Appliance):
    failed = lines(await ask(served, "pull", {"model": "hf.co/acme/nothing"}))
    assert failed[-1]["error"].startswith("pull model manifest: there is no repository acme/nothing")
    status, text = await error(served, "pull", {"model": "llama3", "stream": False})
    assert (status, text[:20]) == (404, "file does not exist:")
    assert (await error(served, "pull", {}))[0] == 400
