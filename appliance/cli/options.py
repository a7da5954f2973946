"""Options that verbs share: where models, configurations and plugins are, addresses, sizes, keys, tools.

Tools have the same flags for ``serve`` and for the stand-in for llama-server.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TypeVar

import click
import msgspec
from msgspec import Struct, structs

from appliance.catalog.sources import STARTER, ModelFolders, default_models_dir, resolve_sources
from appliance.cli.app import ground_of
from appliance.core.config.mcp_servers import McpServers, parse_mcp_servers, read_mcp_servers
from appliance.core.config.types import Config
from appliance.core.lenient_json import UNREADABLE
from appliance.core.llama import flags
from appliance.core.llama.flags import Option
from appliance.core.server_choice import SERVICE_SOCKET, SOCKET_NAME
from appliance.core.settings import KEY_VARIABLE, HttpSettings, Listen, ToolSettings, UnixSocket, is_loopback
from appliance.core.tools.choice import ALL, NAMES, chosen_tools
from appliance.errors import UsageError
from appliance.platform.console import say
from appliance.platform.home import users_home

T = TypeVar("T")
MAX_FILE = 1 << 20
"""Largest number of characters in a file that an option names."""
UNIX = "unix:"
MAX_SECONDS = 1_000_000
SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TOOL_FLAGS = (
    "--tools", "--tools-runtime", "--tools-root", "--agent", "--mcp-servers-config", "--mcp-servers-json",
)  # fmt: skip
"""llama-server's options, and ``--tools-root``. No model process gets them."""


def gathered(
    name: str, kind: type[Struct], *options: Callable[[Callable[..., T]], Callable[..., T]]
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command these options as one ``kind``, its argument ``name``. An option's parameter is a field of it."""

    def add(command: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(command)
        def with_options(**given: object) -> T:
            found = {field: given.pop(field) for field in kind.__struct_fields__ if field in given}
            return command(**given, **{name: kind(**found)})

        return reduce(lambda made, option: option(made), reversed(options), with_options)

    return add


class ModelOptions(Struct, frozen=True, kw_only=True):
    """The options that say which models are used."""

    models: tuple[str, ...] = ()
    models_dir: str | None = None
    no_starter: bool = False
    stores: bool = True

    def sources(self) -> ModelFolders:
        """Return where to look for models. Raises UsageError for a missing file or folder."""
        return resolve_sources(
            models=self.models,
            models_dir=self.models_dir,
            environ=os.environ,
            home=users_home(),
            starter=None if self.no_starter else STARTER,
            stores=self.stores,
        )

    def beside(self, config: Config | None) -> ModelFolders:
        """The same beside a configuration: models named here are added to the configuration's own."""
        if config is None or not config.models:
            return self.sources()
        found = structs.replace(self, stores=False).sources()
        cache = found.cache if config.auto_download in ("allow", "ask") else None
        return structs.replace(
            found, models_dir=found.models_dir if self.models_dir else None, cache=cache, starter=None
        )


models_dir_option = click.option("--models-dir", metavar="DIR", help="Folder with models, instead of the usual one.")

catalog_options = gathered(
    "choice",
    ModelOptions,
    click.option(
        "--model", "models", multiple=True, metavar="[ID=]PATH", help="A model file. May be given several times."
    ),
    models_dir_option,
    click.option("--no-starter", is_flag=True, help="Leave out the starter model that ships with the program."),
    click.option("--stores/--no-stores", default=True, help="Also use the models of LM Studio and Ollama, in place."),
)


def source_options(command: Callable[..., T]) -> Callable[..., T]:
    """``--config``, ``--config-dir`` and ``--config-root``: where a configuration is read from, as ``files``."""

    @functools.wraps(command)
    def with_sources(config_root: Path | None, config_file: Path | None, config_dir: Path | None, **given: object) -> T:
        from appliance.catalog.configuration import Files, sources_below  # with trio, which --help does without

        if config_root is not None and config_dir is None:
            config_file, config_dir = sources_below(config_root, config_file)
        config_type = ground_of(click.get_current_context()).config_type
        return command(files=Files(config=config_file, config_dir=config_dir, config_type=config_type), **given)

    for option in (
        click.option(
            "--config-root",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Read DIR/config.yaml, unless --config names another file, and DIR/conf.d. Both may be missing.",
        ),
        click.option(
            "--config-dir", type=click.Path(path_type=Path), metavar="DIR", help="Folder with .yml and .yaml files."
        ),
        click.option(
            "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="Configuration file."
        ),
    ):
        with_sources = option(with_sources)
    return with_sources


def plugin_option(command: Callable[..., T]) -> Callable[..., T]:
    """``--plugins``, as the parameter ``plugins``: a tuple of folders."""
    return click.option(
        "--plugins",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Folder with plugins. May be given several times.",
    )(command)


def named(folders: Sequence[Path], *, none: bool) -> tuple[Path, ...] | None:
    """Return the folders of the two options, or None for no plugins at all. Raises UsageError."""
    if none and folders:
        raise UsageError("--no-plugins and --plugins contradict each other; leave out one of them")
    return None if none else existing(folders)


def existing(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders as absolute paths. Raises UsageError for a missing one."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}; --plugins takes a folder that contains plugins")
    return tuple(folder.absolute() for folder in folders)


class ListenAddress(click.ParamType[Listen]):
    """``HOST:PORT`` or ``[IPV6]:PORT``; port 0 takes a free one. ``unix:PATH`` is a socket in the file system."""

    name = "HOST:PORT"

    def convert(self, value: str | Listen, param: click.Parameter | None, ctx: click.Context | None) -> Listen:
        if not isinstance(value, str):
            return value
        if value.startswith(UNIX) and value != UNIX:
            return UnixSocket(value.removeprefix(UNIX))
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[^\s\[\]]+)?)\]|([^\[\]:\s]+)):(\d{1,5})", value)
        if match is None or int(match[3]) > 65535:
            self.fail(
                f"{value!r} is not an address such as 127.0.0.1:8080, [::1]:8080 or unix:/run/llama.sock", param, ctx
            )
        return match[1] or match[2], int(match[3])


def own_socket() -> UnixSocket:
    """Return where a server of this home is found by its commands. The service lets in its group as well."""
    path = str(default_models_dir().with_name(SOCKET_NAME))
    return UnixSocket(path, mode=0o660 if path == SERVICE_SOCKET else 0o600, trusted=True)


class Size(click.ParamType[int]):
    """A number of bytes, with K, M or G for powers of 1024."""

    name = "SIZE"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", value.strip().lower())
        if match is None or int(match[1]) == 0:
            self.fail(f"{value!r} is not a size such as 100M or 1G", param, ctx)
        return int(match[1]) * SIZE_UNITS[match[2]]


class Seconds(click.ParamType[float]):
    """A length of time; infinite and NaN are refused, because no clock can be set to them."""

    name = "SECONDS"

    def __init__(self, minimum: float = 0) -> None:
        self._minimum = minimum

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not self._minimum <= seconds <= MAX_SECONDS:
            self.fail(f"{value!r} is not a number of seconds from {self._minimum:g} to {MAX_SECONDS}", param, ctx)
        return seconds


def api_keys(options: Iterable[str], file: Path | None, environ: Mapping[str, str], variable: str) -> tuple[str, ...]:
    """The keys that let a client in: options (each may be a comma-separated list), the key file, the environment.

    The file holds one key per line; empty lines and lines that begin with ``#`` are passed over. Raises UsageError for
    a file that cannot be read or holds no key: a server that silently listens without one would be worse.
    """
    keys = [key.strip() for option in options for key in option.split(",")]
    keys += [key.strip() for key in environ.get(variable, "").split(",")]
    if file is not None:
        lines = (line.strip() for line in text_of("--api-key-file", file).splitlines())
        from_file = [line for line in lines if line and not line.startswith("#")]
        if not from_file:
            raise UsageError(f"--api-key-file {file} contains no key; put each key on a line of its own")
        keys += from_file
    found = tuple(dict.fromkeys(key for key in keys if key))
    for key in found:
        if not (key.isascii() and key.isprintable()):
            raise UsageError("an API key may contain only printable ASCII characters, so that it fits into a header")
    return found


def text_of(option: str, file: Path) -> str:
    """Return the text of the file that an option names, up to one character beyond `MAX_FILE`. Raises UsageError."""
    try:
        with file.open(encoding="utf-8-sig") as opened:
            return opened.read(MAX_FILE + 1)
    except (OSError, UnicodeDecodeError) as cause:
        why = cause.strerror if isinstance(cause, OSError) else "it is not text"
        raise UsageError(f"{option} {file} cannot be read: {why}") from None


def certificate(cert_file: str | None, key_file: str | None) -> tuple[str, str] | None:
    """Return the files of ``--ssl-cert-file`` and ``--ssl-key-file``, or None. Raises UsageError for one alone."""
    if bool(cert_file) != bool(key_file):
        given, missing = ("--ssl-cert-file", "--ssl-key-file")[:: 1 if cert_file else -1]
        raise UsageError(f"{given} needs {missing}; give both for HTTPS, or none")
    return (cert_file, key_file) if cert_file and key_file else None


def ui_settings(option: str, text: str, *, is_file: bool = False) -> bytes:
    """Parse the JSON object that web pages get as settings; ``option`` gave it. Raises UsageError."""
    where = f"{option} {text}" if is_file else option
    if is_file:
        text = text_of(option, Path(text))
    if len(text) > MAX_FILE:
        raise UsageError(f"{where} is longer than {MAX_FILE >> 20} MiB, which is too long for settings")
    try:
        return msgspec.json.encode(msgspec.json.decode(text, type=dict[str, msgspec.Raw]))
    except UNREADABLE as error:
        raise UsageError(f'{where} is not a JSON object such as {{"theme": "dark"}}: {error}') from None


class WebOptions(Struct, frozen=True, kw_only=True):
    """The options given. ``allow`` are names, addresses and networks, as the proxy for web pages reads them."""

    path: Path | None
    cors_proxy: bool
    allow: tuple[str, ...]
    no_conversations: bool
    admin: bool

    def applied(self, http: HttpSettings) -> HttpSettings:
        """Raises UsageError for options that cannot be used."""
        if self.allow and not self.cors_proxy:
            raise UsageError("--cors-proxy-allow needs --cors-proxy; add that")
        return structs.replace(
            http,
            static=str(self.path.absolute()) if self.path is not None else None,
            cors_proxy=self.cors_proxy,
            cors_proxy_allow=self.allow,
            admin=self.admin,
        )


web_options = gathered(
    "web",
    WebOptions,
    click.option(
        "--path",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Serve the files of this folder at / instead of the page.",
    ),
    click.option(
        "--cors-proxy",
        is_flag=True,
        help="Let web pages reach other servers through /cors-proxy, which MCP servers need.",
    ),
    click.option(
        "--cors-proxy-allow",
        "allow",
        multiple=True,
        metavar="HOST",
        help="A host or network of the local network that the proxy may also reach; 'loopback' is this machine.",
    ),
    click.option("--no-conversations", is_flag=True, help="Do not keep the page's conversations on this machine."),
    click.option("--admin", is_flag=True, help="Let clients and the page change the configuration and choose engines."),
)


def mcp_server_options(command: Callable[..., T]) -> Callable[..., T]:
    """``--mcp-server`` and ``--mcp-server-tools``, as parameters of these names."""
    command = click.option(
        "--mcp-server-tools",
        multiple=True,
        metavar="TOOL",
        help="A tool of --tools or --mcp-servers-config that MCP clients may also use, or mcp:SERVER, or '*'.",
    )(command)
    return click.option("--mcp-server", is_flag=True, help="Offer the models to MCP clients, at /mcp. Needs a key.")(
        command
    )


def with_mcp_server(
    http: HttpSettings, config: Config | None, enabled: bool, tools: tuple[str, ...], *, allow_unauthenticated: bool
) -> HttpSettings:
    """Return the MCP server's settings. Raises UsageError if everybody could use what a key should protect."""
    configured = (config or Config()).mcp_server
    tools = (*tools, *configured.tools)
    if not (enabled or configured.enabled):
        if tools:
            raise UsageError("--mcp-server-tools (mcpServer.tools) needs --mcp-server (mcpServer.enabled); add that")
        return http
    has_key = bool(http.api_keys or (config is not None and any(config.api_keys)))
    if not has_key and not allow_unauthenticated:
        raise UsageError(
            f"--mcp-server needs a key, since its clients can run models and tools: add --api-key KEY (or "
            f"{KEY_VARIABLE}), or --allow-unauthenticated if every program on this machine may use it"
        )
    if not has_key and not all(isinstance(at, UnixSocket) or is_loopback(at[0]) for at in http.places):
        raise UsageError(
            "--mcp-server without a key works only on this machine: add --api-key KEY, or listen on 127.0.0.1 only"
        )
    return structs.replace(http, mcp_server=True, mcp_server_tools=tools, mcp_server_open=not has_key)


class ToolOptions(Struct, frozen=True, kw_only=True):
    """The options given; texts are empty if the option was not given."""

    tools: str = ""
    agent: bool = False
    runtime: str = ""
    root: str = ""
    mcp_file: str = ""
    mcp_json: str = ""

    def settings(self, config: Config | None = None) -> ToolSettings:
        """Return the options' values, or the configuration's where an option is missing. Raises UsageError."""
        mcp = _mcp_servers(self.mcp_file, self.mcp_json)
        words = [*self.tools.split(","), *([ALL] if self.agent else [])]
        runtime, root = self.runtime, self.root
        if config is not None:
            mcp = mcp.joined(read_mcp_servers(config.mcp_servers, "the configuration"))
            words = words if any(word.strip() for word in words) else config.tools.enable
            runtime, root = runtime or config.tools.runtime, root or config.tools.root
        for warning in mcp.warnings:
            say(warning)
        return structs.replace(chosen_tools(words, runtime=runtime, root=root), mcp=mcp)


tool_options = gathered(
    "tool_choice",
    ToolOptions,
    click.option(
        "--tools",
        default="",
        metavar="NAMES",
        help=f"Let clients and models use tools on this machine: {', '.join(NAMES)}, or {ALL}.",
    ),
    click.option("--agent", is_flag=True, help="The same as --tools all --cors-proxy."),
    click.option(
        "--tools-runtime",
        "runtime",
        default="",
        metavar="RUNTIME",
        help="Where the tools run: docker:IMAGE, docker-container:ID (podman as well) or ssh:HOST.",
    ),
    click.option("--tools-root", "root", default="", metavar="DIR", help="A folder that the tools cannot leave."),
    click.option(
        "--mcp-servers-config",
        "mcp_file",
        default="",
        metavar="FILE",
        help="MCP servers, in the format of desktop clients.",
    ),
    click.option("--mcp-servers-json", "mcp_json", default="", metavar="JSON", help="The same, as text."),
)


def tools_of_options(options: Sequence[Option]) -> ToolSettings:
    """Return the meaning of llama-server's options. Raises UsageError."""
    found = {name: flags.last(options, name) for name in TOOL_FLAGS}
    said = {name: "".join(option.values) for name, option in found.items() if option is not None and option.on}
    return ToolOptions(
        tools=said.get("--tools", ""),
        agent="--agent" in said,
        runtime=said.get("--tools-runtime", ""),
        root=said.get("--tools-root", ""),
        mcp_file=said.get("--mcp-servers-config", ""),
        mcp_json=said.get("--mcp-servers-json", ""),
    ).settings()


def opens_pages(options: Sequence[Option]) -> bool:
    """True if pages can do more here than chat, so that only pages of this machine are accepted."""
    agent = flags.last(options, "--agent")
    named = any(flags.last(options, name) for name in ("--tools", "--mcp-servers-config", "--mcp-servers-json"))
    return named or (agent is not None and agent.on)


def _mcp_servers(file: str, text: str) -> McpServers:
    servers = McpServers()
    if file:
        servers = parse_mcp_servers(text_of("--mcp-servers-config", Path(file)), f"--mcp-servers-config {file}")
    return servers.joined(parse_mcp_servers(text, "--mcp-servers-json")) if text else servers
