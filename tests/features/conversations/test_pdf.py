"""The text of PDFs, read by a process of its own: good files, broken ones, and such that want to do harm."""

from __future__ import annotations

import random

import msgspec
import psutil
import pytest
import trio
import trio.testing
from document_files import encrypted, pages_of, pdf_of, text_of

from appliance.errors import BadRequest, Busy
from appliance.features.conversations import apart as asking
from appliance.features.conversations.apart import read_apart
from appliance.features.conversations.file_process import FileText


def readers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "file_process" in " ".join(child.cmdline())]


async def read_pdf(data: bytes) -> FileText:
    _, output = await read_apart("document", data, lambda _: None)
    return msgspec.json.decode(output.take(output.size), type=FileText)


async def test_the_text_of_every_page_is_read():
    found = await read_pdf(pages_of(text_of("Hello (brackets)"), text_of("The magic word is zebra"), b""))
    assert (found.pages, found.read) == (3, 3)
    assert found.text == "Hello (brackets)\n\nThe magic word is zebra"
    assert readers() == []


REFUSED = {
    "not a PDF": (b"\x89PNG\r\n", "not a PDF"),
    "nothing else": (b"%PDF-1.7\n", "damaged"),
    "noise": (b"%PDF-1.7\n" + random.Random(1).randbytes(50_000), "damaged"),
    "cut off": (pages_of(text_of("Hello"))[:150], "cannot be read"),
    "no text": (pages_of(b""), "no text"),
    "a password": (encrypted(), "password"),
    "its own child": (pdf_of(b"2 0 obj << /Type /Pages /Kids [2 0 R 2 0 R] /Count 2 >> endobj\n"), "cannot be read"),
    "too many pages": (pdf_of(b"2 0 obj << /Type /Pages /Kids [] /Count 2147483647 >> endobj\n"), "cannot be read"),
    "deep": (pdf_of(b"2 0 obj " + b"[" * 200_000 + b" endobj\n"), "cannot be read"),
}


@pytest.mark.parametrize(("data", "said"), REFUSED.values(), ids=REFUSED)
async def test_a_file_without_text_says_why(data: bytes, said: str):
    assert len(data) < 2 << 20
    with pytest.raises(BadRequest, match=said) as told:
        await read_pdf(data)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 400
    assert readers() == []


async def test_a_bomb_says_why():
    await test_a_file_without_text_says_why(pages_of(b"(x) Tj " * (200 << 17), packed=True), "cannot be read")


async def test_a_file_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(asking, "SECONDS", 0.5)
    monkeypatch.setattr(asking, "LAST", 0.5)
    endless = pages_of(text_of("word ") * 400_000, packed=True)
    with pytest.raises(BadRequest, match="takes longer than 1 s"):
        await read_pdf(endless)
    assert readers() == []


async def test_only_a_few_files_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(asking, "MAX_WAITING", 1)
    monkeypatch.setattr(asking, "SECONDS", 1.0)
    monkeypatch.setattr(asking, "LAST", 0.0)
    ends: list[type[Exception]] = []

    async def read() -> None:
        try:
            await read_pdf(pages_of(text_of("word ") * 400_000, packed=True))
        except (BadRequest, Busy) as error:
            ends.append(type(error))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
    assert sorted(ends, key=repr) == [BadRequest, BadRequest, Busy, Busy]


async def test_damaged_files_are_read_or_refused():
    good, chance = pages_of(text_of("Hello"), text_of("again")), random.Random(7)
    for _ in range(3):
        broken = bytearray(good)
        for _ in range(20):
            broken[chance.randrange(8, len(broken))] = chance.randrange(256)
        try:
            said = (await read_pdf(bytes(broken))).text
        except BadRequest as error:
            said = str(error)
        assert said
