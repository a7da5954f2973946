"""PDF and Word documents in the requests of two dialects: real files, read by the process that reads files apart."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from document_files import docx_of, encrypted, pages_of, paragraph, run, text_of
from http_harness import Answer, Appliance, OpenServer, model
from waiting import SOON, until

from appliance.core.turns.documents import MAX_TEXTS
from appliance.features import FEATURES
from appliance.features.conversations import apart, documents
from appliance.features.conversations.apart import MAX_DOCUMENT
from appliance.features.conversations.file_process import MAX_TEXT

WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
PDF = pages_of(text_of("Hello (brackets)"), text_of("The magic word is zebra"))
FILES = {
    "application/pdf": (PDF, "Hello (brackets)\n\nThe magic word is zebra"),
    WORD: (docx_of(paragraph(run("One two"))), "One two"),
}
MOST = 1_900_000  # characters; a Word document may have 2 << 20


def long_text(fill: str) -> bytes:
    return docx_of(paragraph(run(fill * MOST)))


def packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def message(*files: bytes, media: str = "application/pdf", result: bool = False) -> dict[str, Any]:
    """A request of Anthropic's Messages."""
    sources = [{"type": "base64", "media_type": media, "data": packed(file)} for file in files]
    content: list[Any] = [{"type": "document", "title": "a.pdf", "source": source} for source in sources]
    if result:
        content = [{"type": "tool_result", "tool_use_id": "c", "content": content}]
    return {"max_tokens": 9, "messages": [{"role": "user", "content": content}]}


def response(*files: bytes, media: str = "", result: bool = False) -> dict[str, Any]:
    """A request of OpenAI's Responses."""
    before = f"data:{media};base64," if media else ""
    parts = [{"type": "input_file", "filename": "a.pdf", "file_data": before + packed(file)} for file in files]
    item = {"type": "function_call_output", "call_id": "c", "output": parts}
    return {"input": [item if result else {"role": "user", "content": parts}]}


DIALECTS = {
    "anthropic": ("/v1/messages", message, "messages[0].content[{}]", '<document title="a.pdf">\n{}\n</document>'),
    "responses": ("/v1/responses", response, "input[0].content[{}].file_data", "a.pdf:\n{}"),
}
BOTH = pytest.mark.parametrize(("path", "ask", "member", "told"), DIALECTS.values(), ids=DIALECTS)
Ask = Callable[..., dict[str, Any]]


def heard(answer: Answer) -> str:
    """What a model that repeats its request has heard in the last message."""
    said = answer.json.get("content") or answer.json["output"][0]["content"]
    return json.loads(said[0]["text"])["messages"][-1]["content"]


@BOTH
async def test_the_model_gets_the_text(
    open_server: OpenServer, fake_model: Path, path: str, ask: Ask, member: str, told: str
) -> None:
    echo = model(fake_model, "alpha", args=("--script", json.dumps([{"echo": True}])))
    async with open_server(models=[echo]) as server:
        for media, (data, text) in FILES.items():
            for result in (False, True):
                body = {"model": "alpha", **ask(data, media=media, result=result)}
                assert heard(await server.good("POST", path, body, patience=60)) == told.format(text)
        both = ask(*(data for data, _ in FILES.values()))
        parts = heard(await server.good("POST", path, {"model": "alpha", **both}))
        assert [part["text"] for part in parts] == [told.format(text) for _, text in FILES.values()]


@BOTH
async def test_what_cannot_be_read_is_a_400_that_names_the_member(
    server: Appliance, path: str, ask: Ask, member: str, told: str
) -> None:
    for data, words in (
        (b"%PDF-1.7\n", "a.pdf: the file cannot be read: it is damaged"),
        (PDF[:150], "cannot be read"),
        (encrypted(), "it asks for a password; save it without one"),
        (FILES[WORD][0][:200], "cannot be read: it is damaged"),
        (b"\x89PNG\r\n\0", "not a PDF, nor a Word document"),
        (b"%PDF-" + bytes(MAX_DOCUMENT), "larger than 16 MiB"),
    ):
        body = {"model": "alpha", **ask(PDF, data)}
        refused = await server.refuses(400, None, "POST", path, body, words=words, patience=60)
        assert refused.error["param"] == member.format(1)
        assert refused.error["message"].startswith(f"'{member.format(1)}': a.pdf: the ")


@BOTH
async def test_small_files_with_long_texts_end_at_a_bound(
    open_server: OpenServer, path: str, ask: Ask, member: str, told: str
) -> None:
    one, other = long_text("x"), long_text("y")
    assert len(one) < 10_000
    async with open_server(max_bodies=MOST + (1 << 20)) as server:
        body = {"model": "alpha", **ask(one, other, one)}
        refused = await server.refuses(400, None, "POST", path, body, words=f"more than {MAX_TEXTS} char", patience=60)
        assert refused.error["param"] == member.format(2)
        await server.refuses(503, None, "POST", path, {"model": "alpha", **ask(one, other)}, words="has no room for")
        await server.good("POST", path, {"model": "alpha", **ask(one)})
        assert server.opened.kernel.edge.bodies.held == 0


async def test_the_last_documents_are_not_read_again(server: Appliance, monkeypatch: pytest.MonkeyPatch) -> None:
    path, counts = "/v1/messages", "/v1/messages/count_tokens"
    last = pages_of(text_of("Something else"))
    monkeypatch.setattr(documents, "MAX_KEPT", 100)
    await server.good("POST", counts, {"model": "alpha", **message(PDF)}, patience=60)
    first = (await server.good("POST", counts, {"model": "alpha", **message(last)}, patience=60)).json
    monkeypatch.setattr(apart, "MAX_WAITING", 0)  # every file that has to be read is one too many
    assert (await server.good("POST", counts, {"model": "alpha", **message(last)})).json == first
    await server.good("POST", "/v1/responses", {"model": "alpha", **response(last)})
    refused = await server.refuses(503, None, "POST", path, {"model": "alpha", **message(PDF)})
    assert refused.header("retry-after") == "10"


async def test_a_client_that_leaves_ends_the_reading(server: Appliance) -> None:
    def reading() -> bool:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended since
                if "file_process" in " ".join(child.cmdline()):
                    return True
        return False

    endless = pages_of(text_of("word ") * 400_000, packed=True)
    async with server.connect() as client:
        await client.send("POST", "/v1/messages", {"model": "alpha", **message(endless)})
        await until(reading)
    await until(lambda: not reading(), within=SOON)


@BOTH
async def test_a_program_without_the_reader_says_so(
    open_server: OpenServer, path: str, ask: Ask, member: str, told: str
) -> None:
    async with open_server(features=[each for each in FEATURES if each.name != "conversations"]) as server:
        body = {"model": "alpha", **ask(PDF)}
        refused = await server.refuses(400, None, "POST", path, body, words="send the text of this one")
        assert refused.error["param"] == member.format(0)


async def test_a_model_is_told_that_pages_are_missing(open_server: OpenServer, fake_model: Path) -> None:
    echo = model(fake_model, "alpha", args=("--script", json.dumps([{"echo": True}])))
    async with open_server(models=[echo]) as server:
        long = pages_of(text_of("x" * MAX_TEXT), text_of("y"))
        text = heard(await server.good("POST", "/v1/responses", {"model": "alpha", **response(long)}, patience=60))
        assert text.endswith("x\n\n[the first 1 of 2 pages]")
