"""A runnable MCP server on standard input and output, with a flag for every misbehaviour; none of the product's code.

Tools: echo, add, fail (isError), boom (RPC error), sleep, die, about (pid, cwd, environment), asked (what the client
answered to questions of the server), structured, picture.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

NAMES = ("echo", "add", "fail", "boom", "sleep", "die", "about", "asked", "structured", "picture")
CAN = {"tools": {}, "prompts": {}, "resources": {}}
MIB = 1 << 20


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", default=",".join(NAMES), help="names of the tools that are listed")
    parser.add_argument("--pages", type=int, default=1, help="over how many pages")
    parser.add_argument("--description", type=int, default=0, help="KiB of what is told of each tool, besides")
    parser.add_argument("--log", type=Path, help="every message received is appended to this file")
    parser.add_argument("--pid-file", type=Path, help="pids of this process and its grandchildren are appended")
    parser.add_argument("--exit-at-start", type=int)
    parser.add_argument("--hang-at", default="", help="the method that is never answered")
    parser.add_argument("--refuse", default="", help="the method that is answered with an error")
    parser.add_argument("--garbage", action="store_true", help="lines that are no messages before every answer")
    parser.add_argument("--stale", action="store_true", help="answers with other ids before every answer")
    parser.add_argument("--wrong-ids", action="store_true", help="answers to tools/call with other ids only")
    parser.add_argument("--flood", type=int, default=0, help="MiB of notifications before every answer to tools/call")
    parser.add_argument("--flood-for-ever", action="store_true", help="notifications without an end, once called")
    parser.add_argument("--long-line", type=int, default=0, help="a line of so many MiB before every tools/call answer")
    parser.add_argument("--long-answer", type=int, default=0, help="MiB of text in every answer to tools/call")
    parser.add_argument("--burst", action="store_true", help="notification and answer in one write")
    parser.add_argument("--ask", action="store_true", help="ping, roots/list and sampling before every answer")
    parser.add_argument("--die-after", type=int, default=0, help="exit after so many answers to tools/call")
    parser.add_argument("--errors", type=int, default=0, help="bytes written to standard error at the start")
    parser.add_argument("--grandchild", action="store_true", help="a grandchild that holds all pipes")
    parser.add_argument("--ignore-term", action="store_true", help="SIGTERM and the end of the input do nothing")
    parser.add_argument("--deaf-after", default="", help="the method after which nothing is read any more")
    parser.add_argument("--close-output-at", default="", help="the method that closes standard output")
    return parser.parse_args()


class Server:
    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags = flags
        self.calls = 0
        self.replies: list[object] = []

    def run(self) -> None:
        flags = self.flags
        note(flags.pid_file, os.getpid())
        if flags.ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if flags.grandchild:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            note(flags.pid_file, child.pid)
        if flags.errors:
            sys.stderr.write("e" * flags.errors + "the last words\n")
            sys.stderr.flush()
        if flags.exit_at_start is not None:
            sys.exit(flags.exit_at_start)
        while line := sys.stdin.buffer.readline():
            self.take(line)
        while flags.ignore_term:
            time.sleep(60)

    def take(self, line: bytes) -> None:
        if self.flags.log:
            with self.flags.log.open("ab") as log:
                log.write(line)
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if number is None or method is None:
            return
        if method == self.flags.hang_at:
            return
        if method == self.flags.close_output_at:
            os.close(1)
            time.sleep(60)
        if method == self.flags.refuse:
            say({"jsonrpc": "2.0", "id": number, "error": {"code": -32000, "message": "not today"}})
            return
        self.before(method, number)
        answer = {"jsonrpc": "2.0", "id": number, **self.answer(method, message.get("params") or {})}
        if self.flags.wrong_ids and method == "tools/call":
            answer["id"] = number + 1000
        told = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}})
        write((told + "\n" if self.flags.burst else "") + json.dumps(answer) + "\n")
        if method == self.flags.deaf_after:
            time.sleep(60)
        if method == "tools/call" and self.flags.die_after and self.calls >= self.flags.die_after:
            sys.exit(7)

    def before(self, method: str, number: int) -> None:
        flags = self.flags
        if flags.garbage:
            write('not json\n\n[1, 2]\n{"jsonrpc":"2.0"}\n"text"\n\x00\x01\n{"id":{},"result":1}\n')
        if flags.stale:
            for other in (number - 1, 0, number + 1, str(number), -number, None):
                say({"jsonrpc": "2.0", "id": other, "result": {"content": [{"type": "text", "text": "stale"}]}})
        if flags.ask:
            self.ask_client()
        if method != "tools/call":
            return
        self.calls += 1
        line = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x" * 900}}) + "\n"
        for _ in range(flags.flood):
            write(line * 1100)
        while flags.flood_for_ever:
            write(line * 1100)
        if flags.long_line:
            for _ in range(flags.long_line):
                write("y" * MIB)
            write("\n")

    def ask_client(self) -> None:
        for method in ("ping", "roots/list", "sampling/createMessage"):
            say({"jsonrpc": "2.0", "id": f"server-{method}", "method": method, "params": {}})
            self.replies.append(json.loads(sys.stdin.buffer.readline()))

    def answer(self, method: str, params: dict[str, object]) -> dict[str, object]:
        if method == "initialize":
            info = {"name": "fake", "version": "1"}
            return {"result": {"protocolVersion": "2024-11-05", "capabilities": CAN, "serverInfo": info}}
        if method == "tools/list":
            return {"result": self.page(params)}
        if method == "tools/call":
            return self.call(str(params["name"]), params["arguments"])
        if method == "prompts/list":
            arguments = [{"name": "topic", "description": "what about", "required": True}]
            return {"result": {"prompts": [{"name": "poem", "description": "a poem", "arguments": arguments}]}}
        if method == "prompts/get":
            topic = dict(params["arguments"]).get("topic")  # type: ignore[arg-type]
            if topic is None:
                return {"error": {"code": -32602, "message": "topic is missing"}}
            told = {"role": "user", "content": {"type": "text", "text": f"Write a poem about {topic}."}}
            return {"result": {"messages": [told]}}
        if method == "resources/list":
            kinds = {"notes": "text/plain", "picture": "image/png"}
            listed = [{"uri": f"fake://{n}", "name": n, "mimeType": kind} for n, kind in kinds.items()]
            return {"result": {"resources": listed}}
        if method == "resources/read" and params["uri"] == "fake://notes":
            return {"result": {"contents": [{"uri": "fake://notes", "text": "the magic word is zebra"}]}}
        if method == "resources/read" and params["uri"] == "fake://picture":
            return {"result": {"contents": [{"uri": "fake://picture", "blob": "AAAA", "mimeType": "image/png"}]}}
        return {"error": {"code": -32601, "message": f"Method not found: {method}"}}

    def page(self, params: dict[str, object]) -> dict[str, object]:
        names = [name for name in self.flags.tools.split(",") if name]
        at = int(str(params.get("cursor", 0)))
        size = -(-len(names) // self.flags.pages)
        schema = {"type": "object", "properties": {"message": {"type": "string"}}}
        more = "x" * (self.flags.description << 10)
        tools = [{"name": n, "description": f"does {n}{more}", "inputSchema": schema} for n in names[at : at + size]]
        return {"tools": tools} | ({"nextCursor": str(at + size)} if at + size < len(names) else {})

    def call(self, name: str, given: object) -> dict[str, object]:
        assert isinstance(given, dict)
        match name:
            case "boom":
                return {"error": {"code": -32602, "message": "boom went the tool"}}
            case "fail":
                return {"result": {"content": parts(given.get("message", "")), "isError": True}}
            case "sleep":
                time.sleep(float(given["seconds"]))
                return {"result": {"content": parts("slept")}}
            case "die":
                sys.stderr.write("dying on purpose\n")
                sys.stderr.flush()
                os._exit(int(given.get("status", 3)))
            case "about":
                about = {"pid": os.getpid(), "cwd": str(Path.cwd()), "env": dict(os.environ)}
                return {"result": {"content": parts(json.dumps(about))}}
            case "asked":
                return {"result": {"content": parts(json.dumps(self.replies))}}
            case "add":
                return {"result": {"content": parts(str(given["a"] + given["b"]))}}
            case "structured":
                return {"result": {"structuredContent": {"n": 1}}}
            case "picture":
                return {"result": {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}}
            case _:
                text = "z" * (self.flags.long_answer * MIB) or str(given.get("message", ""))
                return {"result": {"content": [*parts(f"echo: {text}"), *parts("second")]}}


def parts(text: str) -> list[dict[str, object]]:
    return [{"type": "text", "text": text}] if text else []


def note(file: Path | None, pid: int) -> None:
    if file is not None:
        with file.open("a") as pids:
            pids.write(f"{pid}\n")


def say(message: object) -> None:
    write(json.dumps(message) + "\n")


def write(text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    Server(options()).run()
