"""Small HTTP servers in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


class SmallServer:
    """One running server; `stop` ends it at once."""

    def __init__(self, *options: str) -> None:
        script = Path(__file__).parent / "small_server.py"
        self._process = subprocess.Popen([sys.executable, script, *options], stdout=subprocess.PIPE, text=True)
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(10)
        self._process.stdout.close()


StartServer = Callable[..., SmallServer]
