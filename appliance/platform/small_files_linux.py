"""Small files of the system, such as those in sysfs, which may be gone or busy at any moment."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str | None:
    """Return the text of one small file; None if it is empty, absent, or cannot be read now (EBUSY, EPERM)."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except (OSError, ValueError):  # a name with a zero byte
        return None


def read_number(path: Path) -> int | None:
    """Return the decimal number in one small file."""
    try:
        return int(read_text(path) or "")
    except ValueError:
        return None


def entries(folder: Path) -> list[Path]:
    """Return what is in a folder, in the order of names; nothing if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
