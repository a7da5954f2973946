"""Exit statuses, and how the program speaks to its user on standard error."""

from __future__ import annotations

import contextlib

import click

from appliance.cli.show import harmless

PROGRAM = "llama-appliance"

EXIT_OURS = 1
EXIT_USER = 2
EXIT_BUG = 70
"""EX_SOFTWARE of sysexits.h: an error that nobody foresaw."""
EXIT_INTERRUPTED = 130


def say(message: str) -> None:
    """One line for the user, beside the output; lost when nobody reads standard error any more.

    Names of files and what engines print may be in it: nothing of that reaches the terminal as a command.
    """
    with contextlib.suppress(OSError, ValueError):
        click.echo(harmless(message), err=True)


def say_error(message: str, status: int) -> int:
    """Tell what is wrong; the result is ``status``."""
    say(f"{PROGRAM}: error: {message}")
    return status
