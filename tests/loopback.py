"""Switches the loopback device of a network of its own on, and becomes the command: `unshare` leaves it off.

    unshare --net python3 loopback.py COMMAND [WORD...]

A bare Debian has `unshare`, and no `ip`.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

SIOCSIFFLAGS, UP = 0x8914, 1

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", UP))
os.execvp(sys.argv[1], sys.argv[1:])
