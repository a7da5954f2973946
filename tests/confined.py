"""Runs a command in a Linux machine with less: without a network, with small disks, as another user.

    confined.py [--no-network] [--small DIR BYTES]... [--user UID] -- COMMAND...

Its own loopback device is up. A small disk is a tmpfs that only this command sees. Needs root, as its user says.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import socket
import struct
import subprocess
import sys

NEW_MOUNTS, NEW_NETWORK = 0x00020000, 0x40000000
PRIVATE, RECURSIVE = 1 << 18, 1 << 14
SIOCSIFFLAGS, UP = 0x8914, 1


def call(name: str, *args: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def confine(*, network: bool, small: list[tuple[str, int]], user: int | None) -> None:
    """Take it all away from this process, for good."""
    import fcntl  # Windows has none

    call("unshare", (0 if network else NEW_NETWORK) | (NEW_MOUNTS if small else 0))
    if not network:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", UP))
    if small:
        call("mount", b"none", b"/", None, ctypes.c_ulong(PRIVATE | RECURSIVE), None)
    for folder, size in small:
        call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", ctypes.c_ulong(0), f"size={size},mode=777".encode())
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


def missing() -> str:
    """Return why nothing can be confined here; empty: it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux"
    done = subprocess.run([sys.executable, __file__, "--no-network", "--", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "namespaces are switched off here"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-network", action="store_true")
    parser.add_argument("--small", nargs=2, action="append", default=[], metavar=("DIR", "BYTES"))
    parser.add_argument("--user", type=int)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    small = [(folder, int(size)) for folder, size in args.small]
    confine(network=not args.no_network, small=small, user=args.user)
    os.execvp(args.command[0], args.command)


if __name__ == "__main__":
    main()
