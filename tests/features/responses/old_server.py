"""A model's server that is no llama-server. Arguments: port, and ``speaks`` if it has a Responses API of its own."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHUNK = {"choices": [{"index": 0, "delta": {"content": "hi from a chat"}, "finish_reason": None}], "model": "x"}
WHOLE = {"choices": [{"message": {"role": "assistant", "content": "hi from a chat"}, "finish_reason": "stop"}]}


class Old(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.tell(200, b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/responses" and sys.argv[2] == "speaks":
            self.tell(200, json.dumps({"own": True, "background": body["background"]}).encode())
        elif self.path != "/v1/chat/completions":
            self.tell(404, b'{"detail":"Not Found"}')
        elif body["stream"]:
            self.tell(200, f"data: {json.dumps(CHUNK)}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")
        else:
            self.tell(200, json.dumps(WHOLE).encode())

    def tell(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Old).serve_forever()
