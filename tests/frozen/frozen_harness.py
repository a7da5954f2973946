"""The frozen program, started as users start it: from another folder, and with an empty environment."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist" / "llama-appliance"
PAGE = ROOT / "docs" / "install.md"
SUFFIX = ".exe" if sys.platform == "win32" else ""
LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")

PATIENCE = 30.0


class Server:
    """The frozen program, serving. What it says is read all the time, and kept."""

    def __init__(self, program: Path, cwd: Path, env: dict[str, str], *options: str, key: str = "") -> None:
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self.process = subprocess.Popen(
            [str(program), "serve", "--listen", "127.0.0.1:0", *options],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.url = self._wait_for(LISTENING)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _wait_for(self, pattern: re.Pattern[str]) -> str:
        deadline = time.monotonic() + PATIENCE
        while line := self._lines.get(timeout=max(0.0, deadline - time.monotonic())):
            self.said.append(line)
            if found := pattern.search(line):
                return found.group(1)
        pytest.fail("the frozen program ended before it listened:\n" + "".join(self.said))

    def ask(self, path: str, body: dict[str, object] | None = None) -> bytes:
        content = json.dumps(body).encode() if body is not None else None
        with urlopen(Request(self.url + path, content, self._headers), timeout=PATIENCE) as answer:
            return answer.read()

    def refused(self, path: str, body: dict[str, object]) -> tuple[int, str]:
        """The status and the message of an error."""
        with pytest.raises(HTTPError) as caught:
            self.ask(path, body)
        with caught.value as answer:
            return answer.status or 0, json.loads(answer.read())["error"]["message"]

    def stop(self) -> int:
        """Ask it to end, the way a service manager does; the exit status."""
        self.process.send_signal(signal.CTRL_BREAK_EVENT if sys.platform == "win32" else signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


def commands_of_the_page() -> dict[str, list[list[str]]]:
    """The commands of docs/install.md: for each heading its blocks, each a list of commands."""
    found: dict[str, list[list[str]]] = {}
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]:
        blocks = re.findall(r"(?:^ {4}.+\n)+", section, re.MULTILINE)
        lines = [[line.strip() for line in block.replace("\\\n", "").splitlines()] for block in blocks]
        if lines:
            found[section.partition("\n")[0]] = lines
    return found


def bare_environment() -> dict[str, str]:
    """Nothing at all, except for what no Windows program starts without."""
    return {name: os.environ[name] for name in ("SYSTEMROOT",) if sys.platform == "win32"}
