"""A disk that takes no more, for this process: the system refuses every byte that is written to a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

REFUSED = "File too large"
"""What the system says then."""

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows sets no limit to the size of files")


@contextmanager
def full_disk() -> Iterator[None]:
    """Within the block no file of any thread grows. Pipes and sockets do not mind."""
    import resource  # Windows has none

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
