"""Files on Linux and macOS: opened once, examined through the open file, never beyond a root.

Below a root every name of a path is opened by itself, relative to the folder before it and without following links
(``openat`` with ``O_NOFOLLOW``). Links are read and walked by hand, ``..`` goes back to a folder that is held open. So
nothing that is renamed or replaced meanwhile leads outside: the opened file is the checked one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from appliance.core.rooted_paths import BadPath, Outside, checked_parts, parts_below

MAX_LINKS = 40
_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_HARMLESS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Opening does not wait (for a FIFO's other end) and takes no terminal."""


def real_root(path: str) -> str:
    """Return a root for comparisons with paths in it. Raises OSError."""
    real = os.path.realpath(path, strict=True)
    os.close(os.open(real, os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC))
    return real


def resolved(cwd: str | None, path: str, root: str | None) -> str:
    """Return an absolute path without dots, as far as text goes. Below a root the dots stay for the walk to follow."""
    start = cwd or root or os.getcwd()  # noqa: PTH109
    whole = os.path.join(root or os.getcwd(), start, path)  # noqa: PTH109, PTH118
    return whole if root is not None else os.path.normpath(whole)


@contextmanager
def open_regular(path: str, root: str | None, *, write: bool = False) -> Generator[int]:
    """Return a file descriptor of a regular file: to read, or with ``write`` to write; it and its folders are created.

    It is not truncated. Raises OSError, and BadPath for anything but a regular file.
    """
    flags = _HARMLESS | (os.O_WRONLY | os.O_CREAT if write else os.O_RDONLY)
    if root is not None:
        fd = open_beneath(root, parts_below(root, path), flags, make_folders=write)
    else:
        if write:
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        _refuse_devices(path, None)
        fd = os.open(path, flags, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadPath(f"it is {_kind(os.fstat(fd).st_mode)}, not a regular file: {path}")
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_folder(path: str, root: str | None) -> Generator[int]:
    """Open a folder for listing. Raises OSError and BadPath."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open(path, flags) if root is None else open_beneath(root, parts_below(root, path), flags)
    try:
        yield fd
    finally:
        os.close(fd)


def open_beneath(root: str, parts: Sequence[str], flags: int, *, make_folders: bool = False) -> int:
    """Open the file at ``parts`` below ``root``, which it cannot leave. Raises OSError and Outside."""
    folders = [os.open(root, _FOLDER)]
    todo = list(reversed(parts))
    links = 0
    try:
        while todo:
            part = todo.pop()
            if part == "..":
                if len(folders) == 1:
                    raise Outside("/".join(parts))
                os.close(folders.pop())
                continue
            try:
                if not todo:
                    _refuse_devices(part, folders[-1])
                    return os.open(part, flags | os.O_NOFOLLOW, 0o666, dir_fd=folders[-1])
                folders.append(os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folders[-1]))
            except OSError as error:
                if make_folders and todo and error.errno == errno.ENOENT:
                    _make_folder(part, folders[-1])
                    todo.append(part)
                    continue
                target = _link(part, folders[-1], error)
            else:
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part)
            names = parts_below(root, target) if target.startswith("/") else target.split("/")
            if target.startswith("/"):
                while len(folders) > 1:
                    os.close(folders.pop())
            todo += [name for name in reversed(names) if name not in ("", ".")]
            checked_parts(todo, target)
        return os.open(".", flags, dir_fd=folders[-1])
    finally:
        for folder in folders:
            os.close(folder)


def _refuse_devices(path: str, folder: int | None) -> None:
    """Check before anything is opened: some devices act on being opened. The open file is checked again."""
    try:
        mode = os.stat(path, dir_fd=folder, follow_symlinks=folder is None).st_mode
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        raise BadPath(f"it is {_kind(mode)}, not a regular file: {path}")


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for test, name in kinds if test(mode)), "a device")


def _make_folder(name: str, folder: int) -> None:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        pass  # another process was faster


def _link(name: str, folder: int, error: OSError) -> str:
    """Return the target of a link that could not be opened because it is one. Raises ``error`` for anything else."""
    if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
        raise error
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        raise error from None
