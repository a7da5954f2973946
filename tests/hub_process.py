"""The fake hub as a process, for tests in several folders."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

FAKE_HUB = Path(__file__).parent / "fakes" / "model_hub.py"


class FakeHub(NamedTuple):
    """A running ``model_hub.py``. Files put under ``root`` as ``<org>/<repo>/<file>`` are served."""

    root: Path
    stop: Callable[[], None]
    url: str
    cdn: str

    def behave(self, **mood: Any) -> None:
        """Misbehave so from now on, and in no other way; see ``Mood``."""
        body = json.dumps(mood).encode()
        urlopen(Request(f"{self.url}/_control", data=body, method="POST"), timeout=30).close()

    def requests(self, server: str | None = None) -> list[dict[str, Any]]:
        """What was asked, in order, and how much was sent."""
        with urlopen(f"{self.url}/_stats", timeout=30) as answer:
            found = json.load(answer)
        return [entry for entry in found if server is None or entry["server"] == server]

    def sent(self) -> int:
        """Bytes of files."""
        return sum(entry["sent"] for entry in self.requests())


@contextmanager
def fake_hub(root: Path, *arguments: str) -> Generator[FakeHub]:
    """Run it until the block is left."""
    command = [sys.executable, "-S", "-E", str(FAKE_HUB), "--root", str(root), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            told = json.loads(process.stdout.readline())
            yield FakeHub(root, process.kill, told["hub"], told["cdn"])
        finally:
            process.kill()
