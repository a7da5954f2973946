"""An X server without a screen, and its picture."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

END_TIME = 60.0


@contextmanager
def x_server(folder: Path) -> Generator[str]:
    """Run an X server that keeps its picture in the folder; the value is its display."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    words = f"Xvfb -displayfd {writer} -screen 0 320x64x24 -fbdir {folder} -nolisten tcp".split()
    with (folder / "Xvfb.log").open("wb") as log, os.fdopen(reader, "rb") as told:
        server = subprocess.Popen(words, pass_fds=[writer], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        os.close(writer)
        try:
            yield f":{told.readline().decode().strip()}"
        finally:
            server.terminate()
            server.wait(END_TIME)


class Screen:
    """The picture of an `x_server` with this folder: a file in memory (XWD, as `-fbdir` makes it)."""

    def __init__(self, folder: Path) -> None:
        with (folder / "Xvfb_screen0").open("rb") as opened:
            self._picture = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        head = struct.unpack(">25I", self._picture[:100])
        self._begin = head[0] + 12 * head[19]
        self.width, self.height, self._stride = head[4], head[5], head[12]

    def pixels(self, colour: int) -> int:
        """How many pixels have this colour (0xRRGGBB)."""
        wanted = struct.pack("<I", colour)[:3]
        rows = (self._picture[at : at + 4 * self.width] for at in self._rows())
        return sum(row[x : x + 3] == wanted for row in rows for x in range(0, len(row), 4))

    def _rows(self) -> range:
        return range(self._begin, self._begin + self._stride * self.height, self._stride)
