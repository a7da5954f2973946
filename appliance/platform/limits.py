"""The system's limits for one process, and how the program shares out what they allow."""

from __future__ import annotations

import sys

MOST_CLIENTS = 4000
OWN_FILES = 192
"""Descriptors for everything but clients: model processes (three each), the stores, the log, tools, peers. A program
that may have less than twice as many keeps half."""
PER_CLIENT = 2
"""A client, and its connection to a model process."""
WANTED_FILES = OWN_FILES + PER_CLIENT * MOST_CLIENTS


def raise_open_files() -> int:
    """Raise the soft limit of open files to what the hard limit allows. Return how many clients that leaves room for.

    On Windows sockets have no such limit.
    """
    if sys.platform == "win32":
        return MOST_CLIENTS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            wanted = soft  # macOS may allow less than it says
    return min(MOST_CLIENTS, max(1, (wanted - min(OWN_FILES, wanted // 2)) // PER_CLIENT))
