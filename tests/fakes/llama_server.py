#!/usr/bin/env -S python3 -S -E
"""A stand-in for `llama-server`: its flags, routes, streams, router-child protocol and signals, and faults on request.

It needs the standard library alone, shares no code with the product, and starts in a few hundredths of a second
(`python -S -E llama_server.py --model x.gguf --port 0 ...`). `fake_options` lists what can be made to go wrong. The
model must be a file that begins with ``GGUF``; its text is always the same story. The contract tests hold it to
what a real llama-server does.
"""

from __future__ import annotations

import _thread
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

import fake_inference  # noqa: F401  # pyright: ignore[reportUnusedImport] - registers its routes
from fake_dialects import BUILD
from fake_generation import JSON, die
from fake_http import ClientLeft, Connection, Request
from fake_introspection import slot_action
from fake_json import encode
from fake_options import Options, parse
from fake_state import ERROR_TYPES, ROUTES, ApiError, State

PUBLIC = ("/health", "/v1/health", "/")
STATE_LINE = "cmd_child_to_router:state:"
EXIT_LINE = "cmd_router_to_child:exit"
HELP = """-c,    --ctx-size N                     size of the prompt context (default: 0)
                                        (env: LLAMA_ARG_CTX_SIZE)
-cram, --cache-ram N                    set the maximum cache size in MiB (default: 8192)
--host HOST                             ip address to listen (default: 127.0.0.1)
--port PORT                             port to listen (default: 8080)
"""
"""What ``--help`` prints, unless ``FAKE_HELP`` has another text."""
HUGE = 2 << 20
"""Characters of a huge log line: beyond the 1 MiB up to which a router reads a line."""


def log(level: str, text: str) -> None:
    sys.stderr.write(f"0.00.000.000 {level} srv  fake_llama: {text}\n")
    sys.stderr.flush()


class Server:
    """One run. The main thread loads, then waits for a reason to end; every connection has a thread."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.state = State(options)
        self.is_child = "LLAMA_SERVER_ROUTER_PORT" in os.environ
        self.stopping = threading.Event()
        self.active = 0
        self.idle = threading.Condition()

    def run(self) -> int:
        options = self.options
        log("I", f"build_info: {BUILD}")
        try:
            listener = self._bind()
        except OSError:
            log("E", f"couldn't bind HTTP server socket, hostname: {options.host}, port: {options.port}")
            return 1
        options.port = listener.getsockname()[1]
        start(self._accept, listener)
        if options.huge_log_lines:
            print("x" * HUGE, flush=True)
            log("I", "y" * HUGE)
        if options.log_flood:
            start(self._flood)
        if not self._load():
            return options.misbehaviour.exit_code
        self._catch_signals()
        for number in range(1, options.log_lines + 1):
            log("D", f"line {number} of {options.log_lines}")
        self.state.ready = True
        log("I", f"listening on http://{options.host}:{options.port}")
        time.sleep(options.late_words)
        self.tell("ready", self.state.info())
        if self.is_child:
            start(self._obey_router)
        while not self.stopping.wait(0.2):  # a signal just before a wait without an end would not be looked at
            pass
        self.state.slots.stopped.set()
        listener.close()
        with self.idle:
            self.idle.wait_for(lambda: self.active == 0)
        log("I", "cleaning up before exit...")
        return 0

    def _bind(self) -> socket.socket:
        once = self.options.port_taken_once
        if once and not os.path.exists(once):  # noqa: PTH110 - pathlib costs 5 ms of start
            with open(once, "w", encoding="utf-8"):  # noqa: PTH123
                raise OSError("told to")
        family = socket.AF_INET6 if ":" in self.options.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.options.host, self.options.port))
        listener.listen(512)
        return listener

    def _load(self) -> bool:
        """Pretend to load, telling the router how far it is; False when it failed."""
        options = self.options
        log("I", f"loading model '{options.model}'")
        started = time.monotonic()
        while options.never_ready or time.monotonic() - started < options.load_delay:
            done = min(1.0, (time.monotonic() - started) / options.load_delay) if options.load_delay else 0.0
            self.tell("loading", {"stages": ["text_model"], "current": "text_model", "value": done})
            time.sleep(min(0.2, max(0.01, options.load_delay - (time.monotonic() - started))))
        why = "told to fail" if options.fail_to_load else model_fault(options.model)
        if why:
            log("E", f"error loading model: {why}")
            log("E", f"failed to load model, '{options.model}'")
            return False
        self.tell("loading", {"stages": ["text_model"], "current": "text_model", "value": 1.0})
        return True

    def tell(self, state: str, payload: object) -> None:
        """Report to the router, when there is one."""
        if self.is_child:
            print(STATE_LINE + json.dumps({"state": state, "payload": payload}, separators=(",", ":")), flush=True)

    def _catch_signals(self) -> None:
        """From ready on, as in llama-server: before that a signal is simply deadly."""

        def stop(signum: int, frame: object) -> None:
            if self.options.ignore_sigterm:
                log("W", f"ignoring signal {signum}")
            elif self.stopping.is_set():
                os._exit(1)
            else:
                # The main thread runs this, and may hold the locks of this event and of `threading` itself.
                _thread.start_new_thread(self.stopping.set, ())

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)

    def _obey_router(self) -> None:
        for line in sys.stdin:
            if EXIT_LINE in line and not self.options.ignore_exit_line:
                self.stopping.set()
        if not self.stopping.is_set():
            os._exit(1)

    def _flood(self) -> None:
        while not self.stopping.is_set():
            log("I", "a log line of no interest, one of very many " * 4)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            connection = Connection(sock)
            try:
                while not connection.closing:
                    request = connection.read_request()
                    with self.idle:
                        self.active += 1
                    try:
                        self._answer(connection, request)
                    finally:
                        with self.idle:
                            self.active -= 1
                            self.idle.notify_all()
            except (ClientLeft, ValueError):
                return

    def _answer(self, connection: Connection, request: Request) -> None:
        path = request.path.removeprefix(self.options.api_prefix)
        try:
            if request.method == "OPTIONS":
                allow = ("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
                connection.respond(200, "text/html", b"", allow, ("Access-Control-Allow-Headers", "*"))
                return
            if path not in PUBLIC and not self._has_key(request):
                raise ApiError(401, "Invalid API Key")
            if not self.state.ready:
                raise ApiError(503, "Loading model")
            if path.startswith("/slots/") and request.method == "POST":
                slot_action(self.state, connection, request, path.removeprefix("/slots/"))
                return
            handler = ROUTES.get(("GET" if request.method == "HEAD" else request.method, path))
            if handler is None:
                raise ApiError(404, "File Not Found")
            handler(self.state, connection, request)
        except ApiError as error:
            connection.respond(error.status, JSON, encode({"error": envelope(error)}))

    def _has_key(self, request: Request) -> bool:
        if not self.options.api_key:
            return True
        given = request.headers.get("authorization") or request.headers.get("x-api-key", "")
        return given.removeprefix("Bearer ") in self.options.api_key.split(",")


def envelope(error: ApiError) -> dict[str, object]:
    """Fields in llama-server's order, which differs between its middleware and its handlers."""
    kind = ERROR_TYPES.get(error.status, "server_error")
    if error.status in (401, 404, 503):
        return {"message": error.message, "type": kind, "code": error.status}
    return {"code": error.status, "message": error.message, "type": kind}


def model_fault(path: str) -> str:
    """Why this file cannot be loaded; empty when it can."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs 5 ms of start
            magic = file.read(4)
    except OSError as cause:
        return f"failed to open GGUF file ({cause.strerror})"
    return "" if magic == b"GGUF" else f"invalid magic characters: {magic!r}, expected 'GGUF'"


def start(target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()


def main() -> None:
    argv = sys.argv[1:]
    if "--version" in argv:
        sys.stderr.write(f"version: 11434 ({BUILD})\nbuilt with Python for tests\n")
        return
    if "--list-devices" in argv:
        print("Available devices:\n  (none)")
        return
    if "--help" in argv:
        print(os.environ.get("FAKE_HELP", HELP))
        return
    try:
        options = parse(argv)
    except ValueError as cause:
        log("E", str(cause))
        sys.exit(1)
    status = Server(options).run()
    sys.stdout.flush()
    die(status)  # not sys.exit: threads that still write to somebody must not hold the process


if __name__ == "__main__":
    main()
