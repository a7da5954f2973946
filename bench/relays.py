"""The relays: nginx and haproxy, the program in several settings, and peers by their commands."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ends import Ends, run_load
from first_day import large_files, small_files
from processes import HOST, START_TIMEOUT, Failed, Process, free_pair, free_port, running, wait_accepting

DIRECT = "direct"
NGINX = "nginx"
HAPROXY = "haproxy"
PROGRAM = "llama-appliance"
CAPTURES_OFF, KEY, PLUGINS = (f"{PROGRAM} ({what})" for what in ("captures off", "a key", "four plugins"))
MODEL = "bench"

NGINX_CONFIG = """daemon off; worker_processes 1; worker_rlimit_nofile 32768;
pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 32768; }}
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
    option http-no-delay
    http-reuse always
    timeout connect 5s
    timeout client 600s
    timeout server 600s
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
FORGETTING, KEEPING = (f"{PROGRAM} (a file{what})" for what in ("", ", contexts kept"))
"""The program with a model file instead of a configuration."""
LARGE, SMALL, HISTORY = (f"{PROGRAM} ({what})" for what in ("200 model files", "5,000 model files", "a history"))
STARTER = Path("appliance/catalog/starter/llama-appliance-starter-Q8_0.gguf")
"""Its contents are not read: the engine of the bench answers for it."""


class Relay(NamedTuple):
    """A relay that runs and has answered; or the engine itself."""

    name: str
    port: int
    pid: int | None
    """None for the engine itself, whose cost is not asked."""
    options: tuple[str, ...]
    """Options of the clients for this one: a key, a command."""


class Place(NamedTuple):
    """The words of a command: a port for itself, the port of an engine that runs, numbers of models and clients."""

    ends: Ends
    name: str
    port: int
    engine: int
    models: int
    clients: int
    """0: as many as it has places for by itself."""


class Contestant(NamedTuple):
    """One that can be started, any number of times."""

    name: str
    argv: Callable[[Place], list[str]]
    needs_engine: bool = False
    """Of the others, an engine is the child."""
    has_models: bool = True
    """It reads a configuration of models."""
    options: tuple[str, ...] = ()

    @contextmanager
    def spawned(self, ends: Ends, models: int = 1, clients: int = 0) -> Generator[tuple[Process, int]]:
        """The process, at once, and where it is going to listen."""
        with ExitStack() as stack:
            engine = stack.enter_context(engine_alone(ends)).port if self.needs_engine else 0
            place = Place(ends, self.name, free_port(), engine, models, clients)
            yield stack.enter_context(running(self.argv(place), _log(ends, self.name))), place.port

    @contextmanager
    def started(self, ends: Ends, clients: int = 0) -> Generator[Relay]:
        """The relay, once its model has answered. Failed with the end of its log when that does not come to pass."""
        with self.spawned(ends, clients=clients) as (process, port):
            try:
                wait_accepting(process, port)
                _wait_answering(ends, port, self.options)
            except Failed as cause:
                end = _log(ends, self.name).read_text(errors="replace")[-500:].strip()
                raise Failed(f"{cause}; its log ends: {end}") from None
            yield Relay(self.name, port, process.pid, self.options)


@contextmanager
def engine_alone(ends: Ends) -> Generator[Relay]:
    """The engine without a relay, which tells the share of the bench itself in a figure."""
    port = free_port()
    with running([str(ends.engine), "--port", str(port)], ends.folder / "engine.log") as engine:
        wait_accepting(engine, port)
        yield Relay(DIRECT, port, None, ())


class Program(NamedTuple):
    """How the program is started: the words before its verb."""

    words: tuple[str, ...]

    def serve(self, port: int, *flags: object) -> list[str]:
        return [*self.words, "serve", "--listen", f"{HOST}:{port}", *map(str, flags)]


class Setting(NamedTuple):
    """One way to run the program: keys of its configuration, its flags, options of its clients."""

    keys: Mapping[str, object] = MappingProxyType({})
    flags: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def contestants(ends: Ends, program: Program, peers: Mapping[str, str]) -> dict[str, Contestant]:
    """All that there are here. ``peers``: their commands by name."""
    yardsticks = [
        _yardstick(NGINX, NGINX_CONFIG, "-p", str(ends.folder), "-c"),
        _yardstick(HAPROXY, HAPROXY_CONFIG, "-f"),
    ]
    found = [
        *(yardstick for yardstick in yardsticks if shutil.which(yardstick.name)),
        *(_program(program, name, setting) for name, setting in _settings(ends.folder).items()),
        _with_file(program, FORGETTING, "off"),
        _with_file(program, KEEPING, "ram"),
        _with_folder(program, LARGE, large_files),
        _with_folder(program, SMALL, small_files),
        *(_peer(name, command) for name, command in peers.items()),
    ]
    return {contestant.name: contestant for contestant in found}


def _yardstick(name: str, text: str, *flags: str) -> Contestant:
    def argv(place: Place) -> list[str]:
        folder = place.ends.folder
        config = folder / f"{name}.conf"
        config.write_text(text.format(folder=folder, host=HOST, port=place.port, engine=place.engine), encoding="utf-8")
        return [str(shutil.which(name)), *flags, str(config)]

    return Contestant(name, argv, needs_engine=True, has_models=False)


def _program(program: Program, name: str, setting: Setting) -> Contestant:
    def argv(place: Place) -> list[str]:
        # An engine that is named is the only one, so nothing is proven in the background meanwhile.
        named = ("--config", configuration(place, setting.keys), "--engine", place.ends.engine)
        places = ("--max-connections", place.clients) if place.clients else ()
        return program.serve(place.port, *named, *places, *setting.flags)

    return Contestant(name, argv, options=setting.options)


def _with_file(program: Program, name: str, keeps: str) -> Contestant:
    def argv(place: Place) -> list[str]:
        models = place.ends.folder / "models"
        models.mkdir(exist_ok=True)
        shutil.copyfile(STARTER, models / f"{MODEL}.gguf")
        named = ("--models-dir", models, "--engine", place.ends.engine, "--keep-context", keeps)
        return program.serve(place.port, *named)

    return Contestant(name, argv)


def _with_folder(program: Program, name: str, fill: Callable[[Path], None]) -> Contestant:
    def argv(place: Place) -> list[str]:
        models = place.ends.folder / _file_name(name)
        if not models.exists():
            fill(models)
        return program.serve(place.port, "--models-dir", models, "--engine", place.ends.engine)

    return Contestant(name, argv)


def _settings(folder: Path) -> dict[str, Setting]:
    """The program by itself, and with one thing changed."""
    for name in ("one", "two", "three", "four"):
        (folder / "plugins" / name).mkdir(parents=True, exist_ok=True)
        (folder / "plugins" / name / "agent.py").write_text(PLUGIN, encoding="utf-8")
        (folder / "plugins" / name / "config.json").write_text("{}", encoding="utf-8")
    return {
        PROGRAM: Setting(),
        CAPTURES_OFF: Setting({"captureBuffer": 0}),
        KEY: Setting({}, ("--api-key", "a-key"), ("--header", "Authorization: Bearer a-key")),
        HISTORY: Setting({"store": {"path": str(folder / "history.db")}}),
        PLUGINS: Setting({}, ("--plugins", str(folder / "plugins")), ("--say", "/one /two /three /four ")),
    }


def _peer(name: str, command: str) -> Contestant:
    """A command in which {port}, {config}, {engine}, {engine_port} and {engine_program} are filled in."""

    def argv(place: Place) -> list[str]:
        words = {
            "port": str(place.port),
            "config": str(configuration(place, {})) if "{config}" in command else "",
            "engine": f"http://{HOST}:{place.engine}",
            "engine_port": str(place.engine),
            "engine_program": str(place.ends.engine),
        }
        return [word.format(**words) for word in shlex.split(command)]

    needs_engine = "{engine}" in command or "{engine_port}" in command
    return Contestant(name, argv, needs_engine=needs_engine, has_models="{config}" in command)


def configuration(place: Place, keys: Mapping[str, object]) -> Path:
    """A file in llama-swap's schema: so many models, each the engine."""
    model = {
        "cmd": f"{place.ends.engine} --port ${{PORT}}",
        "proxy": f"http://{HOST}:${{PORT}}",
        "checkEndpoint": "/health",
        "concurrencyLimit": 20000,
    }
    path = place.ends.folder / f"{_file_name(place.name)}-{place.models}.yaml"
    models = {MODEL: model} | {f"{MODEL}-{number}": model for number in range(1, place.models)}
    # Each program counts its engines' ports from here on, and each is given a start of its own.
    path.write_text(json.dumps({"startPort": free_pair(), **keys, "models": models}), encoding="utf-8")
    return path


def _file_name(name: str) -> str:
    return re.sub(r"[^\w-]+", "-", name)


def _log(ends: Ends, name: str) -> Path:
    return ends.folder / f"{_file_name(name)}.log"


def _wait_answering(ends: Ends, port: int, options: tuple[str, ...]) -> None:
    """Until the model has answered; plugins are read beside the start, so they may be missing at first."""
    until = time.monotonic() + START_TIMEOUT
    while True:
        try:
            run_load(ends, "json", port, "--connections", 1, "--seconds", 5, "--most", 3, *options)
            return
        except Failed:
            if time.monotonic() > until:
                raise
        time.sleep(0.05)
