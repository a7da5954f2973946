"""Listening sockets in the file system: created so that only permitted users connect, and removed with care."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from appliance.core.installed import MAC_ACCOUNT, NAME
from appliance.core.server_choice import SocketState

BACKLOG = 1024
LOCK_TIME = 2.0
"""Seconds to wait for another program that is creating its socket in the same folder; it takes milliseconds."""
LOCK_AGAIN = 0.05
LOCAL_PEERCRED, XUCRED_SIZE = 1, 76
"""The option of macOS's unix(4), and the bytes of what it tells: a version, the user, and groups."""


class UnixListener(NamedTuple):
    """A listening socket, and the identity of its file, so that nobody else's is removed later."""

    socket: socket.socket
    path: str
    device: int
    inode: int


class NotASocket(FileExistsError):
    """There is a file of another kind."""


if sys.platform == "win32":

    def state_of(path: str, users: frozenset[int]) -> SocketState:
        """There is none."""
        return "missing"

    def is_of(sock: socket.socket, users: frozenset[int]) -> bool:
        """There is none."""
        return True

    def believed_users() -> frozenset[int]:
        """There is none."""
        return frozenset()

    def listen_at(path: str, mode: int) -> UnixListener:
        """Python lacks it on Windows."""
        raise OSError(errno.EAFNOSUPPORT, "Python has no Unix sockets on Windows")

    def remove(listening: UnixListener) -> None:
        """There is none to remove."""

else:
    import fcntl
    import pwd

    def state_of(path: str, users: frozenset[int]) -> SocketState:
        """Return whether a server of one of these users answers at the file for this user. Nothing is sent."""
        try:
            return "answers" if _is_answered(path, users) else "missing"
        except FileNotFoundError:
            return "missing"
        except OSError:
            return "closed"

    def listen_at(path: str, mode: int) -> UnixListener:
        """Listen at ``path``, a file that gets these permissions before anybody can connect. Waits for the disk.

        A socket that nobody answers on any more is replaced. Raises OSError: NotASocket for any other file, EADDRINUSE
        where somebody answers, or may.
        """
        with _alone_in(os.path.dirname(path) or "."):  # noqa: PTH120  -- "./x.sock" must not become longer
            _clear(path)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.bind(path)
                os.chmod(path, mode)  # noqa: PTH101  -- connections are refused until it listens
                made = os.lstat(path)
                sock.listen(BACKLOG)
                sock.setblocking(False)
            except BaseException:
                sock.close()
                raise
        return UnixListener(sock, path, made.st_dev, made.st_ino)

    def remove(listening: UnixListener) -> None:
        """Remove the file if it is still this socket's; another program may have put its own there. Raises nothing."""
        try:
            with _alone_in(os.path.dirname(listening.path) or "."):  # noqa: PTH120
                found = os.lstat(listening.path)
                if (found.st_dev, found.st_ino) == (listening.device, listening.inode):
                    Path(listening.path).unlink()
        except OSError:
            pass

    def _clear(path: str) -> None:
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise NotASocket(errno.EEXIST, os.strerror(errno.EEXIST))
        if _is_answered(path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        # The file may have been replaced since it was tried, by a program that takes no lock. Then it is not this
        # program's to remove.
        now = os.lstat(path)
        if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        Path(path).unlink()

    def believed_users() -> frozenset[int]:
        """Return the users whose programs could have this user's files and keys anyway: itself, root, the service."""
        found = {0, os.geteuid()}
        for name in (NAME, MAC_ACCOUNT):
            with suppress(KeyError):
                found.add(pwd.getpwnam(name).pw_uid)
        return frozenset(found)

    def is_of(sock: socket.socket, users: frozenset[int]) -> bool:
        """True if a program of one of these users listens at the other end, or the system does not tell.

        A file says less: the owner of its folder may exchange it, or lead its name elsewhere.
        """
        if sys.platform == "linux":
            user = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        elif sys.platform == "darwin":
            user = struct.unpack_from("2I", sock.getsockopt(0, LOCAL_PEERCRED, XUCRED_SIZE))[1]
        else:
            return True
        return user in users

    def _is_answered(path: str, users: frozenset[int] | None = None) -> bool:
        """Only a refusal proves that nobody does. Raises OSError for any other error.

        With ``users`` it has to be one of them who answers.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            try:
                sock.connect(path)
            # Any other error, such as a lack of permission, may come from a server that lives. To remove its file would
            # cut it off from all clients, with no way back.
            except ConnectionRefusedError:
                return False
            except BlockingIOError:
                return True
            return users is None or is_of(sock, users)

    @contextmanager
    def _alone_in(folder: str) -> Generator[None]:
        """Lock out all other programs that do this with this folder; the kernel ends the lock with the process."""
        # The folder itself is locked and not a file in it, so nothing is left behind that another run could trip over.
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            deadline = time.monotonic() + LOCK_TIME
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(LOCK_AGAIN)
                except OSError:
                    break  # a file system without locks
            yield
        finally:
            os.close(lock)
