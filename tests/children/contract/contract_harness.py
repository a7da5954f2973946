"""Engines as processes, spoken to over plain sockets: what the contract tests stand on."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from waiting import wait

HOST = "127.0.0.1"
ALIAS = "contract-model"
START_TIMEOUT = 60.0
"""Generous: the machine may be busy, and a cold page cache holds the first start of an engine."""
LOADING = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
STATE_LINE = "cmd_child_to_router:state:"
CHILD = {"LLAMA_SERVER_ROUTER_PORT": "1"}
"""Its presence tells an engine that a router is its parent; nothing connects to the port."""

Json = dict[str, Any]


class Engine(NamedTuple):
    """One implementation of llama-server. ``long`` are request fields that keep a generation going for seconds."""

    name: str
    command: tuple[str, ...]
    model: Path
    long: Json

    @property
    def is_fake(self) -> bool:
        return self.name == "fake"

    def argv(self, port: int, *flags: str, model: Path | None = None) -> list[str]:
        always = ["--host", HOST, "--port", str(port), "--alias", ALIAS, "--threads", "1"]
        return [*self.command, "--model", str(model or self.model), *always, *flags]

    def check_keys(self, value: Json, required: str, optional: str = "") -> Json:
        """``value`` as an object that has these keys; the fake may have no others, so that it invents nothing."""
        missing = set(required.split()) - value.keys()
        assert not missing, f"{self.name} lacks {sorted(missing)}"
        surplus = value.keys() - set(required.split()) - set(optional.split())
        assert not (surplus and self.is_fake), f"the fake invented {sorted(surplus)}"
        return value


class Answer(NamedTuple):
    """One response. Header names keep their case; ``chunks`` are the pieces of a chunked body."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    chunks: list[bytes]

    def header(self, name: str) -> str | None:
        """By exact name, case included."""
        return dict(self.headers).get(name)

    def json(self) -> Json:
        return json.loads(self.body)

    def records(self) -> list[tuple[str, str]]:
        """The SSE records as (event, data)."""
        found: list[tuple[str, str]] = []
        for block in self.body.decode().split("\n\n"):
            if block:
                match = re.fullmatch(r"(?:event: (?P<event>\S+)\n)?data: (?P<data>.*)", block)
                assert match, f"not one SSE record: {block!r}"
                found.append((match["event"] or "", match["data"]))
        return found

    def objects(self) -> list[Json]:
        return [json.loads(data) for _, data in self.records() if data != "[DONE]"]


class Running:
    """A started engine. Its output goes to files, so nothing can block it and nothing has to be pumped."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
        self.process = process
        self.port = port
        self.folder = folder
        self.refusals: list[Answer] = []
        """What /health answered before it answered 200."""

    def say_exit(self) -> None:
        """As a router tells its child."""
        self.process.stdin.write(b"cmd_router_to_child:exit\n")
        self.process.stdin.flush()

    def close_stdin(self) -> None:
        self.process.stdin.close()

    def wait_state_ready(self) -> None:
        """Until it has told its router."""
        wait(lambda: any(line["state"] == "ready" for line in self.states()), within=10)

    def stdout(self) -> str:
        return (self.folder / "stdout").read_text(errors="replace")

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def states(self) -> list[Json]:
        """The state lines so far."""
        whole = (line for line in self.stdout().splitlines(keepends=True) if line.endswith("\n"))
        return [json.loads(line[len(STATE_LINE) :]) for line in whole if line.startswith(STATE_LINE)]

    def wait_ready(self) -> None:
        """Until /health says 200. Whatever it says before is kept in ``refusals``."""

        def ready() -> bool:
            assert self.process.poll() is None, f"exited with {self.process.returncode}:\n{self.stderr()}"
            try:
                answer = self.ask("GET", "/health")
            except OSError:
                return False
            if answer.status != 200:
                self.refusals.append(answer)
            return answer.status == 200

        wait(ready, within=START_TIMEOUT)

    def ask(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        """One request on its own connection. ``body`` is sent as it is when bytes, else as JSON."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        try:
            connection.request(method, path, raw or None, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.getheaders(), response.read(), [])
        finally:
            connection.close()

    def stream(self, path: str, body: Json) -> Answer:
        """One streamed request, with its chunks as they were framed."""
        with self.open(path, {**body, "stream": True}) as sock:
            raw = b""
            while part := sock.recv(1 << 16):
                raw += part
        head, _, rest = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        chunks: list[bytes] = []
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            chunks.append(rest[: int(size, 16)])
            assert rest[int(size, 16) :][:2] == b"\r\n", "a chunk is not as long as it says"
            rest = rest[int(size, 16) + 2 :]
        assert chunks.pop() == b"", "the body does not end with the empty chunk"
        return Answer(int(first.split()[1]), headers, b"".join(chunks), chunks)

    def open(self, path: str, body: Json) -> socket.socket:
        """Send a request and leave its answer to the caller."""
        raw = json.dumps(body).encode()
        sock = socket.create_connection((HOST, self.port), timeout=60)
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        return sock

    def busy_slots(self) -> int:
        slots = json.loads(self.ask("GET", "/slots").body)
        return sum(slot["is_processing"] is True for slot in slots)


Start = Callable[..., Running]


def falls_silent(sock: socket.socket, seconds: float) -> bool:
    """Read on until nothing comes for so long (True) or the peer ends the connection (False)."""
    sock.settimeout(seconds)
    try:
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        return True
    return False


@contextmanager
def started(argv: Sequence[str], port: int, folder: Path, env: dict[str, str] | None = None) -> Generator[Running]:
    """Run an engine with a pipe as its stdin; it is killed at the end if it still lives."""
    folder.mkdir(parents=True, exist_ok=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_ARG_", "FAKE_"))}
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=out, stderr=err, env=clean | (env or {}), cwd=Path(__file__).parents[3]
        )
    try:
        yield Running(process, port, folder)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdin:
            process.stdin.close()
