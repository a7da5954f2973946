"""Files of one folder, served at ``/``: llama-server's ``--path``.

Refuses every name that leads out of the folder (``..``, links, drives), hidden files, and what Windows takes for a
device. A file that cannot be served is simply not there.
"""

from __future__ import annotations

import os
import re
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import quote

import trio

from appliance.catalog.found import UnsafeName, join_inside
from appliance.errors import UsageError
from appliance.platform.home import expanded
from appliance.platform.rooted_files import open_regular, real_root
from appliance.traffic.request import Headers, Request, Sink, send_whole

INDEX = "index.html"
CHUNK = 1 << 16
"""Bytes; each client that does not read holds so many."""
WELL_KNOWN = ".well-known"
"""The one hidden folder that is meant to be seen (RFC 8615)."""
IMMUTABLE = "/immutable/"
"""In a path: the file's name changes with its content, as bundlers of web pages have it."""
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])(\..*)?", re.IGNORECASE)
TEXT = "; charset=utf-8"
TYPES = {
    ".html": "text/html" + TEXT,
    ".htm": "text/html" + TEXT,
    ".css": "text/css" + TEXT,
    ".js": "text/javascript" + TEXT,
    ".mjs": "text/javascript" + TEXT,
    ".json": "application/json" + TEXT,
    ".map": "application/json" + TEXT,
    ".webmanifest": "application/manifest+json" + TEXT,
    ".txt": "text/plain" + TEXT,
    ".md": "text/markdown" + TEXT,
    ".csv": "text/csv" + TEXT,
    ".xml": "application/xml" + TEXT,
    ".svg": "image/svg+xml" + TEXT,
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".avif": "image/avif",
    ".ico": "image/x-icon",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
    ".ttf": "font/ttf",
    ".otf": "font/otf",
    ".wasm": "application/wasm",
    ".pdf": "application/pdf",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".wav": "audio/wav",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".zip": "application/zip",
    ".gz": "application/gzip",
}
"""Not the system's table: on Windows that is the registry, where any program may call scripts plain text."""
OTHER_TYPE = "application/octet-stream"


class _Opened(NamedTuple):
    file: FileIO
    size: int
    tag: str


class StaticFiles:
    """The files below ``root``. Raises UsageError if that is not a folder."""

    def __init__(self, root: str) -> None:
        self._root = expanded(root).absolute()
        if not self._root.is_dir():
            wrong = "is not a directory" if self._root.exists() else "does not exist"
            raise UsageError(f"the folder {self._root} {wrong}; name one that holds a web page with --path")

    async def answer(self, request: Request, sink: Sink) -> bool:
        """False, with nothing sent: the request does not mean a file, and another route may answer it."""
        if request.method not in ("GET", "HEAD"):
            return False
        names = names_of(f"{request.path.rstrip('/')}/" if request.folder else request.path)
        if names is None:
            return False
        opened = await trio.to_thread.run_sync(self.open, names)
        if opened is not None:
            with opened.file:
                await _send(request, opened, names, sink)
            return True
        if names[-1] != INDEX and await trio.to_thread.run_sync(self._has_index, names):
            await _move(request, names[-1], sink)
            return True
        return False

    def open(self, names: tuple[str, ...]) -> _Opened | None:
        """The file of that name, or None if it may not be served. Renames meanwhile cannot lead outside the folder."""
        try:
            root = real_root(str(self._root))
            with open_regular(str(join_inside(Path(root), *names)), root) as fd:
                file = FileIO(os.dup(fd))
        except (UnsafeName, OSError, ValueError):  # ValueError: a name that the system cannot write, or leads outside
            return None
        found = os.fstat(file.fileno())
        return _Opened(file, found.st_size, f'"{found.st_mtime_ns:x}-{found.st_size:x}"')

    def _has_index(self, names: tuple[str, ...]) -> bool:
        opened = self.open((*names, INDEX))
        if opened is None:
            return False
        opened.file.close()
        return True


def names_of(path: str) -> tuple[str, ...] | None:
    """The names of folders and file that a decoded request path means; None where it can mean no file."""
    if not path.startswith("/"):
        return None
    names = path[1:].split("/")
    if names[-1] == "":
        names[-1] = INDEX
    return tuple(names) if all(map(_is_servable, names)) else None


def _is_servable(name: str) -> bool:
    if name == "" or name.endswith((".", " ")) or (name.startswith(".") and name != WELL_KNOWN):
        return False
    return name.isprintable() and _DEVICE.fullmatch(name) is None


async def _send(request: Request, opened: _Opened, names: tuple[str, ...], sink: Sink) -> None:
    suffix = PurePosixPath(names[-1]).suffix.lower()
    cached = "public, max-age=31536000, immutable" if IMMUTABLE in request.path else "no-cache"
    about: Headers = ((b"ETag", opened.tag.encode()), (b"Cache-Control", cached.encode()))
    if is_known(request.header(b"if-none-match"), opened.tag):
        sink.start(304, about)
        await sink.end()
        return
    sink.start(
        200,
        (
            (b"Content-Type", TYPES.get(suffix, OTHER_TYPE).encode()),
            (b"Content-Length", str(opened.size).encode()),
            (b"X-Content-Type-Options", b"nosniff"),
            *about,
        ),
    )
    rest = opened.size if request.method == "GET" else 0
    while rest:
        data = await trio.to_thread.run_sync(opened.file.read, min(CHUNK, rest))
        if not data:
            sink.abort()  # it was cut meanwhile
            return
        await sink.write(data)
        rest -= len(data)
    await sink.end()


def is_known(given: str | None, tag: str) -> bool:
    """If-None-Match, compared weakly (RFC 9110 section 13.1.2)."""
    if given is None:
        return False
    return given.strip() == "*" or tag in (each.strip().removeprefix("W/") for each in given.split(","))


async def _move(request: Request, folder: str, sink: Sink) -> None:
    """To the folder's own address, from which its page's relative links lead to its files."""
    _, mark, query = request.target.partition("?")
    there = f"{quote(folder, safe='')}/{mark}{query}"
    await send_whole(sink, 301, ((b"Location", there.encode("ascii", "replace")),))
