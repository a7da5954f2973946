"""Files of this machine, opened so that nothing hangs and nothing leads out of a root: the same on every system."""

from __future__ import annotations

import os
import sys

if sys.platform == "win32":
    from appliance.platform.rooted_files_windows import open_folder, open_regular, real_root, resolved
else:
    from appliance.platform.rooted_files_posix import open_folder, open_regular, real_root, resolved

__all__ = ["home_folder", "listed", "open_folder", "open_regular", "real_root", "resolved"]


def home_folder() -> str:
    return os.path.expanduser("~")  # noqa: PTH111  a text, which may be no path


def listed(folder: int | str, *, links: bool) -> list[tuple[str, bool, bool]]:
    """Return the names in an open folder, sorted, of files and folders: whether each is a folder, and a link.

    ``links``: with symbolic links, and junctions on Windows, as what they lead to. Names that are not UTF-8 come as
    Python has them.
    """
    found: list[tuple[str, bool, bool]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            link = entry.is_symlink()
            if sys.platform == "win32":
                link = link or bool(entry.stat(follow_symlinks=False).st_reparse_tag)
            if link and not links:
                continue
            try:
                is_folder = entry.is_dir()
                if is_folder or entry.is_file():
                    found.append((entry.name, is_folder, link))
            except OSError:
                continue  # it vanished, or cannot be looked at
    return sorted(found)
