"""Things that have a file's name and are none, and a reader that must end whichever of them it meets."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from appliance.errors import ApplianceError


def to_secret(path: Path) -> None:
    secret = path.parent.with_name("secret")
    secret.write_bytes(b"secret")
    path.symlink_to(secret)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.path.relpath(path))


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link to a pipe": lambda path: (os.mkfifo(path.with_name("pipe")), path.symlink_to("pipe")),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to a secret": to_secret,
    "terminal": lambda path: path.symlink_to("/dev/ptmx"),
    "folder": lambda path: path.mkdir(),
    "socket": listening,
}


def assert_ends(read: Callable[[Path], object], path: Path, kind: str) -> None:
    """Read a path that is such a thing. Its folder is the current one, with nothing else around it."""
    KINDS[kind](path)

    def try_it() -> None:
        with suppress(OSError, ApplianceError):
            read(path)

    thread = threading.Thread(target=try_it, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    if kind == "link to a secret":
        assert path.parent.with_name("secret").read_bytes() == b"secret"
