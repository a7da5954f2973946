"""Command lines of this system: as a configuration names them, and as a person types them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence

import trio


def command_line(words: Sequence[str]) -> str:
    """One line, quoted as this system splits it."""
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


async def run_in_shell(command: str) -> None:
    """Whatever becomes of it. cmd does not undo the quoting of `command_line`: it gets its words as they are."""
    shell = f'cmd /d /s /c "{command}"' if sys.platform == "win32" else ["/bin/sh", "-c", command]
    await trio.run_process(shell, check=False, capture_stdout=True, capture_stderr=True)
