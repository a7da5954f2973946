"""``serve``: turns the server's command line into settings, with the options of applications that embed the program."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click
from msgspec import Struct, structs

from appliance.cli.app import presets_of
from appliance.cli.options import (
    ListenAddress,
    ModelOptions,
    Seconds,
    Size,
    ToolOptions,
    WebOptions,
    api_keys,
    catalog_options,
    certificate,
    gathered,
    mcp_server_options,
    named,
    own_socket,
    plugin_option,
    source_options,
    tool_options,
    web_options,
    with_mcp_server,
)
from appliance.core.config.nodes import NO_PORTS, Loaded
from appliance.core.config.types import KeepContext
from appliance.core.llama import flags
from appliance.core.offline import refuse_outside
from appliance.core.settings import (
    DEFAULT_HOST,
    DEFAULT_MODELS_MAX,
    DEFAULT_PORT,
    KEY_VARIABLE,
    AlsoListen,
    Cors,
    Embedding,
    FleetSettings,
    HttpSettings,
    Listen,
    refuse_open_admin,
    refuse_open_door,
)
from appliance.engines.named import ENGINE_HELP
from appliance.errors import UsageError
from appliance.platform.console import say, say_as_json
from appliance.platform.ports import free_port, stay_on_this_machine
from appliance.settings import AppSettings

if TYPE_CHECKING:
    from appliance.catalog.configuration import Files

HOME = {
    "XDG_DATA_HOME": "data",
    "XDG_CACHE_HOME": "cache",
    "XDG_CONFIG_HOME": "config",
    "XDG_STATE_HOME": "state",
    "WIN_PD_OVERRIDE_LOCAL_APPDATA": "data",
    "HF_HOME": "huggingface",
    "CUDA_CACHE_PATH": "cache/cuda",
    "TMPDIR": "tmp",
    "TEMP": "tmp",
    "TMP": "tmp",
}
"""Variables that say where this program, and engines and drivers in its children, write; to their folders in --home."""
OWNED = (
    "--model", "--alias", "--host", "--port", "--api-key", "--api-key-file", "--ssl-key-file", "--ssl-cert-file",
    "--api-prefix", "--path", "--models-dir", "--models-preset", "--models-max", "--models-autoload", "--cors-origins",
    "--cors-methods", "--cors-headers", "--cors-credentials", "--tools", "--agent", "--mcp-servers-config",
    "--mcp-servers-json", "--ui-mcp-proxy", "--reuse-port",
)  # fmt: skip
"""llama-server options that this program decides for its children, or that belong to a front; never passed through."""
ENDS_AT_ONCE = ("--help", "--version", "--cache-list", "--completion-bash", "--list-devices")
OTHER_MODELS = ("--model-url", "--docker-repo", "--hf-repo", "--hf-file")
HTTP = HttpSettings()
FLEET = FleetSettings()


class EmbedOptions(Struct, frozen=True, kw_only=True):
    """The options given. Using them changes the environment: see `settle`."""

    port: int | None
    ready_file: Path | None
    parent_pid: int | None
    api_key_env: str | None
    home: Path | None
    log_json: bool
    offline: bool
    trial: Path | None

    def settle(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Move all files below ``--home``, stay off the network, and let messages be JSON. Raises UsageError, OSError.

        Children inherit the environment, so engines write and download nothing elsewhere either.
        """
        if self.log_json:
            say_as_json()
        write_below(self.home, environ)
        if self.offline:
            environ["HF_HUB_OFFLINE"] = environ["LLAMA_ARG_OFFLINE"] = "1"
            stay_on_this_machine()

    def listen(self, listen: tuple[Listen, ...]) -> tuple[Listen, ...]:
        """Return where to listen. Raises UsageError if both ways are used."""
        if self.port is None:
            return listen
        if listen:
            raise UsageError(f"--port {self.port} is short for --listen {DEFAULT_HOST}:{self.port}; give one of them")
        return ((DEFAULT_HOST, self.port),)

    def keys(self, keys: tuple[str, ...], environ: MutableMapping[str, str] = os.environ) -> tuple[str, ...]:
        """Return the keys, with the one from the environment, which no child inherits. Raises UsageError."""
        if self.api_key_env is None:
            return keys
        key = environ.pop(self.api_key_env, "")
        if not key:
            raise UsageError(f"--api-key-env {self.api_key_env}: this environment variable is not set, or is empty")
        return (*keys, key)

    @property
    def embedding(self) -> Embedding:
        ready = str(self.ready_file.absolute()) if self.ready_file is not None else None
        return Embedding(ready_file=ready, parent_pid=self.parent_pid, log_json=self.log_json)


def write_below(home: Path | None, environ: MutableMapping[str, str] = os.environ) -> None:
    """Have this program, and those that it starts, write all files below ``home``, if it is given. Raises OSError."""
    if home is None:
        return
    for variable, name in HOME.items():
        folder = home.absolute() / name
        folder.mkdir(parents=True, exist_ok=True)
        environ[variable] = str(folder)
    tempfile.tempdir = None


home_option = click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write all files below this folder: models, engines, caches, temporary files.",
)

embed_options = gathered(
    "embed",
    EmbedOptions,
    click.option("--port", type=click.IntRange(0, 65535), help=f"Short for --listen {DEFAULT_HOST}:PORT."),
    click.option(
        "--ready-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the address to this file, as JSON, when the program listens.",
    ),
    click.option(
        "--parent-pid",
        type=click.IntRange(1, (1 << 31) - 1),
        metavar="PID",
        help="End in order when this process ends.",
    ),
    click.option("--api-key-env", metavar="NAME", help="Accept the key in this environment variable."),
    home_option,
    click.option("--log-json", is_flag=True, help="Write messages as JSON, one object in a line."),
    click.option("--offline", is_flag=True, help="Open no connection that leaves this machine, and download nothing."),
    click.option(
        "--trial",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Serve beside the running server for a trial, as 'upgrade' does: on a free port, with copies of the data "
        "in this new folder, where ready.json gets the address.",
    ),
)


class WithEngineFlags(click.Command):
    """The words after ``--`` are llama-server's, unchanged, and become the parameter ``engine_flags``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:at])
        ctx.params["engine_flags"] = tuple(args[at + 1 :])
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- LLAMA-SERVER FLAGS]"]


def engine_args(words: Sequence[str]) -> tuple[str, ...]:
    """Check llama-server flags meant for every model. Raises UsageError, naming the flag that cannot be among them."""
    options = flags.split(words)
    refused, allowed = flags.partition(options, (*OWNED, *ENDS_AT_ONCE, *OTHER_MODELS))
    for option in refused:
        raise UsageError(
            f"{option.flag} cannot be given after '--': this program sets it for its model processes; "
            "'llama-appliance serve --help' lists its own options"
        )
    return tuple(flags.render(allowed))


@click.command(cls=WithEngineFlags)
@click.option(
    "--listen",
    multiple=True,
    type=ListenAddress(),
    metavar="HOST:PORT",
    help="Address to listen on; port 0 takes a free port, unix:PATH is a socket file. May be given several times. "
    f"Default {DEFAULT_HOST}:{DEFAULT_PORT}.",
)
@click.option(
    "--also-listen",
    multiple=True,
    type=ListenAddress(),
    metavar="HOST:PORT",
    help="Listen there as well, where certain clients look: 127.0.0.1:9931. Written as --listen.",
)
@click.option(
    "--ollama-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Also listen on this loopback port for Ollama clients (usually 11434). Skipped if in use.",
)
@click.option("--ssl-cert-file", metavar="FILE", help="HTTPS with this certificate and its chain, in PEM form.")
@click.option("--ssl-key-file", metavar="FILE", help="The certificate's private key.")
@source_options
@click.option("--watch-config", is_flag=True, help="Read configuration and presets again when they change.")
@plugin_option
@click.option("--no-plugins", is_flag=True, help="Disable plugins and slash commands.")
@catalog_options
@click.option(
    "--models-preset",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Models and their llama-server options, in the INI format of llama-server's router.",
)
@click.option(
    "--models-max",
    type=click.IntRange(0),
    help=f"Models loaded at once; 0 is unlimited. Default {DEFAULT_MODELS_MAX}, with a configuration its value.",
)
@click.option(
    "--preload", multiple=True, metavar="MODEL", help="Load this model at the start. May be given several times."
)
@click.option("--alias", "aliases", multiple=True, metavar="NAME=MODEL", help="Another name for a model; repeatable.")
@click.option("--fallback-model", default="", metavar="MODEL", help="Answer chats with this where a name is unknown.")
@click.option("--engine", metavar="ENGINE", help=ENGINE_HELP)
@click.option("--threads", type=click.IntRange(1), help="CPU threads of each model process.")
@click.option("--allow-overcommit", is_flag=True, help="Start models that the container's memory cannot take.")
@click.option(
    "--keep-context",
    type=click.Choice(get_args(KeepContext)),
    help="Where to keep what models have read for after a swap or restart. Default ram, or the configuration's value.",
)
@click.option(
    "--api-key", "keys", multiple=True, metavar="KEY", help=f"Accept only callers with a key (or {KEY_VARIABLE})."
)
@click.option("--api-key-file", type=click.Path(path_type=Path), metavar="FILE", help="Keys, one per line.")
@click.option("--allow-unauthenticated", is_flag=True, help="Listen beyond this machine without a key.")
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="HOST",
    help="Also accept requests addressed to this host name.",
)
@click.option(
    "--cors-origins",
    default=HTTP.cors.origins,
    show_default=True,
    metavar="ORIGINS",
    help="Web pages that may use the server: localhost, * or an origin.",
)
@click.option(
    "--load-timeout",
    type=Seconds(0.1),
    default=FLEET.load_timeout,
    show_default=True,
    help="Longest time that a model may take to load.",
)
@click.option(
    "--grace",
    type=Seconds(),
    default=HTTP.grace,
    show_default=True,
    help="Time that requests get to finish after the first Ctrl-C.",
)
@click.option(
    "--sse-ping-interval",
    "ping_after",
    type=Seconds(),
    default=HTTP.ping_after,
    show_default=True,
    help="Silence after which a stream gets a comment; 0 for clients that cannot read comments.",
)
@mcp_server_options
@embed_options
@web_options
@tool_options
@click.option("--max-body", type=Size(), default=HTTP.max_body, help="Largest request; default 100M.")
@click.option("--max-connections", type=click.IntRange(1), default=HTTP.clients, help="Clients at once; default 4000.")
@click.pass_context
def serve(
    ctx: click.Context,
    web: WebOptions,
    embed: EmbedOptions,
    listen: tuple[Listen, ...],
    also_listen: tuple[Listen, ...],
    ollama_port: int | None,
    ssl_cert_file: str | None,
    ssl_key_file: str | None,
    files: Files,
    watch_config: bool,
    plugins: tuple[Path, ...],
    no_plugins: bool,
    choice: ModelOptions,
    models_preset: Path | None,
    models_max: int | None,
    preload: tuple[str, ...],
    aliases: tuple[str, ...],
    fallback_model: str,
    engine: str | None,
    threads: int | None,
    allow_overcommit: bool,
    keep_context: KeepContext | None,
    keys: tuple[str, ...],
    api_key_file: Path | None,
    allow_unauthenticated: bool,
    allow_hosts: tuple[str, ...],
    cors_origins: str,
    load_timeout: float,
    grace: float,
    ping_after: float,
    max_body: int,
    max_connections: int,
    mcp_server: bool,
    mcp_server_tools: tuple[str, ...],
    tool_choice: ToolOptions,
    engine_flags: tuple[str, ...],
) -> AppSettings:
    """Run the server: OpenAI, Anthropic, llama.cpp and llama-swap APIs for every model there is.

    With --config it runs what a llama-swap configuration says, with --models-preset llama-server's presets; a SIGHUP
    reads both again. A model is loaded when it is first asked for. Flags after -- go to every model's llama-server.
    Ctrl-C lets requests finish for the length of --grace; a second Ctrl-C ends at once.

    \b
    Examples:
      llama-appliance serve
      llama-appliance serve --config llama-swap.yaml --watch-config
      llama-appliance serve --models-dir ~/models --models-max 2 --preload qwen3-8b
      llama-appliance serve --listen 0.0.0.0:8080 --api-key "$KEY"
      llama-appliance serve -- --ctx-size 16384 --n-gpu-layers 99
    """
    embed.settle()
    if watch_config and not files.named and models_preset is None:
        raise UsageError("--watch-config needs something to watch: --config, --config-dir or --models-preset")
    read = _read(files, apart=embed.trial is not None) if files.named else None
    config = read.require() if read is not None else None
    basic = HttpSettings(
        listen=embed.listen(listen) or HTTP.listen,
        also=_further(
            also_listen, ollama_port or (config.ollama_port if config is not None else 0), local=embed.trial is None
        ),
        tls=certificate(ssl_cert_file, ssl_key_file),
        api_keys=api_keys(embed.keys(keys), api_key_file, os.environ, KEY_VARIABLE),
        allow_hosts=allow_hosts,
        cors=Cors(origins=cors_origins),
        grace=grace,
        ping_after=ping_after,
        max_body=max_body,
        clients=max_connections,
        max_bodies=max(HTTP.max_bodies, max_body),
    )
    http = web.applied(basic)
    http = structs.replace(http, cors_proxy=http.cors_proxy or tool_choice.agent)
    if not allow_unauthenticated:
        refuse_open_door(http, config.api_keys if config is not None else ())
    refuse_open_admin(http, config.api_keys if config is not None else ())
    http = with_mcp_server(http, config, mcp_server, mcp_server_tools, allow_unauthenticated=allow_unauthenticated)
    tools = tool_choice.settings(config)
    if embed.offline:
        refuse_outside(config, tools, engine_flags)
    sources = choice.beside(config)
    if models_preset is not None:
        sources = structs.replace(sources, presets=presets_of(ctx).read(models_preset))
    settings = AppSettings(
        http=http,
        fleet=FleetSettings(
            models_max=models_max,
            load_timeout=load_timeout,
            engine_args=(*engine_args(engine_flags), *(("--offline",) if embed.offline else ())),
            threads=threads,
            allow_overcommit=allow_overcommit,
            keep_context=keep_context,
        ),
        tools=tools,
        embedding=embed.embedding,
        sources=sources,
        files=files if files.named else None,
        config=config,
        ports=read.ports if read is not None else NO_PORTS,
        watch_config=watch_config,
        plugins=named(plugins, none=no_plugins),
        allow_unauthenticated=allow_unauthenticated,
        offline=embed.offline,
        engine=engine,
        conversations=not web.no_conversations,
        preload=preload,
        aliases=aliases,
        fallback_model=fallback_model,
    )
    if embed.trial is None:
        return settings
    from appliance.cli.trial import as_trial  # with what starts processes

    return as_trial(settings, embed.trial, os.environ)


def _further(places: Sequence[Listen], ollama_port: int, *, local: bool) -> tuple[AlsoListen, ...]:
    """Return the addresses beside ``--listen``. ``local``: commands of this home find the server by themselves."""
    also = [AlsoListen(place, "--also-listen") for place in places]
    if ollama_port:
        also.append(AlsoListen((DEFAULT_HOST, ollama_port), "--ollama-port", required=False))
    if local and sys.platform != "win32":
        also.append(AlsoListen(own_socket(), "--home", required=False))
    return tuple(also)


def _read(files: Files, *, apart: bool) -> Loaded:
    """Return the content of the files, and print their warnings. Raises UsageError if one cannot be read.

    ``apart``: no model has a port for ``${PORT}`` that a model of another server may have.
    """
    loaded = files.read()
    if apart:
        loaded = files.read({model: free_port() for model in loaded.ports})
    for warning in loaded.warnings:
        say(str(warning))
    return loaded
