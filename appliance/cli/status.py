"""Exit statuses, and how the program speaks to its user on standard error."""

from __future__ import annotations

import contextlib
import logging
import sys
import time

import click
import msgspec

from appliance.cli.show import harmless

PROGRAM = "llama-appliance"

EXIT_OURS = 1
EXIT_USER = 2
EXIT_BUG = 70
"""EX_SOFTWARE of sysexits.h: an error that nobody foresaw."""
EXIT_INTERRUPTED = 130


_as_json = False


def say_as_json() -> None:
    """Make every message, and every record of the log on standard error, a JSON object in one line, from now on.

    It holds ``time`` (seconds since 1970), ``level`` and ``message``.
    """
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


def say(message: str, level: str = "info") -> None:
    """One line for the user, beside the output; lost when nobody reads standard error any more.

    Names of files and what engines print may be in it: nothing of that reaches the terminal as a command.
    """
    with contextlib.suppress(OSError, ValueError):
        shown = _line(time.time(), level, message) if _as_json else harmless(message)
        click.echo(shown, err=True)


def say_error(message: str, status: int) -> int:
    """Tell what is wrong; the result is ``status``."""
    say(f"{PROGRAM}: error: {message}", "error")
    return status
