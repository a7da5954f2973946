"""``llama-server ...``: stands in for llama-server's single-model mode, with its own flags and environment.

The front (address, keys, CORS, page) is this program; every other flag goes to the model process as it was written.
Source of the behaviour: llama-server of llama.cpp b11434.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click
import trio

from appliance.catalog.sources import NamedFile, Sources
from appliance.cli.plan import AppSettings, AsyncCommand
from appliance.cli.status import EXIT_OURS, say
from appliance.cli.values import api_keys
from appliance.core import llama_flags
from appliance.core.llama_flags import Option
from appliance.core.naming import is_speakable
from appliance.core.settings import DEFAULT_HOST, DEFAULT_PORT, Cors, FleetSettings, HttpSettings
from appliance.engines.found import find_engine
from appliance.errors import UsageError
from appliance.platform.env import child_env

ANSWERED_BY_ENGINE = ("--help", "--version", "--cache-list", "--completion-bash", "--list-devices")
FRONT = (
    "--host", "--port", "--api-key", "--api-key-file", "--api-prefix", "--cors-origins", "--cors-methods",
    "--cors-headers", "--cors-credentials", "--ui", "--model", "--threads-http", "--models-dir", "--models-preset",
    "--models-max", "--models-autoload",
)  # fmt: skip
"""Options that this program acts on itself. llama-server, too, ignores the router's ones when it is given a model."""
NOT_YET = (
    "--path", "--reuse-port", "--ssl-key-file", "--ssl-cert-file", "--tools", "--tools-runtime", "--agent",
    "--mcp-servers-config", "--mcp-servers-json", "--ui-mcp-proxy", "--model-url", "--docker-repo", "--hf-repo",
    "--hf-file",
)  # fmt: skip
GRACE = 1.0
STOP_TIMEOUT = 1.5
"""What uses llama-server expects it to be gone about three seconds after SIGTERM, busy or not."""


class Verbatim(click.Command):
    """Every word after the verb is llama-server's, ``--help`` included."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["words"] = tuple(args)
        return []


@click.command(name="llama-server", cls=Verbatim, add_help_option=False)
def llama_server(words: tuple[str, ...]) -> AppSettings | AsyncCommand | int:
    """Stand in for llama-server with one model: the same flags, environment and behaviour."""
    unknown = first_unknown(words)
    if unknown is not None:
        say(f"error: invalid argument: {unknown}")
        return EXIT_OURS
    try:
        from_argv = llama_flags.split(words)
    except UsageError as mistake:
        say(f"error: {mistake}")
        return EXIT_OURS
    if llama_flags.partition(from_argv, ANSWERED_BY_ENGINE)[0]:
        return partial(_run_engine, words)
    return single_mode(from_argv, os.environ)


def first_unknown(words: Sequence[str]) -> str | None:
    """The first word that llama-server would not know."""
    at = 0
    while at < len(words):
        flag = llama_flags.lookup(words[at])
        if flag is None:
            return words[at]
        spelled = llama_flags.normalise(words[at])
        at += 1 + (flag.arity if spelled in flag.spellings else 0)
    return None


def single_mode(from_argv: Sequence[Option], environ: Mapping[str, str]) -> AppSettings:
    """The server these options and LLAMA_ARG_* ask for. Raises UsageError for what cannot be done yet."""
    from_environ = [option for option in llama_flags.from_env(environ) if option.flag != "HF_TOKEN"]
    options = llama_flags.merge(from_argv, from_environ)
    for option in llama_flags.partition(options, NOT_YET)[0]:
        raise UsageError(f"{option.flag} is not supported yet by the stand-in for llama-server")
    front, engine_options = llama_flags.partition(options, FRONT)
    model = llama_flags.last(front, "--model")
    if model is None:
        raise UsageError(
            "llama-server without --model is its router mode, which the stand-in does not have yet; "
            "'llama-appliance serve' serves many models"
        )
    path = Path(model.values[0]).absolute()
    model_id = _model_id(path, llama_flags.last(engine_options, "--alias"))
    cors = _cors(front)
    return AppSettings(
        http=HttpSettings(
            listen=_listen(front),
            api_keys=_keys(front),
            guard=cors.origins == "localhost",
            cors=cors,
            grace=GRACE,
            api_prefix=_value(front, "--api-prefix", ""),
            page=_is_on(front, "--ui"),
            single=model_id,
        ),
        fleet=FleetSettings(
            models_max=1,
            stop_timeout=STOP_TIMEOUT,
            engine_args=tuple(llama_flags.render(engine_options)),
            metrics=False,
        ),
        sources=Sources(files=(NamedFile(model_id, str(path)),), models_dir=None, cache=None, starter=None),
        preload=(model_id,),
    )


async def _run_engine(words: Sequence[str]) -> int:
    """What the engine alone can answer, answered by it; the result is its exit status."""
    env = child_env(os.environ, frozen=getattr(sys, "frozen", False))
    done = await trio.run_process([*find_engine(None).command, *words], check=False, env=env, stdin=None)
    return done.returncode


def _model_id(path: Path, alias: Option | None) -> str:
    """llama-server's own rule: the alphabetically first alias, else the file's name."""
    names = sorted(name.strip() for name in alias.values[0].split(",")) if alias else []
    model_id = next((name for name in names if name), None) or path.name
    if not is_speakable(model_id):
        raise UsageError(f"the name {model_id!r} cannot be used for a model; give another with --alias")
    return model_id


def _listen(front: Sequence[Option]) -> tuple[tuple[str, int], ...]:
    text = _value(front, "--port", str(DEFAULT_PORT))
    if not text.isdecimal() or int(text) > 65535:
        raise UsageError(f"--port {text}: a port is a number from 0 to 65535")
    hosts = [host.strip() for host in _value(front, "--host", DEFAULT_HOST).split(",") if host.strip()]
    for host in hosts:
        if host.endswith(".sock"):
            raise UsageError(f"--host {host}: Unix sockets are not supported yet by the stand-in for llama-server")
    if int(text) == 0 and len(hosts) > 1:
        raise UsageError("--port 0 goes with one --host only")
    return tuple((host, int(text)) for host in hosts)


def _keys(front: Sequence[Option]) -> tuple[str, ...]:
    keys = llama_flags.last(front, "--api-key")
    file = llama_flags.last(front, "--api-key-file")
    return api_keys(keys.values if keys else (), Path(file.values[0]) if file else None, {}, "")


def _cors(front: Sequence[Option]) -> Cors:
    """llama-server lets every page in unless told otherwise."""
    default = Cors()
    return Cors(
        origins=_value(front, "--cors-origins", "*"),
        methods=_value(front, "--cors-methods", default.methods),
        headers=_value(front, "--cors-headers", default.headers),
        credentials=_is_on(front, "--cors-credentials"),
    )


def _value(options: Sequence[Option], name: str, default: str) -> str:
    option = llama_flags.last(options, name)
    return option.values[0] if option else default


def _is_on(options: Sequence[Option], name: str) -> bool:
    """A toggle that is on unless it was turned off."""
    option = llama_flags.last(options, name)
    return option is None or option.on
