"""A server that knows nothing of llama-server's child protocol, for models that are configured by a command.

Words ``name=value`` say how it behaves; see `Options`. It answers GET on its check path with 200 once it is ready, GET
/env with its environment, POST with what it was sent, /drip in pieces, and /die by dying in the middle of an answer.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

PIECES = 10


class Options:
    """Times in seconds."""

    def __init__(self, words: list[str]) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.base = ""
        """Prefix of every path; anything else is 404."""
        self.check = "/health"
        self.ready_after = 0.0
        self.before = "503"
        """What comes before it is ready: 503, ``hang`` (answered when ready), ``swallow`` (never answered), ``closed``
        (it does not listen)."""
        self.slow = 0.0
        """A check is answered after so long."""
        self.exit_after = -1.0
        self.status = 0
        self.term = "default"
        """What SIGTERM does: ``default``, ``ignore``, or a number of seconds that its end takes."""
        self.events = ""
        """A file that is told of ``begun``, ``ready``, ``listening``, ``term`` and ``end``, each with the time."""
        self.say = ""
        self.allocate = 0
        """MiB of memory to fill."""
        for word in words:
            name, _, value = word.partition("=")
            setattr(self, name, type(getattr(self, name))(value))


class Server:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.due: list[tuple[float, socket.socket, bytes, bool]] = []
        """What is to be sent later, and whether that is the end."""
        self.kept: list[socket.socket] = []
        self.ends_at = time.monotonic() + options.exit_after if options.exit_after >= 0 else float("inf")
        self.ready_at = time.monotonic() + options.ready_after
        self.woken, self.wakes = socket.socketpair()
        """A signal does not end a `select`; this does."""

    def tell(self, event: str, at: float | None = None) -> None:
        if self.options.events:
            with open(self.options.events, "a", encoding="utf-8") as file:  # noqa: PTH123  pathlib is slow to import
                file.write(f"{event} {os.getpid()} {at or time.monotonic()}\n")

    def on_term(self, *_: object) -> None:
        self.tell("term")
        if self.options.term != "ignore":
            self.ends_at = min(self.ends_at, time.monotonic() + float(self.options.term))

    def run(self) -> None:
        self.wakes.setblocking(False)
        signal.set_wakeup_fd(self.wakes.fileno())
        if self.options.term != "default":
            signal.signal(signal.SIGTERM, self.on_term)
        self.tell("begun")
        self.tell("ready", self.ready_at)
        if self.options.say:
            print(self.options.say, flush=True)
        ballast = bytearray(b"x") * (self.options.allocate << 20)
        if self.options.before == "closed":
            self.wait_until_ready()
        with socket.socket(socket.AF_INET6 if ":" in self.options.host else socket.AF_INET) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.options.host, self.options.port))
            listener.listen(64)
            self.tell("listening")
            while time.monotonic() < self.ends_at:
                self.serve_once(listener)
        del ballast
        self.tell("end")
        sys.exit(self.options.status)

    def wait_until_ready(self) -> None:
        while (left := min(self.ready_at, self.ends_at) - time.monotonic()) > 0:
            time.sleep(left)

    def serve_once(self, listener: socket.socket) -> None:
        wake = min([self.ends_at, *(entry[0] for entry in self.due)])
        if self.woken in select.select([listener, self.woken], [], [], max(0.0, min(wake - time.monotonic(), 60)))[0]:
            self.woken.recv(100)
        for entry in [entry for entry in self.due if entry[0] <= time.monotonic()]:
            self.due.remove(entry)
            _, connection, data, is_last = entry
            send(connection, data, is_last=is_last)
        if select.select([listener], [], [], 0)[0]:
            connection, _ = listener.accept()
            self.take(connection)

    def take(self, connection: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            chunk = connection.recv(65536)
            if not chunk:
                connection.close()
                return
            received += chunk
        head, _, body = received.partition(b"\r\n\r\n")
        method, target = head.decode("latin-1").split(" ")[:2]
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                while len(body) < int(value):
                    body += connection.recv(65536)
        self.respond(connection, method, target.partition("?")[0], body)

    def respond(self, connection: socket.socket, method: str, path: str, body: bytes) -> None:
        base = self.options.base
        now = time.monotonic()
        if not path.startswith(base):
            answer(connection, response(404, b"not under the base path"))
        elif method == "GET" and path == base + self.options.check:
            self.respond_to_check(connection, now)
        elif path == base + "/env":
            lines = [f"{name}={value}" for name, value in os.environ.items()]
            answer(connection, response(200, "\0".join(lines).encode("utf-8", "surrogateescape")))
        elif path == base + "/die":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nthe first half")
            os._exit(3)
        elif path == base + "/drip":
            pieces = response(200, b"drop by drop " * PIECES)
            step = len(pieces) // PIECES + 1
            for n in range(PIECES):
                self.due.append((now + 0.003 * n, connection, pieces[n * step : (n + 1) * step], n == PIECES - 1))
        elif method == "POST":
            answer(connection, response(200, body))
        else:
            answer(connection, response(404, b"no such path"))

    def respond_to_check(self, connection: socket.socket, now: float) -> None:
        if now >= self.ready_at:
            self.due.append((now + self.options.slow, connection, response(200, b"ok"), True))
        elif self.options.before == "hang":
            self.due.append((self.ready_at, connection, response(200, b"ok"), True))
        elif self.options.before == "swallow":
            self.kept.append(connection)
        else:
            answer(connection, response(503, b"loading"))


def response(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)


def answer(connection: socket.socket, data: bytes) -> None:
    send(connection, data, is_last=True)


def send(connection: socket.socket, data: bytes, *, is_last: bool) -> None:
    try:
        connection.sendall(data)
    except OSError:
        pass  # whoever asked has gone
    if is_last:
        connection.close()


if __name__ == "__main__":
    Server(Options(sys.argv[1:])).run()
