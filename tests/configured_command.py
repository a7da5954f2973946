"""Commands as a configuration names them: one line, quoted as this system splits it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence


def command_line(words: Sequence[str]) -> str:
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)
