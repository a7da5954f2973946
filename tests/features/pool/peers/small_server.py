"""A runnable HTTP server of a few lines, for tests of peers; prints its port. It knows no product code.

``POST`` answers what arrived; ``--break`` closes in the middle of that.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="small")
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--models", default="", help="comma list; or the name of a file that holds one")
parser.add_argument("--loaded", default="")
parser.add_argument("--key", default="")
parser.add_argument("--break", dest="breaks", action="store_true")
parser.add_argument("--status", type=int, default=200, help="of answers to GET")
parser.add_argument("--post-status", type=int, default=200)
options = parser.parse_args()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "small"

    def do_GET(self) -> None:
        if options.key and self.headers.get("Authorization") != f"Bearer {options.key}":
            self.answer(401, {"error": "key"})
            return
        models = Path(options.models).read_text("utf-8") if Path(options.models).is_file() else options.models
        loaded = options.loaded.split(",")
        entries = [
            {"id": name, "object": "model", "status": {"value": "loaded" if name in loaded else "unloaded"}}
            for name in models.split(",")
            if name
        ]
        entries.append({"id": "far/away", "meta": {"llamaswap": {"type": "peer", "peerID": "far"}}})
        self.answer(options.status, {"object": "list", "data": entries})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(
            options.post_status,
            {"name": options.name, "path": self.path, "headers": self.headers.items(), "body": body.decode()},
        )

    def answer(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content) + 10 * (options.breaks and self.command == "POST")))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
