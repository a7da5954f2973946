"""The user's settings, as frozen values, and the one check across them; defaults live here and nowhere else."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from msgspec import Struct

from appliance.core.config.additions import HangsConfig
from appliance.core.config.mcp_servers import McpServers
from appliance.core.config.types import KeepContext
from appliance.core.sizes import MIB
from appliance.errors import OpenDoor

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8080
DEFAULT_URL = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
DEFAULT_MODELS_MAX = 4
KEY_VARIABLE = "LLAMA_APPLIANCE_API_KEY"
"""The environment variable with the keys of clients."""
URL_VARIABLE = "LLAMA_APPLIANCE_URL"
"""The environment variable with the server that commands ask."""


class Cors(Struct, frozen=True, kw_only=True):
    """Cross-origin policy, in llama-server's terms (llama-server README, ``--cors-*``).

    ``origins`` is ``"localhost"`` (reflect an Origin whose host is localhost, 127.0.0.1 or ::1), ``"*"`` (reflect any
    Origin) or a string that is sent verbatim.
    """

    origins: str = "localhost"
    methods: str = "GET, POST, DELETE, OPTIONS"
    headers: str = "*"
    credentials: bool = True


class UnixSocket(Struct, frozen=True):
    """A listening socket in the file system, for programs of this machine; ``mode`` are its file permissions."""

    path: str
    mode: int = 0o600
    trusted: bool = False
    """Its permissions take the place of a key: commands of the server's own home find it there."""


Listen = tuple[str, int] | UnixSocket
"""An address to listen on: host and port, or a file."""


def at_port(places: Iterable[Listen], port: int) -> tuple[Listen, ...]:
    """Return the same addresses with another port; files stay."""
    return tuple(place if isinstance(place, UnixSocket) else (place[0], port) for place in places)


class AlsoListen(Struct, frozen=True):
    """An address beside `HttpSettings.listen`, where certain clients look; the same rules apply to it.

    ``option`` is the one that names it. An address that is not ``required`` is left out if another program has it.
    """

    place: Listen
    option: str
    required: bool = True


class HttpSettings(Struct, frozen=True, kw_only=True):
    """Addresses to listen on, callers to accept, and limits. Times in seconds, sizes in bytes."""

    listen: tuple[Listen, ...] = ((DEFAULT_HOST, DEFAULT_PORT),)
    also: tuple[AlsoListen, ...] = ()
    tls: tuple[str, str] | None = None
    """Files of the certificate (with its chain) and of its key: HTTPS on every port. Sockets in files stay plain."""
    api_keys: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    cors: Cors = Cors()
    open_inference: bool = False
    """llama-server's own inference routes are for the pages of every site, whatever ``cors`` says, and for every Host
    if the server listens beyond this machine.
    """
    max_body: int = 100 * MIB
    """Largest request body; 100 MiB is what llama-server accepts."""
    max_bodies: int = 512 * MIB
    """Limit of all request bodies in memory together; beyond it a request is answered 503."""
    body_stall: float = 30.0
    """A body without progress for this long is refused."""
    write_stall: float = 120.0
    """A client that reads nothing for this long is disconnected."""
    clients: int = 4000
    """Connections at once, if the limit of open files allows as many; each that uses a model costs two descriptors."""
    grace: float = 10.0
    """How long requests under way may continue after the first stop signal."""
    ping_after: float = 15.0
    """A stream that is silent for this long gets an SSE comment, so that proxies keep it open; 0: none."""
    reuse_port: bool = False
    """Other processes may listen on the same ports; the system distributes the connections."""
    api_prefix: str = ""
    page: bool = True
    ui_settings: bytes = b"{}"
    """A JSON object that ``/props`` gives to web pages as their settings (``--ui-config``)."""
    static: str | None = None
    """Folder whose files are served at ``/`` instead of the page."""
    cors_proxy: bool = False
    """``/cors-proxy``, through which a web page reaches servers that do not accept web pages (MCP servers)."""
    cors_proxy_allow: tuple[str, ...] = ()
    """Names, addresses and networks on the local network or this machine that it may also reach: ``loopback``
    is only this machine, ``*`` is everything.
    """
    admin: bool = False
    """Callers may change the program over HTTP, beyond what a request for a model does (``serve --admin``)."""
    mcp_server: bool = False
    """``/mcp``: models, and ``mcp_server_tools`` of the program's own tools, for MCP clients."""
    mcp_server_tools: tuple[str, ...] = ()
    """Names, ``mcp:<server>``, ``mcp:*`` and ``*``, as `core.tools.box.Toolbox.select` reads them."""
    mcp_server_open: bool = False
    """``/mcp`` needs no key for programs on this machine."""
    predict: str | None = None
    """The path of Vertex AI's predictions (``AIP_PREDICT_ROUTE``)."""
    health: str | None = None
    """Another path of ``/health`` (``AIP_HEALTH_ROUTE``)."""
    single: str | None = None
    """The one model of llama-server's single-model mode: requests need not, and cannot, name another."""
    autoload: bool = True
    """A request loads the model that it names, unless its ``?autoload=`` says otherwise (``--models-autoload``)."""
    held_for: float = 0.0
    """A request waits for this long with its model before the model gets it (``LLAMA_SERVER_DEBUG_FAKE_TIMING``)."""

    @property
    def places(self) -> tuple[Listen, ...]:
        """Return every address to listen on."""
        return (*self.listen, *(each.place for each in self.also))


def in_url(host: str) -> str:
    """Return a host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """True if only this machine can reach an address. A name other than ``localhost`` might be anything."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def open_door(http: HttpSettings, configured: Iterable[str] = ()) -> str | None:
    """Return the host through which other machines can use the server without a key, None if there is none.

    ``configured`` are further keys. A socket in a file does not count: its permissions say who may connect.
    """
    if http.api_keys or any(configured):
        return None
    hosts = (place[0] for place in http.places if not isinstance(place, UnixSocket))
    return next((host for host in hosts if not is_loopback(host)), None)


def refuse_open_door(http: HttpSettings, configured: Iterable[str] = (), variable: str = KEY_VARIABLE) -> None:
    """Raise OpenDoor when other machines could use the server without a key.

    ``configured`` are further keys, and ``variable`` is where the environment may hold one.
    """
    host = open_door(http, configured)
    if host is not None:
        raise OpenDoor(
            f"refusing to listen on {host}, which other machines can reach, without a key: add --api-key KEY "
            f"(or {variable}), or --allow-unauthenticated if everybody may use this server"
        )


def refuse_open_admin(http: HttpSettings, configured: Iterable[str] = ()) -> None:
    """Raise OpenDoor when other machines could change the program without a key. ``configured`` are further keys."""
    host = open_door(http, configured) if http.admin else None
    if host is not None:
        raise OpenDoor(
            f"--admin lets every machine that reaches {host} change this program: add --api-key KEY "
            f"(or {KEY_VARIABLE}), or listen on {DEFAULT_HOST} only"
        )


class FleetSettings(Struct, frozen=True, kw_only=True):
    """The number of model processes, and the longest time for each phase of their lives, in seconds."""

    models_max: int | None = None
    """Model processes at once; 0 is unlimited (llama-server's ``--models-max``). None: `DEFAULT_MODELS_MAX`, or the
    configuration's value, which may be nothing.
    """
    load_timeout: float = 600.0
    stop_timeout: float = 10.0
    queue_timeout: float = 600.0
    hangs: HangsConfig = HangsConfig()
    """These apply without a configuration."""
    queue_limit: int = 1000
    """Number of requests that may wait at once, for all models together."""
    patience: float = 10.0
    """A request that has waited this long stops new ones for the models in its way."""
    engine_args: tuple[str, ...] = ()
    """llama-server flags for every model."""
    metrics: bool = True
    """Start model processes with ``--metrics``; off if the user's own llama-server flags decide."""
    fit: bool = True
    """Choose context and slots that fit into free memory, unless the user's llama-server flags decide."""
    allow_overcommit: bool = False
    """Start models that a container's memory cannot take; the configuration may say so as well."""
    keep_context: KeepContext | None = None
    """The place of kept contexts. None: the configuration's value, or its default."""
    threads: int | None = None
    """CPU threads of each model process; None leaves room for the program itself."""
    start_delay: float = 0.0
    """The process of a model on disk starts this much later (``LLAMA_SERVER_DEBUG_FAKE_TIMING``)."""


class Embedding(Struct, frozen=True, kw_only=True):
    """The wishes of an application that starts the program as a part of itself."""

    ready_file: str | None = None
    """Gets the address when the program listens."""
    parent_pid: int | None = None
    """The program ends when this process does."""
    log_json: bool = False
    """Messages on standard error are JSON, one object in a line."""


class ToolSettings(Struct, frozen=True, kw_only=True):
    """The tools that clients and models may use on this machine; none by default."""

    builtin: tuple[str, ...] = ()
    """Names of built-in tools, all of them known."""
    runtime: str = ""
    """The place where they run, in llama-server's words (``--tools-runtime``); empty: on this machine."""
    root: str | None = None
    """The folder of this machine that they cannot leave."""
    mcp: McpServers = McpServers()

    @property
    def enabled(self) -> bool:
        return bool(self.builtin or self.mcp.servers)
