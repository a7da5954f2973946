"""The fake proxies as a process, for tests in several folders."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROXIES = Path(__file__).parent / "fakes" / "proxies.py"


class Running:
    """The proxies' ports, and what they were asked so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._said = process.stdout
        self.ports: dict[str, int] = self.said()[0]

    def said(self) -> list[Any]:
        """The next request."""
        return json.loads(self._said.readline())


@contextmanager
def proxies(*words: str) -> Generator[Running]:
    with subprocess.Popen([sys.executable, str(PROXIES), *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Running(process)
        finally:
            process.kill()
