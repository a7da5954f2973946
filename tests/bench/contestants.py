"""What is measured: the yardstick relays and the program itself, each as a way to be started on a port."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
from peers import HERE, MODEL, Peers
from processes import HOST, free_port, running, wait_listening

ROOT = HERE.parent.parent
STARTER = ROOT / "appliance" / "catalog" / "starter" / "llama-appliance-starter-Q8_0.gguf"
FROZEN = ROOT / "dist" / "llama-appliance" / ("llama-appliance.exe" if sys.platform == "win32" else "llama-appliance")
PROGRAM = "llama-appliance"
NGINX = "nginx"

NGINX_CONFIG = """daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 1024; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000;
    upstream model {{ server {host}:{upstream}; keepalive 64; keepalive_requests 1000000; }}
    server {{
        listen {host}:{port};
        location / {{
            proxy_pass http://model; proxy_buffering off; proxy_http_version 1.1; proxy_set_header Connection "";
        }}
    }}
}}
"""


class Contestant(NamedTuple):
    """A relay that runs. ``upstream_below`` tells that its model process is among its descendants."""

    process: psutil.Popen
    port: int
    upstream_below: bool


def names() -> tuple[list[str], list[str]]:
    """The contestants of this machine, yardsticks first; and what is left out, with its reason."""
    relays = ["Trio + h11", "Hypercorn ASGI + h11 client"]
    if shutil.which(NGINX):
        return [NGINX, *relays, PROGRAM], []
    return [*relays, PROGRAM], ["nginx: not installed, so there are no ratios to it"]


@contextmanager
def contestant(name: str, peers: Peers) -> Generator[Contestant]:
    """Start one, with its own upstream behind it, and wait until both answer."""
    if name == PROGRAM:
        port = free_port()
        with running(serve(port, str(peers.upstream), {MODEL: STARTER}), peers.folder / "serve.log") as process:
            wait_listening(process, port)
            yield Contestant(process, port, upstream_below=True)
        return
    upstream_port, port = free_port(), free_port()
    with (
        running([str(peers.upstream), "--port", str(upstream_port)], peers.folder / "upstream.log") as upstream,
        running(_relay(name, port, upstream_port, peers.folder), peers.folder / "relay.log") as process,
    ):
        wait_listening(upstream, upstream_port)
        wait_listening(process, port)
        yield Contestant(process, port, upstream_below=False)


def _relay(name: str, port: int, upstream_port: int, folder: Path) -> list[str]:
    if name == NGINX:
        config = folder / "nginx.conf"
        config.write_text(NGINX_CONFIG.format(folder=folder, host=HOST, port=port, upstream=upstream_port))
        return [str(shutil.which(NGINX)), "-p", str(folder), "-c", str(config)]
    script = "trio_h11.py" if name.startswith("Trio") else "hypercorn_asgi.py"
    return [sys.executable, str(HERE / "relays" / script), str(port), str(upstream_port)]


def serve(
    port: int, engine: str | None, models: dict[str, Path], *flags: str, program: Path | None = None
) -> list[str]:
    """The command line of the program, from source or frozen, with these models and no others."""
    start = [str(program)] if program else [sys.executable, "-m", "appliance"]
    named = [word for name, path in models.items() for word in ("--model", f"{name}={path}")]
    chosen = ["--engine", engine] if engine else []
    return [*start, "serve", "--listen", f"{HOST}:{port}", "--no-starter", *chosen, *named, *flags]


def serve_configuration(port: int, configuration: Path, program: Path | None = None) -> list[str]:
    """The command line of the program, from source or frozen, with a configuration."""
    start = [str(program)] if program else [sys.executable, "-m", "appliance"]
    return [*start, "serve", "--listen", f"{HOST}:{port}", "--config", str(configuration)]
