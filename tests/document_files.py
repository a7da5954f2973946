"""PDF and Word documents, as small as can be."""

from __future__ import annotations

import io
import zipfile
import zlib

from pypdf import PdfReader, PdfWriter

FONT = b"3 0 obj << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> endobj\n"


def pdf_of(*objects: bytes) -> bytes:
    """A file without a table of its objects, which readers make themselves."""
    catalog = b"1 0 obj << /Type /Catalog /Pages 2 0 R >> endobj\n"
    return b"".join((b"%PDF-1.4\n", catalog, FONT, *objects, b"trailer << /Root 1 0 R >>\nstartxref\n0\n%%EOF\n"))


def page(number: int, content: bytes, *, packed: bool = False) -> bytes:
    filtered = b"/Filter /FlateDecode " if packed else b""
    content = zlib.compress(content, 9) if packed else content
    return (
        b"%d 0 obj << /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents %d 0 R "
        b"/Resources << /Font << /F 3 0 R >> >> >> endobj\n%d 0 obj << %s/Length %d >> stream\n%s\nendstream endobj\n"
    ) % (number, number + 1, number + 1, filtered, len(content), content)


def pages_of(*contents: bytes, packed: bool = False) -> bytes:
    numbers = range(10, 10 + 2 * len(contents), 2)
    kids = b" ".join(b"%d 0 R" % number for number in numbers)
    tree = b"2 0 obj << /Type /Pages /Kids [%s] /Count %d >> endobj\n" % (kids, len(contents))
    made = (page(number, content, packed=packed) for number, content in zip(numbers, contents, strict=True))
    return pdf_of(tree, *made)


def text_of(text: str) -> bytes:
    escaped = text.replace("(", r"\(").replace(")", r"\)")
    return f"BT /F 12 Tf 50 700 Td ({escaped}) Tj ET".encode()


def encrypted() -> bytes:
    writer, out = PdfWriter(), io.BytesIO()
    writer.append(PdfReader(io.BytesIO(pages_of(text_of("secret")))))
    writer.encrypt("password", algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


WORDS = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
STRICT = "http://purl.oclc.org/ooxml/wordprocessingml/main"
COMPATIBLE = "http://schemas.openxmlformats.org/markup-compatibility/2006"
STYLES = """<w:style w:type="paragraph" w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>
<w:style w:type="paragraph" w:styleId="Mein"><w:name w:val="Mein"/><w:pPr><w:outlineLvl w:val="1"/></w:pPr></w:style>"""


def part(body: str, root: str = "document", uri: str = WORDS, *, before: str = "") -> bytes:
    return f'<?xml version="1.0"?>{before}<w:{root} xmlns:w="{uri}" xmlns:mc="{COMPATIBLE}">{body}</w:{root}>'.encode()


def docx_of(body: str | bytes, uri: str = WORDS, **parts: bytes) -> bytes:
    """A document as Word packs it: the styles lie behind the words that use them."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("word/document.xml", body if isinstance(body, bytes) else part(body, uri=uri))
        file.writestr("word/media/image1.png", b"\x89PNG")
        file.writestr("word/styles.xml", part(STYLES, "styles", uri))
        for name, content in parts.items():
            file.writestr(f"word/{name}.xml", content)
    return out.getvalue()


def run(words: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{words}</w:t></w:r>'


def paragraph(words: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr>{words}</w:p>"
