"""A switch between network namespaces that delays frames and loses some: the kernel here has no netem.

Each port is a TAP device that has been moved into its namespace. Port 0 is the test's own, whose frames pass at once.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME = 1 << 16
BROADCAST = 0x01
"""The bit of a destination's first byte that means several receivers."""


def open_tap(name: str) -> int:
    """Make a TAP device of this name; it lives as long as the file."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def switch(ports: list[int], delay: float, jitter: float, loss: float) -> None:
    """Pass frames on until standard input ends. ``delay`` and ``jitter`` in seconds, one way; ``loss`` of 1."""
    chance, places = random.Random(1), dict[bytes, int]()
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    poll = select.poll()
    for fd in (0, *ports):
        poll.register(fd, select.POLLIN)
    while True:
        left = max(waiting[0][0] - time.monotonic(), 0) * 1000 if waiting else None
        for fd, _ in poll.poll(left):
            if fd == 0:
                return
            frame = os.read(fd, FRAME)
            to, places[frame[6:12]] = frame[:6], fd
            known = places.get(to) if not to[0] & BROADCAST else None
            for port in ports if known is None else [known]:
                is_own = ports[0] in (fd, port)
                if port == fd or (not is_own and chance.random() < loss):
                    continue
                due = time.monotonic() + (0 if is_own else delay + chance.uniform(-jitter, jitter))
                number += 1
                heapq.heappush(waiting, (due, number, port, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, port, frame = heapq.heappop(waiting)
            try:
                os.write(port, frame)
            except OSError:  # its namespace is gone, or its queue is full: lost as on a wire
                continue


if __name__ == "__main__":
    switch([int(word) for word in sys.argv[4:]], *(float(word) for word in sys.argv[1:4]))
