"""The ports of this machine and their holders; the guard that keeps this process from every other machine."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

from appliance.core.offline import asks_others, leaves

LOOPBACK = "127.0.0.1"
_SENDS = ("socket.connect", "socket.sendto", "socket.sendmsg")
_LOOKS_UP = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_LISTEN = 1 << 10
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_PORT, _USER_INODE = struct.Struct("!4xH"), struct.Struct("=64xII")
"""Linux, include/uapi/linux/netlink.h and inet_diag.h: the port is in network order, the inode in the machine's."""


def free_port() -> int:
    """Return a loopback port that was free a moment ago; a child that loses the race for it is started again."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        port: int = sock.getsockname()[1]
        return port


def stay_on_this_machine() -> None:
    """Refuse, to the end of this process, every connection and every look-up of a name that would leave this machine.

    Python tells of them before they are made, whichever library makes them (PEP 578). Children are not bound by it.
    """
    sys.addaudithook(_refuse_leaving)


def _refuse_leaving(event: str, args: tuple[object, ...]) -> None:
    if event in _SENDS:
        address = args[1]
        host, goes = (address[0] if isinstance(address, tuple) else None), leaves  # pyright: ignore[reportUnknownVariableType]
    elif event in _LOOKS_UP:
        host, goes = args[0], asks_others
    else:
        return
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if isinstance(host, str) and goes(host):
        raise OSError(errno.ENETUNREACH, f"--offline keeps the program from {host}, which may be another machine")


def foreign_holder(pid: int, port: int) -> str | None:
    """Return who listens on ``port`` if process ``pid``, its descendants and its group do not; None if they do.

    The answer is words for a person, with name and number of the process where the system tells them. It takes tens of
    milliseconds: call it in a thread.
    """
    import psutil  # not at the top: most servers listen by themselves

    try:
        family = {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.Error:
        family = {pid}
    try:
        found = psutil.net_connections("tcp")
        holders = {at.pid for at in found if at.status == psutil.CONN_LISTEN and at.laddr and at.laddr.port == port}
    except (psutil.Error, OSError):  # not told to every user (macOS)
        holders = {each for each in family if _is_among_its(each, port)} or {None}
    known = {holder for holder in holders if holder}  # 0: a Windows that does not tell, as wine's
    # A process that cannot be named is taken for our own here: to refuse a model for it would be worse.
    if sys.platform == "win32" and not known:
        return None
    # A server whose parent has ended belongs to process 1, and is not a descendant any more. Its process group still
    # shows whose it is.
    if known & family or any(_same_group(pid, holder) for holder in known):
        return None
    return _in_words(known)


def listens(pid: int, port: int) -> bool:
    """Return whether the process itself listens on ``port``, in a millisecond; False also where the system does not
    say.
    """
    if sys.platform != "linux":
        return False
    try:
        sockets = {f"socket:[{inode}]" for _, inode in _listening(port)}
        return any(_link(descriptor) in sockets for descriptor in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def user_at(port: int) -> str:
    """Return the user whose programs listen on ``port``; empty if there are several, or the system does not tell.

    It may take tens of milliseconds: call it in a thread.
    """
    import psutil

    if sys.platform != "linux":  # where others' are not told to every user
        own = psutil.Process().username()
        found = (each.pid for each in psutil.process_iter(["username"]) if each.info["username"] == own)
        return own if any(_is_among_its(pid, port) for pid in found) else ""
    import pwd

    try:
        [user] = {user for user, _ in _listening(port)}
    except (OSError, ValueError):
        return ""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # psutil calls a user without a name by the number as well
        return str(user)


def _listening(port: int) -> set[tuple[int, int]]:
    """Return the users and the inodes of the sockets that listen on ``port``. Raises OSError.

    The kernel is asked for listening sockets alone (sock_diag(7)): ``/proc/net/tcp`` has it walk through all there are.
    """
    found: set[tuple[int, int]] = set()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.settimeout(0.5)
        for family in (socket.AF_INET, socket.AF_INET6):
            asked = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _LISTEN)
            kernel.send(_HEADER.pack(_HEADER.size + len(asked), _BY_FAMILY, _DUMP, 1, 0) + asked)
            at, data = 0, b""
            while True:
                if at >= len(data):
                    at, data = 0, kernel.recv(1 << 16)
                length, kind, *_ = _HEADER.unpack_from(data, at)
                if kind != _BY_FAMILY:  # the end, or an error
                    break
                start = at + _HEADER.size
                if _PORT.unpack_from(data, start) == (port,):
                    found.add(_USER_INODE.unpack_from(data, start))
                # Messages of netlink begin at multiples of four bytes (netlink(7)).
                at += (length + 3) & ~3
    return found


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _is_among_its(pid: int, port: int) -> bool:
    import psutil

    try:
        found = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(at.status == psutil.CONN_LISTEN and at.laddr and at.laddr.port == port for at in found)


def _same_group(pid: int, other: int) -> bool:
    if sys.platform == "win32":
        return False
    try:
        return os.getpgid(other) == os.getpgid(pid)
    except OSError:
        return False


def _in_words(pids: Iterable[int]) -> str:
    import psutil

    for pid in sorted(pids):
        try:
            return f"'{psutil.Process(pid).name()}' (process {pid})"
        except psutil.Error:
            continue
    return "another program, of which the system says no more"
