"""A runnable MCP server over streamable HTTP, with flags for misbehaviour; prints its port."""

from __future__ import annotations

import argparse
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

MIB = 1 << 20


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True, help="one JSON line for every request")
    parser.add_argument("--path", default="/mcp")
    parser.add_argument("--sse", action="store_true", help="answer with server-sent events")
    parser.add_argument("--session", action="store_true", help="hand out session ids and insist on them")
    parser.add_argument("--forget-once", action="store_true", help="the first tools/call finds its session forgotten")
    parser.add_argument("--version", default="2025-06-18", help="the protocol revision that is agreed on")
    parser.add_argument("--need", default="", help="NAME:VALUE of a header without which everything is 401")
    parser.add_argument("--ask", action="store_true", help="ping and roots/list on every stream before the answer")
    parser.add_argument("--cut", action="store_true", help="streams of tools/call end before the answer")
    parser.add_argument("--break-off", action="store_true", help="connections of tools/call break before the answer")
    parser.add_argument("--long", type=int, default=0, help="MiB of text in every answer to tools/call")
    parser.add_argument("--flood", type=int, default=0, help="MiB of notifications on the stream before the answer")
    parser.add_argument("--status", type=int, default=0, help="the HTTP status of every tools/call")
    parser.add_argument("--text", default="", help="the body of every tools/call, whatever it should be")
    return parser.parse_args()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    flags: argparse.Namespace
    sessions: ClassVar[set[str]] = set()
    forgot = False

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_DELETE(self) -> None:
        self.note(None)
        self.sessions.discard(self.headers.get("Mcp-Session-Id", ""))
        self.plain(204)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.note(message)
        flags = self.flags
        name, _, value = flags.need.partition(":")
        if name and self.headers.get(name) != value:
            return self.plain(401, "who are you?")
        if self.path != flags.path:
            return self.plain(405, "not here")
        method, number = message.get("method"), message.get("id")
        if flags.session and method != "initialize" and self.headers.get("Mcp-Session-Id") not in self.sessions:
            return self.plain(404, "no such session")
        if method is None or number is None:
            return self.plain(202)
        if method == "tools/call":
            return self.call(message)
        return self.say(message, self.answer(method))

    def call(self, message: dict[str, object]) -> None:
        flags = self.flags
        if flags.forget_once and not Handler.forgot:
            Handler.forgot = True
            self.sessions.clear()
            return self.plain(404, "no such session")
        if flags.status:
            return self.plain(flags.status, "out of order")
        if flags.text:
            return self.plain(200, flags.text)
        if flags.break_off:
            self.close_connection = True
            return None
        params = message["params"]
        assert isinstance(params, dict)
        if params["name"] == "sleep":
            time.sleep(params["arguments"]["seconds"])
        if params["name"] == "boom":
            return self.say(message, {"error": {"code": -32602, "message": "boom went the tool"}})
        text = "z" * (flags.long * MIB) or f"echo: {params['arguments'].get('message')}"
        return self.say(message, {"result": {"content": [{"type": "text", "text": text}]}})

    def answer(self, method: str) -> dict[str, object]:
        if method == "initialize":
            capabilities = {"tools": {}}
            info = {"name": "fake", "version": "1"}
            return {"result": {"protocolVersion": self.flags.version, "capabilities": capabilities, "serverInfo": info}}
        if method == "tools/list":
            schema = {"type": "object", "properties": {}}
            return {"result": {"tools": [{"name": n, "inputSchema": schema} for n in ("echo", "sleep", "boom")]}}
        return {"error": {"code": -32601, "message": "no such method"}}

    def say(self, message: dict[str, object], answer: dict[str, object]) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer})
        self.send_response(200)
        if self.flags.session and message["method"] == "initialize":
            session = f"session-{len(self.sessions) + time.time_ns()}"
            self.sessions.add(session)
            self.send_header("Mcp-Session-Id", session)
        if not self.flags.sse:
            self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())
            return
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.event(": a comment\n\n")
        if self.flags.ask:
            self.event('data: {"jsonrpc":"2.0","id":"p","method":"ping"}\n\n')
            self.event('data: {"jsonrpc":"2.0","id":"r","method":"roots/list"}\n\n')
        noise = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x" * 900}})
        for _ in range(self.flags.flood):
            self.event(f"data: {noise}\n\n" * 1100)
        self.event('event: message\ndata: {"jsonrpc":"2.0","id":999,"result":{}}\n\ndata: not json\n\n')
        if not (self.flags.cut and message["method"] == "tools/call"):
            self.event(f"id: 7\nevent: message\ndata: {body}\n\n")

    def event(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def plain(self, status: int, text: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def note(self, message: object) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        said = {"method": self.command, "path": self.path, "headers": headers, "message": message}
        with self.flags.log.open("a") as log:
            log.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    Handler.flags = options()
    server = ThreadingHTTPServer(("127.0.0.1", Handler.flags.port), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
