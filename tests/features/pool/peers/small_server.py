"""HTTP servers of a few lines, for tests of peers. They know no product code."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class SmallServer(ThreadingHTTPServer):
    """``POST`` answers what arrived; ``breaks`` closes in the middle of that. ``stop`` ends it at once."""

    def __init__(
        self, *, name="small", port=0, models="", loaded="", key="", breaks=False, status=200, post_status=200
    ) -> None:
        super().__init__(("127.0.0.1", port), _Answers)
        self.name, self.models, self.loaded, self.key = name, models, loaded, key
        self.breaks, self.status, self.post_status = breaks, status, post_status
        self.port = self.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


StartServer = Callable[..., SmallServer]


@contextmanager
def small_servers() -> Generator[StartServer]:
    """Servers that end with the block."""
    with ThreadPoolExecutor() as threads, ExitStack() as ended:

        def start(**options: object) -> SmallServer:
            server = SmallServer(**options)
            ended.callback(server.stop)
            threads.submit(partial(server.serve_forever, 0.02))
            return server

        yield start


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "small"
    server: SmallServer

    def do_GET(self) -> None:
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.answer(401, {"error": "key"})
            return
        loaded = self.server.loaded.split(",")
        entries = [
            {"id": name, "object": "model", "status": {"value": "loaded" if name in loaded else "unloaded"}}
            for name in self.server.models.split(",")
            if name
        ]
        entries.append({"id": "far/away", "meta": {"llamaswap": {"type": "peer", "peerID": "far"}}})
        self.answer(self.server.status, {"object": "list", "data": entries})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        seen = {"name": self.server.name, "path": self.path, "headers": self.headers.items(), "body": body}
        self.answer(self.server.post_status, seen)

    def answer(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content) + 10 * (self.server.breaks and self.command == "POST")))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass
