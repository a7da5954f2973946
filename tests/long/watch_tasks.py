"""Put first on the path of a program, as ``sitecustomize``: its Trio tells how many tasks live, once in a second."""

from __future__ import annotations

import os
import time

import trio

run = trio.run


class Tasks(trio.abc.Instrument):
    """Writes into the file that the environment names."""

    def __init__(self) -> None:
        self._next = 0.0

    def before_io_wait(self, timeout: float) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 1
            with open(os.environ["TASKS_FILE"], "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write(str(trio.lowlevel.current_statistics().tasks_living))


def watched(*args, **keywords):
    return run(*args, **{"instruments": [Tasks()], **keywords})


trio.run = watched
