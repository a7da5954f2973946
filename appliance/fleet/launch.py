"""The launch of a model process: its start, address, readiness check and stop; one value for both kinds of model.

A model on disk runs on the program's own engine, which speaks llama-server's child protocol. A configured model is
whatever its ``cmd`` starts (llama-swap's rules, 0bdb3720): nothing is known of it but its URL and its check endpoint.
It also judges which program holds the port of a model.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from urllib.parse import quote, urlsplit

from msgspec import Struct, structs

from appliance.core.command_words import split_command
from appliance.core.config.types import ModelConfig
from appliance.core.engine import Engine
from appliance.core.memory import DeviceUse, FitPlan
from appliance.core.models.model import Model, start_flags, started_with
from appliance.core.rpc_workers import NO_DEBUGGER, Crew, RpcWorker, command_on, stands_for_engine, workers_named
from appliance.core.settings import FleetSettings
from appliance.engines.named import is_this_program
from appliance.errors import ModelFailedToStart
from appliance.platform.children import inherited_env, own_env
from appliance.platform.console import is_frozen
from appliance.platform.ports import LOOPBACK, free_port
from appliance.upstream.address import address_of
from appliance.upstream.client import Address

LAUNCHERS = frozenset(
    (
        "docker",
        "podman",
        "nerdctl",
        "ctr",
        "crictl",
        "lxc",
        "incus",
        "kubectl",
        "ssh",
        "wsl",
        "systemctl",
        "systemd-run",
    )
)
"""Commands after which a process listens that is not their child."""
HERE = ("localhost", LOOPBACK, "::1")
ABORT_TIME = 5.0
"""Seconds that a configured server gets to end when it is stopped while it starts."""
ON_CPU = ("--device", "none")
PATH_SAFE = "/%:@!$&'()*+,;=~-._?"
NOBODY = Crew()
NOTHING: Mapping[str, str] = {}
NO_USE: Mapping[str, DeviceUse] = {}
WINDOWS = sys.platform == "win32"
BATCH = "512"
BATCH_FLAGS = frozenset(("-b", "--batch-size", "-ub", "--ubatch-size"))
"""llama-server looks between logical batches whether a request was cancelled. At its default of 2048 tokens an
abandoned prompt held its slot for up to 1.9 s on a busy machine; it computes in steps of 512 anyway."""
TELLS_BUFFERS = "4"
VERBOSITY_FLAGS = frozenset(("-lv", "--verbosity", "--log-verbosity", "-v", "--verbose", "--log-verbose"))
"""llama-server (b11434) says from verbosity 4 on which buffers it has allocated on which device."""


def will_listen(config: ModelConfig, address: Address) -> bool:
    """True if the command itself gets the port that its requests will go to.

    A command may also stand for a server that runs already, or elsewhere; then its port is nobody's business. A port
    within a URL is one that is called, not one that is listened on.
    """
    if address.host.lower() not in HERE:
        return False
    number = re.compile(rf"(?<!\d){address.port}(?!\d)")
    return any(number.search(word) and "://" not in word for word in (*config.argv, *config.env))


def listens_itself(config: ModelConfig, address: Address) -> bool:
    """True if the port must be held by the command's own process or a descendant.

    Not where the command is a tool that has another process listen: the daemon of containers, another machine.
    """
    if config.compat.foreign_port or not will_listen(config, address):
        return False
    words = (PurePath(word).stem.lower() for part in config.argv for word in part.split())
    return LAUNCHERS.isdisjoint(words)


def is_taken(address: Address) -> bool:
    """True if a process listens there, so that no other can. ``localhost`` is where servers listen by default."""
    host = address.host if address.host == "::1" else LOOPBACK
    try:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError:
        return False  # no IPv6 here: the server will say so itself
    with sock:
        if sys.platform != "win32":
            # Servers set this as well. Without it a port whose connections are in TIME_WAIT would count as taken for a
            # minute after its server has ended.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, address.port))
        except PermissionError:
            return False  # a port for which the command may have rights that this program lacks
        except OSError:
            return True
    return False


def neighbour_at(address: Address, others: Mapping[str, Address]) -> str | None:
    """Which other model has its server there."""
    return next((m for m, other in others.items() if (other.host, other.port) == (address.host, address.port)), None)


class Launch(Struct, frozen=True, kw_only=True):
    """Everything that `ModelProcess` needs to own one process. Times in seconds."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    address: Address
    probe: str | None
    """Path that answers 200 when the model is ready; None: it is ready as soon as it runs."""
    protocol: bool
    """It prints llama-server's state lines and takes its exit line."""
    own_port: bool = False
    """It is ready only if the process, or one that it has started, holds the port of ``address``."""
    stop_command: str = ""
    """Command that stops it, with ``${PID}``; empty: SIGTERM."""
    load_timeout: float
    stop_timeout: float
    abort_timeout: float = 0.0
    """How long it gets to end when it is stopped while it loads; 0: it is killed."""
    delay: float = 0.0
    """It is started so much later."""
    engine: Engine | None = None
    """The engine of a model on disk, and of a configured one whose ``cmd`` stands for an engine."""
    crew: Crew = Crew()
    """The workers that it uses, and remarks on those left out."""
    prompt_cache: int = 0
    """Bytes that it may keep of earlier prompts, as far as known."""
    slots: int = 0
    """0: unknown."""
    context: int = 0
    """Tokens of all slots together; 0: unknown."""
    slot_context: int = 0
    """Tokens that one slot can have; 0: unknown."""
    token_bytes: int = 0
    """Bytes that a token of context takes; 0: unknown."""
    owns_slot_files: bool = False
    """The files of its slots lie in the program's own folder."""
    may_name_slots: bool = False
    """Requests may name slots that are in use: an engine that keeps prompts beside its slots does not bear that."""
    made_of: tuple[object, ...] = ()
    """Files and command of the model when this was prepared; see `made_of`."""
    memory: Mapping[str, DeviceUse] = NO_USE
    """The parts of what it takes, as they were planned; empty where nothing is known of them."""

    def stop_argv(self, pid: int) -> list[str]:
        """Empty when there is no command, or none that can be split."""
        return split_command(self.stop_command.replace("${PID}", str(pid)), windows=WINDOWS)


def model_command(
    engine: Sequence[str],
    *,
    on_cpu: bool,
    tells_buffers: bool = False,
    model_id: str,
    path: str,
    port: int,
    threads: int,
    metrics: bool,
    options: Sequence[str],
) -> tuple[str, ...]:
    """argv of the process that serves one model on loopback. Without ``path`` the other flags say where the model is.

    Later options win in llama-server, so the program's defaults come before ``options``. The API key travels in the
    environment, where other users cannot read it.
    """
    said = set(options)
    batch = ("--batch-size", BATCH) if on_cpu and not BATCH_FLAGS & said else ()
    buffers = ("--log-verbosity", TELLS_BUFFERS) if tells_buffers and not VERBOSITY_FLAGS & said else ()
    return (
        *engine,
        *(("--model", path) if path else ()),
        "--alias", model_id,
        "--host", LOOPBACK,
        "--port", str(port),
        *(("--metrics",) if metrics else ()),
        "--threads", str(threads),
        *batch,
        *buffers,
        *options,
    )  # fmt: skip


def engine_argv(
    model: Model,
    engine: Engine,
    settings: FleetSettings,
    threads: int,
    port: int = 0,
    workers: Sequence[RpcWorker] = (),
    fitting: Sequence[str] = (),
) -> tuple[str, ...]:
    """The command of a model on disk; port 0 stands for one that is not chosen yet. ``fitting`` gives way to what
    anybody has said."""
    options = model_command(
        (),
        on_cpu=engine.backend == "cpu" or engine.args == ON_CPU,
        tells_buffers=bool(engine.gpus) and settings.fit,
        model_id=model.id,
        path=model.path,
        port=port,
        threads=threads,
        metrics=settings.metrics,
        options=(*fitting, *start_flags(model, settings.engine_args)),
    )
    return command_on(engine.command, engine.args, options, workers)


def worker_endpoints(model: Model, settings: FleetSettings) -> tuple[str, ...]:
    """The workers that a model names. Raises UsageError for an invalid endpoint."""
    if model.config is not None:
        return tuple(model.config.rpc)
    return workers_named((*model.args, *settings.engine_args))


def engine_launch(
    model: Model,
    engine: Engine,
    settings: FleetSettings,
    threads: int,
    crew: Crew = NOBODY,
    plan: FitPlan | None = None,
) -> Launch:
    """The process of a model on disk, on a free loopback port with a key of its own, as ``plan`` makes it fit."""
    port = free_port()
    argv = engine_argv(model, engine, settings, threads, port, crew.workers, plan.flags if plan is not None else ())
    # A new key for each start. Other users of this machine cannot ask the engine past this program, and a request that
    # was meant for an earlier process on the same port is refused.
    key = secrets.token_urlsafe(24)
    env = inherited_env()
    env["LLAMA_API_KEY"] = key
    env["LLAMA_SERVER_ROUTER_PORT"] = str(port)
    env |= NO_DEBUGGER if crew.workers else {}
    return Launch(
        argv=argv,
        env=env,
        address=Address(LOOPBACK, port, key, model.id),
        probe="/v1/models",
        protocol=True,
        load_timeout=settings.load_timeout,
        stop_timeout=settings.stop_timeout if model.stop_timeout is None else model.stop_timeout,
        delay=settings.start_delay,
        engine=engine,
        crew=crew,
        prompt_cache=plan.prompt_cache if plan is not None else 0,
        slots=plan.parallel if plan is not None else 0,
        context=plan.context if plan is not None else 0,
        slot_context=plan.slot_context if plan is not None else 0,
        token_bytes=plan.token_bytes if plan is not None else 0,
        memory=plan.memory if plan is not None else NO_USE,
    )


def configured_launch(
    model_id: str,
    config: ModelConfig,
    engine: Engine | None = None,
    crew: Crew = NOBODY,
    environment: Mapping[str, str] = NOTHING,
) -> Launch:
    """The process of a configured model, on ``engine`` where its ``cmd`` stands for one.

    ``environment`` is what it gets where neither its own settings nor this program's environment say otherwise.
    Raises ModelFailedToStart when there is no command.
    """
    if not config.argv:
        raise ModelFailedToStart(model_id, f"its cmd is empty; write the server's command under models.{model_id}.cmd")
    env = {**environment, **own_env(os.environ, frozen=is_frozen())}
    for setting in config.env:
        name, is_setting, value = setting.partition("=")
        if name and is_setting:
            env[name.upper() if WINDOWS else name] = value  # as `os.environ` has them there: Path is PATH
    if engine is None:
        argv = (_found(model_id, config.argv[0], env), *config.argv[1:])
    else:
        argv = command_on(engine.command, engine.args, config.argv[1:], crew.workers)
        env = {**env, **NO_DEBUGGER} if crew.workers else env
    check = config.check_endpoint.strip()
    address = address_of(config.proxy, model_id, timeouts=config.timeouts)
    return Launch(
        argv=argv,
        env=env,
        address=address,
        probe=None if check == "none" else _path_of(check),
        protocol=False,
        own_port=listens_itself(config, address),
        stop_command=config.cmd_stop,
        load_timeout=config.health_check_timeout,
        stop_timeout=config.unload_timeout,
        abort_timeout=ABORT_TIME,
        engine=engine,
        crew=crew,
    )


def same_launch(old: Model, new: Model | None) -> bool:
    """True if a process that was started for ``old`` is what ``new`` asks for."""
    if new is None:
        return False
    if old.config is None or new.config is None:
        return old.config is new.config and started_with(old) == started_with(new)
    return _launched(old.config) == _launched(new.config)


def with_ending(launch: Launch, config: ModelConfig) -> Launch:
    """Return the launch with the stop command that the configuration now has; its process may run already."""
    return structs.replace(launch, stop_command=config.cmd_stop, stop_timeout=config.unload_timeout)


def _launched(config: ModelConfig) -> tuple[object, ...]:
    """The settings that a running process was started with, or is reached by."""
    reached = config.proxy, config.check_endpoint, config.timeouts
    return config.argv, config.env, config.engine, config.gpu, config.rpc, *reached


def _path_of(check: str) -> str:
    """A check endpoint may be a path or a whole URL, of which the path counts."""
    path = urlsplit(check).path if "://" in check else check
    return quote(path if path.startswith("/") else f"/{path}", safe=PATH_SAFE)


def _another(program: str, passed: str) -> str | None:
    """A program of this name further along ``PATH`` than ``passed``, which is this program's own."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    others = [folder for folder in folders if folder and Path(folder) != Path(passed).parent]
    found = shutil.which(program, path=os.pathsep.join(others)) if others else None
    return found if found is not None and not is_this_program(Path(found)) else None


def _found(model_id: str, program: str, env: Mapping[str, str]) -> str:
    """The program as it is to be executed. Raises ModelFailedToStart when there is none.

    It is looked for where this program would find it, and only then where the model's own PATH says.
    """
    found = shutil.which(program)
    # This program stands in for llama-server, and may be installed under that name. A model whose command is
    # llama-server would then start this program, which would start it again, without end. So the next program of that
    # name is taken.
    if found is not None and stands_for_engine([program]) and is_this_program(Path(found)):
        return _another(program, found) or found
    if found is not None and not WINDOWS and env.get("PATH") == os.environ.get("PATH"):
        return program  # Windows itself would look elsewhere, and for an .exe only
    found = found or shutil.which(program, path=env.get("PATH"))
    if found is None:
        raise ModelFailedToStart(
            model_id, f"its command '{program}' cannot be executed: there is no such program in PATH, or it is not one"
        )
    return found
