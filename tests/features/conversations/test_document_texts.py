"""The text of PDFs and Word documents, read by a process of its own: good files, broken ones, and such that do harm."""

from __future__ import annotations

import io
import random
import zipfile
from contextlib import suppress

import msgspec
import psutil
import pytest
import trio
import trio.testing
from document_files import STRICT, WORDS, docx_of, encrypted, pages_of, paragraph, part, pdf_of, run, text_of
from hostile_files import packed, sum_of, zip_of
from hypothesis import given
from hypothesis import strategies as st
from memory import read_file_apart
from slow import one_of

from appliance.errors import BadRequest, Busy
from appliance.features.conversations import apart as asking
from appliance.features.conversations.apart import read_apart
from appliance.features.conversations.core.docx import MAX_XML, read_docx
from appliance.features.conversations.file_process import MAX_TEXT, MEMORY, FileText


def item(words: str, level: int) -> str:
    return paragraph(run(words), f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="3"/></w:numPr>')


def cell(words: str) -> str:
    return f"<w:tc>{paragraph(run(words))}{paragraph(run('x'))}</w:tc>"


INNER = f"<w:tc><w:tbl><w:tr>{cell('in')}</w:tr></w:tbl></w:tc>"
LANGUAGES = ("Grüße", "漢字です", "שלום", "مرحبا", "🦙")
SHAPES: dict[str, tuple[str, str]] = {
    "words": (paragraph(run("One ") + run("two &lt;b&gt; &#8364;")), "One two <b> €"),
    "languages": ("".join(paragraph(run(each)) for each in LANGUAGES), "\n\n".join(LANGUAGES)),
    "headings": (
        paragraph(run("A"), '<w:pStyle w:val="berschrift1"/>')
        + paragraph(run("B"), '<w:pStyle w:val="Mein"/><w:tabs><w:tab w:val="left" w:pos="9"/></w:tabs>')
        + paragraph(run("C"), '<w:outlineLvl w:val="2"/>')
        + paragraph(run("D"), '<w:pPrChange><w:pPr><w:pStyle w:val="Mein"/></w:pPr></w:pPrChange>'),
        "# A\n\n## B\n\n### C\n\nD",
    ),
    "lists": (item("a", 0) + item("b", 1) + paragraph(run("c")), "- a\n  - b\nc"),
    "tables": (
        f"<w:tbl><w:tr>{cell('a')}{cell('b')}</w:tr><w:tr>{cell('c')}{INNER}</w:tr></w:tbl>" + paragraph(run("end")),
        "| a x | b x |\n| c x | in x |\n\nend",
    ),
    "breaks": (
        paragraph("<w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t><w:noBreakHyphen/><w:t>d</w:t></w:r>"),
        "a\tb\nc-d",
    ),
    "changes": (
        paragraph(
            f"<w:ins>{run('new')}</w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del>"
            f"<w:moveFrom>{run('gone')}</w:moveFrom><w:moveTo>{run(' here')}</w:moveTo>"
        ),
        "new here",
    ),
    "fields and boxes": (
        paragraph(
            f"<w:r><w:instrText>PAGE</w:instrText></w:r>{run('7')}<mc:AlternateContent><mc:Choice>{run('!')}"
            f"</mc:Choice><mc:Fallback>{run('!')}</mc:Fallback></mc:AlternateContent>"
        ),
        "7!",
    ),
}


@pytest.mark.parametrize("uri", [WORDS, STRICT], ids=["transitional", "strict"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_text_of_a_document_is_read(shape: str, uri: str) -> None:
    body, said = SHAPES[shape]
    assert read_docx(docx_of(f"<w:body>{body}</w:body>", uri), MAX_TEXT) == said


def test_notes_stand_at_the_end() -> None:
    body = paragraph(run("word") + '<w:r><w:footnoteReference w:id="2"/></w:r>')
    line = '<w:footnote w:type="separator" w:id="0"><w:p/></w:footnote>'
    notes = f'{line}<w:footnote w:id="2">{paragraph(run("why"))}</w:footnote>'
    assert read_docx(docx_of(body, footnotes=part(notes, "footnotes")), MAX_TEXT) == "word[^f2]\n\n[^f2]: why"


def readers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "file_process" in " ".join(child.cmdline())]


async def read(data: bytes) -> FileText:
    _, output = await read_apart("document", data, lambda _: None)
    return msgspec.json.decode(output.take(output.size), type=FileText)


async def test_what_a_file_is_its_content_says() -> None:
    assert await read(docx_of(paragraph(run("zebra")))) == FileText(text="zebra")


async def test_the_text_of_every_page_is_read():
    found = await read(pages_of(text_of("Hello (brackets)"), text_of("The magic word is zebra"), b""))
    assert (found.pages, found.read) == (3, 3)
    assert found.text == "Hello (brackets)\n\nThe magic word is zebra"
    assert readers() == []


ENTITIES = "".join(f'<!ENTITY e{each} "{f"&e{each - 1};" * 50 if each else "lol"}">' for each in range(9))
OUTSIDE = '<!DOCTYPE d SYSTEM "file:///etc/passwd">'
LARGE = 160 << 20


def bomb(fill: bytes) -> bytes:
    return zip_of(packed(LARGE, fill=fill), name=b"word/document.xml", claims=LARGE, crc=sum_of(LARGE, fill))


def zipped(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr(name, b"?")
    return out.getvalue()


REFUSED = {
    "neither": (b"\x89PNG\r\n", "not a PDF, nor a Word document"),
    "PDF: nothing else": (b"%PDF-1.7\n", "damaged"),
    "PDF: noise": (b"%PDF-1.7\n" + random.Random(1).randbytes(50_000), "damaged"),
    "PDF: cut off": (pages_of(text_of("Hello"))[:150], "cannot be read"),
    "PDF: no text": (pages_of(b""), "no text"),
    "PDF: a password": (encrypted(), "password"),
    "PDF: own child": (pdf_of(b"2 0 obj << /Type /Pages /Kids [2 0 R 2 0 R] /Count 2 >> endobj\n"), "cannot be read"),
    "PDF: many pages": (pdf_of(b"2 0 obj << /Type /Pages /Kids [] /Count 2147483647 >> endobj\n"), "cannot be read"),
    "PDF: deep": (pdf_of(b"2 0 obj " + b"[" * 200_000 + b" endobj\n"), "cannot be read"),
    "Word: an old one": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), "save it as .docx, without one"),
    "Word: another ZIP": (zipped("content.xml"), "without a Word document in it"),
    "Word: cut off": (docx_of(paragraph(run("Hello")))[:200], "cannot be read: it is damaged"),
    "Word: noise": (b"PK\3\4" + random.Random(1).randbytes(50_000), "cannot be read: it is damaged"),
    "Word: no XML": (docx_of(b"hello"), "damaged: syntax error"),
    "Word: half of it": (docx_of(part("<w:p>")[:-20]), "damaged: "),
    "Word: empty": (docx_of(""), "has no text"),
    "Word: entities": (docx_of(part("<w:p><w:t>&e8;</w:t></w:p>", before=f"<!DOCTYPE d [{ENTITIES}]>")), "entities"),
    "Word: a file outside": (docx_of(part("", before=OUTSIDE)), "entities"),
    "Word: a long text": (docx_of(paragraph(run("x" * (MAX_TEXT + 1)))), f"more than {MAX_TEXT} characters"),
}  # fmt: skip
BOMBS = {b" ": f"unpacks to more than {MAX_XML >> 20} MiB", b"<": "damaged: "}


@pytest.mark.parametrize(("data", "said"), REFUSED.values(), ids=REFUSED)
async def test_a_file_without_text_says_why(data: bytes, said: str) -> None:
    assert len(data) < 2 << 20
    with pytest.raises(BadRequest, match=said) as told:
        await read(data)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 400
    assert readers() == []


@pytest.mark.parametrize("fill", one_of(BOMBS))
async def test_a_bomb_says_why(fill: bytes) -> None:
    await test_a_file_without_text_says_why(bomb(fill), BOMBS[fill])


async def test_a_bomb_in_a_pdf_says_why():
    await test_a_file_without_text_says_why(pages_of(b"(x) Tj " * (200 << 17), packed=True), "cannot be read")


async def test_a_file_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(asking, "SECONDS", 0.5)
    monkeypatch.setattr(asking, "LAST", 0.5)
    endless = pages_of(text_of("word ") * 400_000, packed=True)
    with pytest.raises(BadRequest, match="takes longer than 1 s"):
        await read(endless)
    assert readers() == []


async def test_only_a_few_files_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(asking, "MAX_WAITING", 1)
    monkeypatch.setattr(asking, "SECONDS", 1.0)
    monkeypatch.setattr(asking, "LAST", 0.0)
    ends: list[type[Exception]] = []

    async def ask() -> None:
        try:
            await read(pages_of(text_of("word ") * 400_000, packed=True))
        except (BadRequest, Busy) as error:
            ends.append(type(error))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
    assert sorted(ends, key=repr) == [BadRequest, BadRequest, Busy, Busy]


DEPTH = 500_000
GREEDY = {
    "deep": lambda: part("<w:p>" * DEPTH + "</w:p>" * DEPTH),
    "names": lambda: part("".join(f"<w:n{each}/>" for each in range(DEPTH))),
    "an attribute": lambda: part(f'<w:p w:x="{"x" * (16 << 20)}"/>'),
    "attributes": lambda: part("<w:p " + " ".join(f"a{each}='1'" for each in range(DEPTH // 4)) + "/>"),
    "tiny pieces": lambda: part(paragraph("<w:r><w:tab/><w:t>x</w:t></w:r>" * (DEPTH // 4))),
}


@pytest.mark.parametrize("name", one_of(GREEDY))
def test_what_unpacks_to_much_markup_takes_a_bounded_memory(name: str) -> None:
    data = docx_of(GREEDY[name]())
    assert len(data) < 16 << 20
    verdict, output, most = read_file_apart("document", data)
    print(f"{name}, {len(data)} bytes: {most >> 20} MiB, {verdict.error or len(output)}")
    assert verdict.error or output
    assert most <= MEMORY


WHOLE = docx_of("".join(body for body, _ in SHAPES.values()))


CHANGES = st.lists(st.tuples(st.integers(4, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=9)


@given(CHANGES, st.binary(max_size=60))
def test_damaged_files_are_read_or_refused(changes: list[tuple[int, int]], inner: bytes) -> None:
    broken = bytearray(WHOLE)
    for at, byte in changes:
        broken[at] = byte
    for data in (bytes(broken), docx_of(part("").replace(b"></", b">" + inner + b"</"))):
        with suppress(BadRequest):
            assert read_docx(data, MAX_TEXT)


async def test_damaged_pdfs_are_read_or_refused():
    good, chance = pages_of(text_of("Hello"), text_of("again")), random.Random(7)
    for _ in range(3):
        broken = bytearray(good)
        for _ in range(20):
            broken[chance.randrange(8, len(broken))] = chance.randrange(256)
        try:
            said = (await read(bytes(broken))).text
        except BadRequest as error:
            said = str(error)
        assert said
