"""The program as terminals and scripts see it: lines on standard error and standard output, and the exit status."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import stat
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

import click
import msgspec

from appliance.errors import UsageError

PROGRAM = "llama-appliance"

EXIT_OURS = 1
EXIT_USER = 2
EXIT_BUG = 70
"""EX_SOFTWARE of sysexits.h: an error that nobody foresaw."""
EXIT_INTERRUPTED = 130

FULL_PAUSE = 0.05
"""Seconds between attempts to write into a full pipe that does not wait."""

_UNSEEN = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "\ufffd") | {
    ord("\t"): "\t",
    ord("\n"): "\n",
    ord("\r"): None,
}
_COMMAND = re.compile(rf"(?:(?<=')|(?<=\$ )){PROGRAM} (?=[a-z-])")
LOADER_PATHS = ("LD_LIBRARY_PATH", "LIBPATH", "DYLD_LIBRARY_PATH")


def harmless(text: str) -> str:
    """Return the text without the codes by which it could set a terminal's title, or fill a clipboard."""
    return text.translate(_UNSEEN)


def can_ask() -> bool:
    """Return whether standard input is a terminal, where somebody can answer. On Windows NUL says that it is one."""
    if not sys.stdin.isatty():
        return False
    if sys.platform != "win32":
        return True
    import ctypes  # questions need it
    import msvcrt

    handle, mode = msvcrt.get_osfhandle(sys.stdin.fileno()), ctypes.c_ulong()
    return bool(ctypes.WinDLL("kernel32").GetConsoleMode(ctypes.c_void_p(handle), ctypes.byref(mode)))


_as_json = False


def say_as_json() -> None:
    """From now on a message or log record on standard error is one JSON object: ``time``, ``level``, ``message``."""
    global _as_json
    _as_json = True
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_JsonLines())


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _line(record.created, record.levelname.lower(), super().format(record))


def _line(when: float, level: str, message: str) -> str:
    return msgspec.json.encode({"time": round(when, 3), "level": level, "message": message}).decode()


_called: Callable[[], str] = lambda: PROGRAM  # noqa: E731  until `call_as`


def call_as(called: Callable[[], str]) -> None:
    """``called`` tells how a shell starts this program here; from now on messages name it so."""
    global _called
    _called = called


def as_called(text: str) -> str:
    """Return a message with this program's commands, ``'llama-appliance VERB ...'``, as they can be typed here.

    The texts of errors just name the program: the code that finds a fault does not know where the program lies, and
    a client on another machine may read the same text.
    """
    return _COMMAND.sub(lambda _: f"{_called()} ", text)


_quiet = False


def say_only_errors() -> None:
    """From now on `say` writes nothing but errors."""
    global _quiet
    _quiet = True


_file: TextIO | None = None


def keep_log(path: str) -> None:
    """Also write every message, and every record of the log, into this file from now on. Raises UsageError."""
    global _file
    try:
        _file = Path(path).open("a", encoding="utf-8", errors="replace", buffering=1)  # noqa: SIM115  open to the end
    except OSError as error:
        raise UsageError(f"--log-file {path} cannot be written: {error.strerror or error}") from None
    for handler in list(logging.getLogger().handlers):
        also = logging.StreamHandler(_file)
        also.setLevel(handler.level)
        also.setFormatter(handler.formatter)
        logging.getLogger().addHandler(also)


def into_file(line: str) -> None:
    """Write a line into the file of `keep_log`, if there is one; a full disk loses it."""
    if _file is not None:
        with contextlib.suppress(OSError):
            _file.write(f"{line}\n")


def say(message: str, level: str = "info") -> None:
    """Write one line to standard error, and into the file of `keep_log`; see `say_here`."""
    if _quiet and level != "error":
        return
    message = as_called(message)
    into_file(message)
    say_here(message, level)


def say_here(message: str, level: str = "info") -> None:
    """Write one line to standard error alone; it is lost when nobody reads that any more.

    Names of files and what engines print may be in it: nothing of that reaches the terminal as a command.
    """
    with contextlib.suppress(OSError, ValueError):
        shown = _line(time.time(), level, message) if _as_json else harmless(message)
        click.echo(shown, err=True)


def say_error(message: str, status: int) -> int:
    """Tell what is wrong; the result is ``status``."""
    say(f"{PROGRAM}: error: {message}", "error")
    return status


def print_through(text: str) -> bool:
    """Write to standard output; False when it is closed. Blocks while nobody reads a pipe that is full.

    It goes past Python's own buffer: a thread that hangs there would still hold the lock when the program ends.
    """
    try:
        if sys.platform == "win32":
            print(text, end="", flush=True)  # knows what a console takes
            return True
        # `os.write` may take a part, and raises on a full pipe that another process has set to non-blocking: both
        # programs share one file description. So this loop writes the rest, and waits where it has to.
        data = text.encode(sys.stdout.encoding, "replace")
        while data:
            try:
                data = data[os.write(sys.stdout.fileno(), data) :]
            except BlockingIOError:
                time.sleep(FULL_PAUSE)  # a pipe that is full, and that somebody has told not to wait
    except (AttributeError, OSError, ValueError):
        return False  # closed, before the program began or since, or no file at all
    return True


def said_at_once(line: bytes) -> bool:
    """Write to standard error, if it is a file, or a pipe with room; False: nothing was written."""
    if sys.platform == "win32" or sys.stderr is None or len(line) > select.PIPE_BUF:
        return False
    try:
        error = sys.stderr.fileno()
        kind = os.fstat(error).st_mode
        # A pipe with room takes PIPE_BUF bytes whole and at once (pipe(7)), and a file always does. A terminal may hold
        # a writer up for ever (Ctrl-S), and this is called in the event loop.
        if stat.S_ISFIFO(kind) and not select.select((), (error,), (), 0)[1]:
            return False
        return (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)) and os.write(error, line) == len(line)
    except (OSError, ValueError):
        return False


def is_frozen() -> bool:
    """True if PyInstaller's bootloader has started this program."""
    return bool(getattr(sys, "frozen", False))


def without_bootloader(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment as it was before PyInstaller's bootloader, for another program than this one.

    It has put its own folder in front of ``LD_LIBRARY_PATH`` and kept the old value in ``LD_LIBRARY_PATH_ORIG``
    (PyInstaller manual, "LD_LIBRARY_PATH considerations"); with no old value the variable is removed.
    """
    env = dict(environ)
    for name in LOADER_PATHS:
        original = env.pop(f"{name}_ORIG", None)
        env.pop(name, None)
        if original is not None:
            env[name] = original
    return {name: value for name, value in env.items() if not name.startswith("_PYI_")}


def outer_environment() -> dict[str, str]:
    """Return this program's environment, with its settings, for another start of the program or of the user's own."""
    return without_bootloader(os.environ) if is_frozen() else dict(os.environ)
