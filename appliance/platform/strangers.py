"""The rule by which another user of this machine could have made or changed what lies at a path.

Everything that is believed or started without being named is asked about here first: folders of versions and builds.
installer/onefile.c has the same rule for the folder that it unpacks itself into.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

ADMINISTRATORS = 80 if sys.platform == "darwin" else 0
"""The group that owns /Applications and Homebrew's folders on macOS; its members may become root."""


def take_folder(path: Path) -> str:
    """Close a folder of this user to all others. Return why it cannot be relied on, in words; empty: it can.

    The last part of the path must be no link. It is opened, and the open folder is looked at and changed. One that
    belongs to this user cannot be exchanged by another one afterwards, as `stranger_at` makes sure. Raises OSError.
    """
    if sys.platform == "win32":
        return "it is a link" if path.is_symlink() else ""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return "it is a link, or no folder"
        raise
    try:
        if (owner := os.fstat(folder).st_uid) != os.geteuid():
            return f"{path} belongs to another user (number {owner})"
        os.fchmod(folder, 0o700)
    finally:
        os.close(folder)
    return stranger_at(path)


def stranger_at(path: Path) -> str:
    """Return the first part of the path through which another user could have changed what is there, in words.

    Empty: nobody could but this user and the system. The path need not exist. Links are followed first, because a path
    without links stays the same when nobody else can rename a part of it: each folder belongs to this user or to the
    system, and is closed to others, or sticky as /tmp is. The owner of ``/`` is the system, also where a user namespace
    shows root as somebody else. A group with the user's own number is the user's alone, as useradd makes it.
    Raises OSError. Windows keeps each user's folders from the others by itself.
    """
    if sys.platform == "win32":
        return ""
    user, system, place = os.geteuid(), os.lstat("/").st_uid, path.resolve()
    # From the root down, because the owner of a folder can replace everything below it. A sticky folder lets others add
    # entries, but not rename those of this user. That is safe for a folder on the way, but not for the place itself.
    for part in (*reversed(place.parents), place):
        try:
            there = part.lstat()
        except FileNotFoundError:
            return ""
        if there.st_uid not in (system, user):
            return f"{part} belongs to another user (number {there.st_uid})"
        closed = there.st_gid in (0, ADMINISTRATORS, user)
        mode = there.st_mode & (stat.S_IWOTH if closed else stat.S_IWOTH | stat.S_IWGRP)
        if mode and not (there.st_mode & stat.S_ISVTX and part != place):
            return f"other users may write to {part}"
    return ""
