"""What a process prints, line by line."""

from __future__ import annotations

from collections.abc import Callable

from trio.abc import ReceiveStream

MAX_LINE = 1 << 20
"""Longer lines are cut into pieces: llama-server's state lines are far shorter, and no server may fill the memory."""


async def read_lines(output: ReceiveStream, take: Callable[[bytes], None]) -> None:
    """Drain ``output`` for as long as anybody holds it, and hand over each line without its end."""
    partial = bytearray()
    while chunk := await output.receive_some(65536):
        partial += chunk
        *lines, rest = partial.split(b"\n")
        partial = bytearray(rest)
        for line in lines:
            take(bytes(line))
        if len(partial) > MAX_LINE:
            take(bytes(partial))
            partial.clear()
    if partial:
        take(bytes(partial))


def text_of(line: bytes) -> str:
    """A line for the log, whatever its encoding and its end."""
    return line.decode("utf-8", "replace").rstrip("\r")
