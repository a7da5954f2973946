"""Refused chats, sent again to real engines: what the client, the row, the metrics and the memory say of it."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from asked_chats import HI, LOOKED, REQUESTS, TOOLS, chat, say
from chat_templates import SPACED, TEMPLATES
from corpus import Outcome, check, opened, outcomes_of, random_model, row_of_dialects, status_alone, table
from http_harness import CHAT, Appliance, OpenServer
from msgspec import structs
from neutral import DIALECTS
from waiting import until

from appliance.core.models.model import Model
from appliance.core.records.captures import CaptureBuffer
from appliance.features.embedded import available
from appliance.features.repairs.core.abilities import EMBEDDINGS

pytestmark = pytest.mark.skipif(not available(), reason="the wheel xllamacpp is not installed")
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "repairs.md"
NAMES = ("one-system-first", "alternate", "no-tools", SPACED)
LATE = REQUESTS["late system"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("models")
    return {name: random_model(folder, name) for name in NAMES}


@pytest.fixture
async def real(models) -> AsyncGenerator[Appliance]:
    async with opened(models.values(), Path(next(iter(models.values())).path)) as server:
        yield server


async def ask(server: Appliance, model: str, body: dict[str, object]):
    return await server.ask("POST", CHAT, {"model": model, **body})


async def test_what_is_refused_is_answered_and_told(real: Appliance) -> None:
    first = await ask(real, "one-system-first", LATE)
    assert (first.status, first.header("x-appliance-repaired")) == (200, "system-first")
    assert await status_alone(real, "one-system-first", LATE) == 400
    rows = await until(real.rows, lambda found: len(found) == 1)
    assert rows[0]["metadata"]["repaired"] == "system-first"
    text = (await real.ask("GET", "/metrics")).body.decode()
    assert 'llama_appliance_repairs_total{model="one-system-first",repair="system-first"} 1.0' in text
    plain = await ask(real, "one-system-first", REQUESTS["system"])
    assert (plain.status, plain.header("x-appliance-repaired")) == (200, None)


async def test_a_capture_and_its_explanation_have_the_body_before_and_after(real: Appliance) -> None:
    real.opened.traffic.recorder.captures = CaptureBuffer(1 << 20)
    for what in ("late system", "system"):
        await ask(real, "one-system-first", REQUESTS[what])
        rows = await until(real.rows, lambda found: bool(found))
        told = (await real.good("GET", f"/api/captures/{rows[0]['id']}")).json
        explained = (await real.good("GET", f"/api/explain/{rows[0]['id']}")).json
        before = json.loads(base64.b64decode(told["req_body"]))
        assert before["messages"] == REQUESTS[what]["messages"]
        if what == "system":
            assert ("sent_body" in told, explained["sent"], explained["repaired"]) == (False, None, "")
            continue
        after = json.loads(base64.b64decode(told["sent_body"]))
        assert after["messages"] == json.loads(explained["repaired"])["messages"]
        assert [one["role"] for one in after["messages"]] == ["system", "user", "assistant", "user"]
        assert [role for role, _ in explained["came"]["messages"]] == ["system", "user", "assistant", "system", "user"]
        assert [role for role, _ in explained["sent"]["messages"]] == ["system", "user", "assistant", "user"]
        assert explained["prompt"].index("Be short.") < explained["prompt"].index("Hi")


async def test_the_fast_path_repairs_too_and_leaves_alone_what_fits(real: Appliance) -> None:
    await ask(real, "alternate", chat(HI))  # loaded now, and its head is known
    wanted = [("two users", "alternate"), ("late system", "system-first"), ("two users", "alternate"), ("plain", None)]
    for what, repaired in wanted:
        answer = await ask(real, "alternate", REQUESTS[what])
        assert (what, answer.status, answer.header("x-appliance-repaired")) == (what, 200, repaired)


async def test_a_stream_is_repaired_before_its_first_byte(real: Appliance) -> None:
    answer = await ask(real, "one-system-first", {**LATE, "stream": True})
    assert (answer.status, answer.header("x-appliance-repaired")) == (200, "system-first")
    assert answer.events[-1] == "data: [DONE]"


async def test_what_cannot_be_repaired_is_the_engines_first_answer_with_our_words(real: Appliance) -> None:
    answer = await ask(real, "no-tools", REQUESTS["no role"])
    assert answer.status == 400
    assert answer.header("x-appliance-repaired") is None
    assert answer.error["code"] == 400
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["message"].endswith("(each message needs a role)")
    assert int(answer.header("content-length") or 0) == len(answer.body)


async def test_a_refusal_of_no_known_kind_passes_byte_for_byte(real: Appliance) -> None:
    answer = await ask(real, "no-tools", REQUESTS["top_logprobs alone"])
    assert answer.status == 400
    assert answer.error["message"] == "top_logprobs requires logprobs to be set to true"


NO_TOKEN = "(the model has no token with this number)"
BESIDE_CHATS: tuple[tuple[str, dict[str, object], str], ...] = (
    ("/detokenize", {"tokens": [10**10]}, NO_TOKEN),
    ("/detokenize", {"tokens": [-1]}, NO_TOKEN),
    ("/detokenize", {"tokens": "x"}, ""),
    ("/tokenize", {"content": [99_999], "with_pieces": True}, NO_TOKEN),
    ("/tokenize", {"content": [["x"]]}, ""),
    ("/apply-template", {**REQUESTS["plain"], "tools": 5}, "(a tool looks like"),
    ("/apply-template", {"messages": 5}, ""),
    ("/apply-template", REQUESTS["no role"], "(each message needs a role)"),
)


async def told_its_mistake(server: Appliance, model: str, path: str, asked: dict[str, object], words: str) -> None:
    for _ in range(2):  # while it loads, and by the fast path
        answer = await server.ask("POST", path, {"model": model, **asked})
        assert (answer.status, answer.error["type"]) == (400, "invalid_request_error"), (path, words)
        assert words in answer.error["message"]


async def test_a_mistake_in_a_question_about_texts_is_a_400_in_words(real: Appliance) -> None:
    for path, asked, words in BESIDE_CHATS:
        await told_its_mistake(real, "no-tools", path, asked, words)
    assert (await real.good("POST", "/detokenize", {"model": "no-tools", "tokens": [5]})).json["content"]


async def test_so_is_one_in_a_question_for_embeddings_or_ranks(models: dict[str, Model]) -> None:
    """An embedding takes all of a text in one batch, and this text has more tokens than the whole context."""
    plain, text, longer = models["no-tools"], "word " * 10_000, "(a text has more tokens"
    words = {"embeds": ("--embeddings", "--pooling", "mean"), "ranks": ("--rerank",)}
    both = [structs.replace(plain, id=name, args=more) for name, more in words.items()]
    async with opened(both, Path(plain.path)) as server:
        for path in EMBEDDINGS[:3]:
            await told_its_mistake(server, "embeds", path, {"input": text}, longer)
        asked: dict[str, object] = {"query": "a", "documents": ["b"], "top_n": -1}
        await told_its_mistake(server, "ranks", "/v1/rerank", asked, "(top_n may not be below 0)")


async def test_a_template_is_shown_with_the_messages_that_it_gets(real: Appliance) -> None:
    shown = await real.ask("POST", "/apply-template", {"model": "one-system-first", **LATE})
    assert (shown.status, shown.header("x-appliance-repaired")) == (200, "system-first")
    assert shown.json["prompt"].index("Be short.") < shown.json["prompt"].index("Hi")


@pytest.mark.parametrize("what", ["tools required", "tool named"])
async def test_a_call_cannot_be_required_of_a_model_without_tools(real: Appliance, what: str) -> None:
    for _ in range(2):  # while it loads, and by the fast path
        answer = await ask(real, "no-tools", REQUESTS[what])
        assert answer.status == 400
        assert answer.error["param"] == "tool_choice"
    for _ in range(2):
        offered = await ask(real, "no-tools", chat(HI, tools=TOOLS))
        assert (offered.status, offered.header("x-appliance-ignored")) == (200, "tools")
    assert (await ask(real, "no-tools", chat(HI))).header("x-appliance-ignored") is None
    assert (await ask(real, "one-system-first", REQUESTS["tools required"])).status != 400


async def test_an_answer_in_json_where_the_engine_can_make_no_sampler(real: Appliance) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {
        "type": "object", "properties": {"a": {"enum": ["x"]}, "b": {"type": "boolean"}}, "required": ["a", "b"],
    }}}  # fmt: skip
    answer = await ask(real, SPACED, chat(HI, response_format=form) | {"max_tokens": 200})
    assert (answer.status, answer.header("x-appliance-repaired")) == (200, "grammar")
    found = json.loads(answer.json["choices"][0]["message"]["content"])
    assert found["a"] == "x"
    assert found["b"] in (True, False)


async def test_tools_in_words_are_remembered_only_where_the_template_knows_none(real: Appliance) -> None:
    answer = await ask(real, "alternate", chat(*LOOKED))
    assert answer.header("x-appliance-repaired") == "tools-as-text"
    again = await ask(real, "alternate", chat(*LOOKED, say("assistant", "42"), HI))
    assert (again.status, again.header("x-appliance-repaired")) == (200, "tools-as-text")


@pytest.mark.parametrize("where", ["everywhere", "model"])
async def test_it_can_be_switched_off(models, tmp_path: Path, where: str, open_server: OpenServer) -> None:
    model = models["one-system-first"]
    config = tmp_path / "config.yaml"
    command = f"llama-server --model {model.path} --port ${{PORT}} --ctx-size 4096"
    config.write_text(
        ("repairMessages: off\n" if where == "everywhere" else "")
        + f"models:\n  m:\n    engine: embedded\n    cmd: {command}\n"
        + ("    repairMessages: off\n" if where == "model" else "")
    )
    async with opened([], Path(model.path), config=config) as server:
        answer = await ask(server, "m", LATE)
        assert answer.status == 400
        assert "System message must be at the beginning" in answer.error["message"]
        assert answer.header("x-appliance-repaired") is None


async def test_a_template_takes_chats_of_every_kind_or_says_why_not(real: Appliance) -> None:
    check(await outcomes_of(real, "alternate", "chat", alone=True))


@pytest.mark.slow
async def test_every_template_and_the_table_of_the_documentation(tmp_path: Path) -> None:
    found: dict[str, dict[str, Outcome]] = {}
    for name in TEMPLATES:
        model = random_model(tmp_path, name)
        async with opened([model], Path(model.path)) as server:
            found[name] = await outcomes_of(server, name, "chat", alone=True)
        check(found[name])
    assert sum(map(len, found.values())) > 1000
    assert table(found) in DOCUMENT.read_text("utf-8")


@pytest.mark.slow(only_all=True)
@pytest.mark.parametrize("template", TEMPLATES)
async def test_every_template_takes_what_clients_of_four_dialects_send(tmp_path: Path, template: str) -> None:
    model = random_model(tmp_path, template)
    async with opened([model], Path(model.path)) as server:
        found = {dialect: await outcomes_of(server, template, dialect, alone=False) for dialect in DIALECTS}
    for outcomes in found.values():
        check(outcomes)
    assert row_of_dialects(template, found) in DOCUMENT.read_text("utf-8")
