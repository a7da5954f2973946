"""What is measured: nginx, haproxy, the program in several settings, and peers by their commands."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ends import Ends, run_load
from processes import HOST, START_TIMEOUT, Failed, free_port, running, wait_accepting

DIRECT = "direct"
NGINX = "nginx"
HAPROXY = "haproxy"
PROGRAM = "llama-appliance"
CAPTURES_OFF, KEY, PLUGINS = (f"{PROGRAM} ({what})" for what in ("captures off", "a key", "four plugins"))
MODEL = "bench"

NGINX_CONFIG = """daemon off; worker_processes 1; worker_rlimit_nofile 16384;
pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 16384; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000; client_max_body_size 0;
    upstream model {{ server {host}:{engine}; keepalive 64; keepalive_requests 1000000000; }}
    server {{
        listen {host}:{port} backlog=4096;
        location / {{
            proxy_pass http://model; proxy_buffering off; proxy_request_buffering off; proxy_http_version 1.1;
            proxy_set_header Connection ""; proxy_read_timeout 600s;
        }}
    }}
}}
"""
"""One worker. Bodies are not buffered: the program does not put them on the disk either."""

HAPROXY_CONFIG = """global
    nbthread 1
    maxconn 8000
defaults
    mode http
    timeout connect 5s
    timeout client 600s
    timeout server 600s
    http-reuse always
frontend clients
    bind {host}:{port}
    default_backend model
backend model
    server engine {host}:{engine}
"""


PLUGIN = """
async def on_request(request, context):
    return None


async def on_response(response, context):
    return None


async def on_stream(events, context):
    async for event in events:
        yield event
"""
"""One that does nothing."""


class Relay(NamedTuple):
    """A relay that runs, or the engine itself."""

    name: str
    port: int
    pid: int | None
    """None for the engine itself: what that costs is not asked."""
    options: tuple[str, ...] = ()
    """What the clients say to this one besides: a key, a command."""


class Setting(NamedTuple):
    """One way to run the program: keys of its configuration, flags, and what clients say besides."""

    keys: Mapping[str, object] = MappingProxyType({})
    flags: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class Program(NamedTuple):
    """How the program is started: the words before ``serve``."""

    words: tuple[str, ...]

    def serve(self, port: int, config: Path, *flags: str) -> list[str]:
        return [*self.words, "serve", "--config", str(config), "--listen", f"{HOST}:{port}", *flags]


Start = Callable[[], AbstractContextManager[Relay]]


def settings(folder: Path) -> dict[str, Setting]:
    """The program by itself, and with one thing changed."""
    for name in ("one", "two", "three", "four"):
        (folder / "plugins" / name).mkdir(parents=True, exist_ok=True)
        (folder / "plugins" / name / "agent.py").write_text(PLUGIN, encoding="utf-8")
        (folder / "plugins" / name / "config.json").write_text("{}", encoding="utf-8")
    return {
        PROGRAM: Setting(),
        CAPTURES_OFF: Setting({"captureBuffer": 0}),
        KEY: Setting({}, ("--api-key", "a-key"), ("--header", "Authorization: Bearer a-key")),
        PLUGINS: Setting({}, ("--plugins", str(folder / "plugins")), ("--say", "/one /two /three /four ")),
    }


def contestants(ends: Ends, program: Program, peers: dict[str, str]) -> tuple[dict[str, Start], list[str]]:
    """How each is started; and what is left out, with its reason."""
    found: dict[str, Start] = {DIRECT: lambda: direct(ends)}
    left_out: list[str] = []
    for name, text, argv in ((NGINX, NGINX_CONFIG, ["-p", str(ends.folder), "-c"]), (HAPROXY, HAPROXY_CONFIG, ["-f"])):
        if shutil.which(name):
            found[name] = partial(_yardstick, ends, name, text, argv)
        else:
            left_out.append(f"{name}: not installed")
    for name, setting in settings(ends.folder).items():
        found[name] = partial(_program, ends, program, name, setting)
    for name, command in peers.items():
        found[name] = partial(_peer, ends, name, command)
    return found, left_out


@contextmanager
def direct(ends: Ends) -> Generator[Relay]:
    """The engine itself."""
    port = free_port()
    with running([str(ends.engine), "--port", str(port)], ends.folder / "engine.log") as engine:
        wait_accepting(engine, port)
        yield Relay(DIRECT, port, None)


@contextmanager
def _yardstick(ends: Ends, name: str, text: str, argv: list[str]) -> Generator[Relay]:
    config, port = ends.folder / f"{name}.conf", free_port()
    with direct(ends) as engine:
        config.write_text(text.format(folder=ends.folder, host=HOST, port=port, engine=engine.port), encoding="utf-8")
        with _started(ends, name, port, [str(shutil.which(name)), *argv, str(config)]) as relay:
            yield relay


@contextmanager
def _program(ends: Ends, program: Program, name: str, setting: Setting) -> Generator[Relay]:
    port = free_port()
    config = configuration(ends, name, **setting.keys)
    # An engine that is named is the only one, so nothing is proven in the background meanwhile.
    argv = program.serve(port, config, "--engine", str(ends.engine), *setting.flags)
    with _started(ends, name, port, argv, setting.options) as relay:
        yield relay


@contextmanager
def _peer(ends: Ends, name: str, command: str) -> Generator[Relay]:
    """A command in which {port}, {config}, {engine} (the URL of one that runs) and {engine_program} are filled in."""
    port = free_port()
    with direct(ends) as engine:
        words = {
            "port": str(port),
            "config": str(configuration(ends, name)),
            "engine": f"http://{HOST}:{engine.port}",
            "engine_program": str(ends.engine),
        }
        argv = [word.format(**words) for word in shlex.split(command)]
        with _started(ends, name, port, argv) as relay:
            yield relay


def configuration(ends: Ends, name: str, **keys: object) -> Path:
    """A file in llama-swap's schema, with one model: the engine."""
    model = {
        "cmd": f"{ends.engine} --port ${{PORT}}",
        "proxy": f"http://{HOST}:${{PORT}}",
        "checkEndpoint": "/health",
        "concurrencyLimit": 4000,
    }
    path = ends.folder / f"{_file_name(name)}.yaml"
    # Every relay counts its engines' ports from here on, so each is given a start of its own.
    path.write_text(json.dumps({"startPort": free_port(), **keys, "models": {MODEL: model}}), encoding="utf-8")
    return path


def _file_name(name: str) -> str:
    return re.sub(r"[^\w-]+", "-", name)


@contextmanager
def _started(ends: Ends, name: str, port: int, argv: list[str], options: tuple[str, ...] = ()) -> Generator[Relay]:
    """Run one until its model has answered. Failed with the end of its log when that does not come to pass."""
    log = ends.folder / f"{_file_name(name)}.log"
    with running(argv, log) as process:
        try:
            wait_accepting(process, port)
            _wait_answering(ends, port, options)
        except Failed as cause:
            raise Failed(f"{cause}; its log ends: {log.read_text(errors='replace')[-500:].strip()}") from None
        yield Relay(name, port, process.pid, options)


def _wait_answering(ends: Ends, port: int, options: tuple[str, ...]) -> None:
    """Until the model has answered, and plugins, which are read beside the start, are there."""
    until = time.monotonic() + START_TIMEOUT
    while True:
        try:
            run_load(ends, "json", port, "--connections", 1, "--seconds", 5, "--most", 3, *options)
            return
        except Failed:
            if time.monotonic() > until:
                raise
        time.sleep(0.05)
