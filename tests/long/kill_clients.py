"""Clients of the kill tests: they note what came, and when."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from program import Server
from waiting import wait

CHAT = "/v1/chat/completions"
ENDLESS = 100_000
"""Tokens: more than come before the kill."""


class Reader:
    """One client of one stream, in a thread of its own, until the stream or the connection ends."""

    def __init__(self, server: Server, conversation: str | None, **fake: object) -> None:
        self.conversation = conversation
        self.body = b""
        """What came of the answer's body, without the framing of chunks."""
        self.arrived: list[tuple[float, int]] = []
        """When how many bytes of it were there."""
        self.begun = threading.Event()
        self.socket = socket.create_connection((server.host, server.port), timeout=20)
        chat = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}], "fake": fake}
        body = json.dumps(chat | {"user": str(time.monotonic_ns())})  # one that has killed engines would be refused
        kept = f"X-Conversation-Id: {conversation}\r\n" if conversation else ""
        head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{kept}Content-Length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body.encode())
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        raw = b""
        with suppress(OSError, ValueError), self.socket, self.socket.makefile("rb") as file:
            while file.readline().strip():
                pass
            while size := int(file.readline(), 16):
                raw = file.read(size)
                file.readline()
                self.body += raw
                self.arrived.append((time.monotonic(), len(self.body)))
                self.begun.set()

    def wait_begun(self) -> None:
        assert self.begun.wait(30), "the stream does not begin"

    def cut(self) -> None:
        """Leave, as somebody does whose machine is switched off: whatever is in the air stays there."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join(10)


@contextmanager
def readers(server: Server, *conversations: str | None, **fake: object) -> Generator[list[Reader]]:
    """All have begun when the block is entered, and have ended when it is left."""
    found = [Reader(server, each, **fake) for each in conversations]
    try:
        for each in found:
            each.wait_begun()
        yield found
    finally:
        for each in found:
            each.cut()


def records(body: bytes) -> list[dict[str, object]]:
    """The JSON of a stream's records; fails for one that is torn. ``[DONE]`` and comments count for nothing."""
    *whole, rest = body.split(b"\n\n")
    assert rest == b"", f"a record is torn: {rest[-200:]!r}"
    data = [each.removeprefix(b"data: ") for each in whole if each.startswith(b"data: ")]
    return [json.loads(each) for each in data if each != b"[DONE]"]


def text_of(body: bytes) -> str:
    """What the model said in a chat."""
    choices = [each["choices"][0]["delta"] for each in records(body) if each.get("choices")]  # type: ignore[index]
    return "".join(delta.get("content") or "" for delta in choices)


class Waits:
    """How long the threads of a program were ready to run and had no processor, as Linux counts it.

    The kernel adds a wait when it is over, so it is looked at again and again, and for the last time in `kill`.
    """

    EVERY = 0.02

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._looks: list[tuple[float, dict[str, float]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def kill(self) -> float:
        """End the program without warning, and say when. It stands still before, so that no wait is left uncounted."""
        self._over.set()
        self._thread.join()
        now = time.monotonic()
        self._process.send_signal(signal.SIGSTOP)
        wait(lambda: all(_state(task) in "Tt" for task in self._tasks()))
        self._looks.append((now, self._look()))
        self._process.kill()
        self._process.wait(10)
        return now

    def since(self, instant: float) -> float:
        """Seconds of all its threads together from then to its end."""
        last = self._looks[-1][1]
        before = max((look for look in self._looks if look[0] <= instant), default=(0.0, dict[str, float]()))[1]
        return sum(waited - before.get(task, 0.0) for task, waited in last.items())

    def _look_on(self) -> None:
        while not self._over.wait(self.EVERY):
            self._looks.append((time.monotonic(), self._look()))

    def _look(self) -> dict[str, float]:
        return {task.name: int((task / "schedstat").read_text().split()[1]) / 1e9 for task in self._tasks()}

    def _tasks(self) -> list[Path]:
        return list(Path(f"/proc/{self._process.pid}/task").iterdir())


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
