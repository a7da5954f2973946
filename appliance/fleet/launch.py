"""How a model process is started, reached, asked whether it is ready, and stopped: one value for both kinds of model.

A model on disk runs on the program's own engine, which speaks llama-server's child protocol. A configured model is
whatever its ``cmd`` starts (llama-swap's rules, 0bdb3720): nothing is known of it but its URL and its check endpoint.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from appliance.core.config.types import ModelConfig
from appliance.core.model import Model, engine_flags
from appliance.core.settings import FleetSettings
from appliance.core.words import split_command
from appliance.engines.found import Engine
from appliance.errors import EngineNotFound, ModelFailedToStart
from appliance.fleet.command import LOOPBACK, model_command
from appliance.platform.env import child_env, own_env
from appliance.upstream.address import address_of
from appliance.upstream.client import Address

ABORT_TIME = 5.0
"""Seconds that a configured server gets to end when it is stopped while it starts."""
WINDOWS = sys.platform == "win32"


class Launch(Struct, frozen=True, kw_only=True):
    """Everything that `ModelProcess` needs to own one process. Times in seconds."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    address: Address
    probe: str | None
    """Path that answers 200 when the model is ready; None: it is ready as soon as it runs."""
    protocol: bool
    """It prints llama-server's state lines and takes its exit line."""
    stop_command: str = ""
    """Command that stops it, with ``${PID}``; empty: SIGTERM."""
    load_timeout: float
    stop_timeout: float
    abort_timeout: float = 0.0
    """How long it gets to end when it is stopped while it loads; 0: it is killed."""

    def stop_argv(self, pid: int) -> list[str]:
        """Empty when there is no command, or none that can be split."""
        return split_command(self.stop_command.replace("${PID}", str(pid)), windows=WINDOWS)


def engine_launch(model: Model, engine: Engine | None, settings: FleetSettings, threads: int) -> Launch:
    """The process of a model on disk, on a free loopback port with a key of its own. Raises EngineNotFound."""
    if engine is None:
        raise EngineNotFound(("--engine", "PATH"))
    port = free_port()
    argv = model_command(
        engine.command,
        backend=engine.backend,
        model_id=model.id,
        path=str(model.path),
        port=port,
        threads=threads,
        metrics=settings.metrics,
        defaults=(*engine_flags(model), *model.args),
        overrides=settings.engine_args,
    )
    key = secrets.token_urlsafe(24)
    env = child_env(os.environ, frozen=_frozen())
    env["LLAMA_API_KEY"] = key
    env["LLAMA_SERVER_ROUTER_PORT"] = str(port)
    return Launch(
        argv=argv,
        env=env,
        address=Address(LOOPBACK, port, key, model.id),
        probe="/v1/models",
        protocol=True,
        load_timeout=settings.load_timeout,
        stop_timeout=settings.stop_timeout,
    )


def configured_launch(model_id: str, config: ModelConfig) -> Launch:
    """The process of a configured model. Raises ModelFailedToStart when there is no command."""
    if not config.argv:
        raise ModelFailedToStart(model_id, f"its cmd is empty; write the server's command under models.{model_id}.cmd")
    env = own_env(os.environ, frozen=_frozen())
    for setting in config.env:
        name, _, value = setting.partition("=")
        env[name] = value
    program = config.argv[0]
    if shutil.which(program, path=env.get("PATH")) is None:
        raise ModelFailedToStart(
            model_id, f"its command '{program}' cannot be executed: there is no such program in PATH, or it is not one"
        )
    check = config.check_endpoint.strip()
    return Launch(
        argv=tuple(config.argv),
        env=env,
        address=address_of(config.proxy, model_id, timeouts=config.timeouts),
        probe=None if check == "none" else _path_of(check),
        protocol=False,
        stop_command=config.cmd_stop,
        load_timeout=config.health_check_timeout,
        stop_timeout=config.unload_timeout,
        abort_timeout=ABORT_TIME,
    )


def port_conflict(config: ModelConfig, address: Address) -> str | None:
    """Why the server cannot listen where its requests will go: somebody else does. None when it can, or cannot be told.

    Only a port that the command names is looked at: a command may also stand for a server that runs already.
    """
    if str(address.port) not in config.cmd or address.host not in ("localhost", LOOPBACK, "::1"):
        return None
    with socket.socket() as sock:
        if not WINDOWS:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((LOOPBACK, address.port))
        except OSError as error:
            return f"port {address.port} is taken by another program ({error.strerror}); stop it, or change startPort"
    return None


def same_launch(old: Model, new: Model | None) -> bool:
    """Whether a process that was started for ``old`` is what ``new`` asks for."""
    if new is None:
        return False
    if old.config is None or new.config is None:
        return old == new
    return _launched(old.config) == _launched(new.config)


def _launched(config: ModelConfig) -> tuple[object, ...]:
    """What of a configuration a running process has been started with, or is reached by."""
    return config.argv, config.env, config.proxy, config.check_endpoint, config.timeouts


def free_port() -> int:
    """A loopback port that was free a moment ago; a child that loses the race for it exits, and is started again."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        port: int = sock.getsockname()[1]
        return port


def _path_of(check: str) -> str:
    """A check endpoint may be a path or a whole URL, of which the path counts."""
    path = urlsplit(check).path if "://" in check else check
    return path if path.startswith("/") else f"/{path}"


def _frozen() -> bool:
    return bool(getattr(sys, "frozen", False))
