"""The system's limits for one process."""

from __future__ import annotations

import sys

WANTED_FILES = 8192
"""Descriptors for 2,000 clients and as many connections to model processes, with room to spare."""


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard limit; on Windows sockets have no such limit."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass  # macOS may allow less than it says; requests beyond the limit are answered 503
