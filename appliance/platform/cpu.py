"""How many processors there are to share."""

from __future__ import annotations

import os
import sys
from functools import cache


@cache
def engine_threads() -> int:
    """Threads for one CPU model process: every core but one, at least one.

    With all cores taken by an engine's spinning threads, relaying one token took over a second (measured on 2 cores).
    """
    import psutil  # seven milliseconds, which a server that has started no model saves

    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else (os.cpu_count() or 1)
    cores = min(usable, psutil.cpu_count(logical=False) or usable)
    return max(1, cores - 1)
