"""Two users of one machine, of whom root plays both: folders with owners and modes as either may have made them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

VICTIM, STRANGER, SHARED = 10001, 10002, 10003
"""Numbers of users and of their own groups; the stranger is in the shared group, too."""
OWNERS, GROUPS = st.sampled_from((0, VICTIM, STRANGER)), st.sampled_from((0, VICTIM, STRANGER, SHARED))
FOLDER = st.tuples(OWNERS, GROUPS, st.sampled_from((0o700, 0o755, 0o775, 0o777, 0o1777, 0o2775, 0o3775)))
FILE = st.tuples(OWNERS, GROUPS, st.sampled_from((0o600, 0o644, 0o664, 0o666)))
"""Owner, group and mode."""


@contextmanager
def open_folder() -> Generator[Path]:
    """A folder that every user can look into, which those of pytest are not."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def acting_as(user: int, *groups: int) -> Generator[None]:
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)
