"""A process that reads one file of a stranger and can be killed: the other side of `apart`.

A PDF is a program: a small file may unpack to gigabytes, refer to itself, or take hours. A Word document and an export
of conversations are archives, and JSON becomes many times its size. So the process has a bounded time and, where the
system can bound it, a bounded memory. It reads the file from standard input, prints a `FileVerdict` and what it has
made of the file, and ends. The server itself never imports the library that reads PDFs.
"""

from __future__ import annotations

import io
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from appliance.errors import BadRequest

if TYPE_CHECKING:
    from pypdf import PdfReader

MAX_PAGES = 1000
MAX_TEXT = 2 << 20  # characters; more than the context of a model holds
SECONDS = 20.0  # the time after which no further page is begun
MEMORY = 1 << 30  # bytes of address space

ZIP = b"PK\3\4"  # the beginning of a Word document; any other line is read as a PDF
UNREAD = "the file cannot be read:"

HEAD = 4  # bytes before the verdict that tell its length

Task = Literal["document", "import", "unpack", "pack"]


class FileVerdict(Struct, frozen=True, kw_only=True):
    """``error``: the reason why there is no result; ``param`` is the field that it is about. ``name``: the result's."""

    error: str = ""
    param: str | None = None
    name: str = ""


class FileText(Struct, frozen=True, kw_only=True):
    """The text of the first ``read`` of ``pages`` pages; both are 0 for what has no pages until it is printed."""

    text: str
    pages: int = 0
    read: int = 0


def main() -> None:
    if sys.platform != "win32":  # there, and where macOS refuses it, the limits of each reader hold
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY if hard < 0 else min(MEMORY, hard), hard))
    logging.disable()  # the library remarks on everything that a file does wrong
    made: Iterable[bytes] = ()
    try:
        name, made = _made(sys.argv[-1], sys.stdin.buffer.read())
        made, verdict = list(made), FileVerdict(name=name)
    except BadRequest as error:
        verdict = FileVerdict(error=str(error), param=error.param)
    except MemoryError:
        verdict = FileVerdict(error=f"{UNREAD} that takes more than {MEMORY >> 20} MiB of memory; take a part of it")
    except RecursionError:
        verdict = FileVerdict(error=f"{UNREAD} it is nested too deeply")
    head = msgspec.json.encode(verdict)
    sys.stdout.buffer.writelines((len(head).to_bytes(HEAD), head, *(() if verdict.error else made)))


def _made(task: str, data: bytes) -> tuple[str, Iterable[bytes]]:
    """Return the name of the result and its bytes. Only what this `Task` needs is imported."""
    if task == "document":
        if not data.startswith(ZIP):
            return "", _text(data)
        from appliance.features.conversations.core.docx import read_docx

        return "", (msgspec.json.encode(FileText(text=read_docx(data, MAX_TEXT))),)
    from appliance.features.conversations.core import files

    if task == "pack":
        name, content = files.pack(data)
        return name, (content,)
    return "", files.for_store(data) if task == "import" else files.for_page(data)


def _text(data: bytes) -> Iterator[bytes]:
    from pypdf import PdfReader

    until = time.monotonic() + SECONDS
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise BadRequest(f"{UNREAD} it asks for a password; save it without one")
        yield msgspec.json.encode(_texts(reader, until))
    except (BadRequest, MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001  the library raises whatever a broken file leads it to
        raise BadRequest(f"{UNREAD} it is damaged ({type(error).__name__}: {str(error)[:200]})") from None


def _texts(reader: PdfReader, until: float) -> FileText:
    texts: list[str] = []
    size = 0
    pages = len(reader.pages)
    for number in range(min(pages, MAX_PAGES)):
        texts.append(reader.pages[number].extract_text().strip()[: MAX_TEXT - size])
        size += len(texts[-1])
        if time.monotonic() > until or size >= MAX_TEXT:
            break
    if not size:
        raise BadRequest(f"{UNREAD} it has no text; if its pages are pictures, attach them as pictures")
    text = "\n\n".join(text for text in texts if text)
    return FileText(text=text.encode(errors="replace").decode(), pages=pages, read=len(texts))


if __name__ == "__main__":
    main()
