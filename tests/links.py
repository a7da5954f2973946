"""Tests that need symbolic links: most users of Windows may make none."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


def _are_made() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "link"
        try:
            link.symlink_to(folder)
        except OSError:
            return False
        return link.is_symlink()


needs_links = pytest.mark.skipif(not _are_made(), reason="no symbolic links here")
