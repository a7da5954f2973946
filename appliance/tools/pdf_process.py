"""A process that reads the text of a PDF and can be killed: the other side of `tools.pdf`.

A PDF is a program of strangers: a small file may unpack to gigabytes, refer to itself, or take hours. So the process
has a bounded time and, where the system can bound it, a bounded memory. It reads the file from standard input, prints
one `Reading`, and ends. The server itself never imports the library.
"""

from __future__ import annotations

import io
import logging
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from pypdf import PdfReader

WORD = "--pdf-process"
"""The argument that makes the frozen program this one."""
MAX_PAGES = 1000
MAX_TEXT = 2 << 20
"""Characters; more than the context of a model holds."""
SECONDS = 20.0
"""The time after which no further page is begun."""
MEMORY = 1 << 30
"""Bytes of address space."""


class Reading(Struct, frozen=True, kw_only=True):
    """The text of the first ``read`` of ``pages`` pages. ``error``: the reason why there is no text."""

    text: str = ""
    pages: int = 0
    read: int = 0
    error: str = ""


def command() -> list[str]:
    """The command that starts it: isolated, so that nothing in the working directory is taken for a module."""
    if getattr(sys, "frozen", False):
        return [sys.executable, WORD]
    return [sys.executable, "-I", "-m", "appliance.tools.pdf_process"]


def main() -> None:
    _bound_memory()
    logging.disable()  # the library remarks on everything that a file does wrong
    data = sys.stdin.buffer.read()
    try:
        found = _read(data)
    except MemoryError:
        found = Reading(error="reading it takes too much memory")
    except RecursionError:
        found = Reading(error="it is nested too deeply")
    except Exception as error:  # noqa: BLE001  the library raises whatever a broken file leads it to
        found = Reading(error=f"it is damaged ({type(error).__name__}: {str(error)[:200]})")
    sys.stdout.buffer.write(msgspec.json.encode(found))


def _read(data: bytes) -> Reading:
    from pypdf import PdfReader

    until = time.monotonic() + SECONDS
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return Reading(error="it asks for a password; save it without one")
    return _texts(reader, until)


def _texts(reader: PdfReader, until: float) -> Reading:
    texts: list[str] = []
    size = 0
    pages = len(reader.pages)
    for number in range(min(pages, MAX_PAGES)):
        texts.append(reader.pages[number].extract_text().strip()[: MAX_TEXT - size])
        size += len(texts[-1])
        if time.monotonic() > until or size >= MAX_TEXT:
            break
    if not size:
        return Reading(error="it has no text; if its pages are pictures, attach them as pictures")
    text = "\n\n".join(text for text in texts if text)
    return Reading(text=text.encode(errors="replace").decode(), pages=pages, read=len(texts))


def _bound_memory() -> None:
    """Bound it where the system can: on Windows, and where macOS refuses it, the library's own limits hold."""
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY if hard < 0 else min(MEMORY, hard), hard))


if __name__ == "__main__":
    main()
