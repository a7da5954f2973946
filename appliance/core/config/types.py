"""The configuration as values: field names are the file's keys, defaults are the file's defaults.

This is the schema: the decoder, ``config show``, ``config schema`` and the tests of the documentation walk these types.
Keys and defaults are llama-swap's (0bdb3720), except those whose description begins with "Addition:". Times are whole
seconds unless a field says otherwise. A `Config` made by `core.config.load` is *normalised*: macros are expanded, ports
given, inherited values filled in, old spellings moved to their new place.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from appliance.core.config.additions import (
    ConversationsConfig,
    HangsConfig,
    Json,
    Keys,
    McpServerConfig,
    PluginConfig,
    RunsConfig,
    ServerPool,
    StreamsConfig,
    ToolsConfig,
    told,
)

Scalars = str | int | float | bool
NonNegative = Annotated[int, Meta(ge=0)]

DEFAULT_LIMIT = 10
"""Requests of one model at once where ``concurrencyLimit`` is 0."""
GROUP_OF_THE_REST = "(default)"


class Timeouts(Keys, frozen=True, rename="camel"):
    """Connection timeouts towards a model's server; 0 is none."""

    connect: Annotated[int, told("TCP connect"), Meta(ge=0)] = 30
    keepalive: Annotated[int, told("TCP keep-alive probes"), Meta(ge=0)] = 30
    response_header: Annotated[int, told("Wait for the answer's head"), Meta(ge=0)] = 0
    tls_handshake: Annotated[int, told("TLS handshake"), Meta(ge=0)] = 10
    expect_continue: Annotated[int, told("Accepted, unused: no request waits for 100 Continue"), Meta(ge=0)] = 1
    idle_conn: Annotated[int, told("Accepted, unused: connections are not kept"), Meta(ge=0)] = 90


class PeerTimeouts(Timeouts, frozen=True, rename="camel"):
    """The same towards a peer."""

    response_header: Annotated[int, told("Wait for the answer's head"), Meta(ge=0)] = 60


class Filters(Keys, frozen=True, rename="camel"):
    """Edits of JSON request bodies, in this order. Keys are dotted paths."""

    strip_params: Annotated[str, told("Comma list of paths that are deleted; never `model`")] = ""
    set_params: Annotated[dict[str, Json], told("Paths that are set, in sorted order; never `model`")] = {}
    set_params_by_id: Annotated[
        dict[str, dict[str, Json]], told("The same by the name the client asked for; each key becomes an alias")
    ] = field(default_factory=dict[str, dict[str, Json]], name="setParamsByID")


class PeerFilters(Filters, frozen=True, rename="camel"):
    set_params_by_id: Annotated[dict[str, dict[str, Json]], told("The same by the name the client asked for")] = field(
        default_factory=dict[str, dict[str, Json]], name="setParamsByID"
    )


class Compat(Keys, frozen=True, rename="camel"):
    ignore_websockets: Annotated[
        bool, told("Websockets of this model are outside scheduling: 409 unless it is ready, never a use")
    ] = False
    foreign_port: Annotated[
        bool, told("The port is held by a process that cmd does not start itself: a container's, a service's")
    ] = False


Modality = Literal["text", "audio", "image"]


class Capabilities(Keys, frozen=True):
    """The abilities of a model, for listings. All empty is the same as not configured."""

    inputs: Annotated[list[Modality], told("Kinds of input")] = field(default_factory=list[Modality], name="in")
    outputs: Annotated[list[Modality], told("Kinds of output")] = field(default_factory=list[Modality], name="out")
    tools: Annotated[bool, told("It calls functions")] = False
    reranker: Annotated[bool, told("It ranks documents")] = False
    context: Annotated[int, told("Context length in tokens"), Meta(ge=0)] = 0


AutoDownload = Literal["", "ask", "allow", "off"]

Memory = dict[str, str | int]
"""Device (``ram``, ``gpu0``, ``gpu1`` ...) to bytes: a number, or text as in ``12GiB``, ``500MB``."""


class ModelConfig(Keys, frozen=True, rename="camel"):
    """One model: a command that serves it and how requests reach it."""

    cmd: Annotated[str, told("The command that starts the server; lines that begin with # are comments")] = ""
    cmd_stop: Annotated[
        str, told("The command that stops it; ${PID} is its process id. Empty: the program ends it")
    ] = ""
    proxy: Annotated[str, told("Where the server listens")] = "http://localhost:${PORT}"
    aliases: Annotated[list[str], told("Other names of the model")] = []
    env: Annotated[list[str], told("NAME=value for the process, after the program's own environment")] = []
    check_endpoint: Annotated[str, told("Path that answers 200 when the model is ready; none: ready at once")] = (
        "/health"
    )
    ttl: Annotated[int, told("Unload after so long without a request; 0 never, -1 as globalTTL"), Meta(ge=-1)] = -1
    unload_timeout: Annotated[int, told("Time to stop before it is killed; 0 as the global one"), Meta(ge=0)] = 0
    unlisted: Annotated[bool, told("Not in /v1/models")] = False
    disabled: Annotated[bool, told("Addition: not listed and not served, as if it were not in the file")] = False
    use_model_name: Annotated[str, told("The model's name in requests to its server")] = ""
    name: Annotated[str, told("Display name")] = ""
    description: Annotated[str, told("Display text")] = ""
    concurrency_limit: Annotated[int, told("Requests at once, queued ones included; 0 is 10")] = 0
    filters: Annotated[Filters, told("Edits of request bodies")] = field(default_factory=Filters)
    macros: Annotated[dict[str, Scalars], told("Text blocks for this model; same names replace the global ones")] = {}
    metadata: Annotated[dict[str, Json], told("Anything, shown in /v1/models under meta.llamaswap")] = {}
    send_loading_state: Annotated[
        bool | UnsetType, told("Tell streaming chat clients that the model loads; absent: as the global one")
    ] = UNSET
    timeouts: Annotated[Timeouts, told("Connection timeouts")] = field(default_factory=Timeouts)
    compat: Annotated[Compat, told("Switches for odd clients")] = field(default_factory=Compat)
    capabilities: Annotated[Capabilities, told("Its abilities, for listings")] = field(default_factory=Capabilities)
    health_check_timeout: Annotated[
        int, told("Addition: as the global healthCheckTimeout, for this model; 0 inherits"), Meta(ge=0)
    ] = 0
    pinned: Annotated[bool, told("Addition: never unloaded to make room, and not by ttl")] = False
    memory: Annotated[Memory, told("Addition: what it takes, by device; absent: measured while it runs")] = {}
    patience: Annotated[
        int,
        told("Addition: how long its requests let another model's keep it waiting; -1 as the global one"),
        Meta(ge=-1),
    ] = -1
    min_loaded_time: Annotated[
        int, told("Addition: stays loaded at least so long once it is ready; -1 as the global one"), Meta(ge=-1)
    ] = -1
    engine: Annotated[
        str,
        told("Addition: the engine that llama-server in cmd stands for: auto, vulkan ...; empty: cmd runs as it is"),
    ] = ""
    gpu: Annotated[
        str | list[str],
        told("Addition: the graphics cards that it runs on, by name, as in RTX 4090; engine is then auto"),
    ] = ""
    rpc: Annotated[
        list[str], told("Addition: workers (HOST:PORT) whose devices it also uses; engine is then auto")
    ] = []
    argv: Annotated[list[str], told("Addition: cmd split into words; shown, and ignored when read")] = []

    @property
    def cards(self) -> tuple[str, ...]:
        """The graphics cards that ``gpu`` names."""
        return tuple(filter(None, map(str.strip, [self.gpu] if isinstance(self.gpu, str) else self.gpu)))

    @property
    def limit(self) -> int:
        """Requests at once, queued ones included."""
        return self.concurrency_limit if self.concurrency_limit > 0 else DEFAULT_LIMIT


class Group(Keys, frozen=True):
    swap: Annotated[bool, told("Loading a member unloads the other members")] = True
    exclusive: Annotated[bool, told("Loading a member unloads the members of other groups")] = True
    persistent: Annotated[bool, told("Not unloaded for other groups")] = False
    members: Annotated[list[str], told("Model ids")] = []


class MatrixConfig(Keys, frozen=True):
    vars: Annotated[dict[str, str], told("Short name to model id")] = {}
    evict_costs: Annotated[
        dict[str, Annotated[int, Meta(ge=1)]], told("Short name or model id to the cost of unloading it; default 1")
    ] = {}
    sets: Annotated[dict[str, str], told("Name to expression: which models may run together")] = {}


class RouterSettings(Keys, frozen=True):
    groups: Annotated[dict[str, Group], told("Groups of models")] = {}
    matrix: Annotated[MatrixConfig | None, told("Which models may run together")] = None


class RouterConfig(Keys, frozen=True):
    use: Annotated[Literal["group", "matrix"], told("Which policy decides who runs beside whom")] = "group"
    settings: Annotated[RouterSettings, told("The policies")] = field(default_factory=RouterSettings)


class FifoSettings(Keys, frozen=True):
    priority: Annotated[dict[str, int], told("Model to priority; higher is served first, default 0")] = {}


class SchedulerSettings(Keys, frozen=True):
    fifo: Annotated[FifoSettings, told("The queue")] = field(default_factory=FifoSettings)


class SchedulerConfig(Keys, frozen=True):
    use: Annotated[Literal["fifo"], told("The kind of queue")] = "fifo"
    settings: Annotated[SchedulerSettings, told("Its settings")] = field(default_factory=SchedulerSettings)


class Routing(Keys, frozen=True):
    router: Annotated[RouterConfig, told("Which models may run together")] = field(default_factory=RouterConfig)
    scheduler: Annotated[SchedulerConfig, told("Which requests are served first")] = field(
        default_factory=SchedulerConfig
    )


class Peer(Keys, frozen=True, rename="camel"):
    """Another server and the models it is asked for."""

    proxy: Annotated[str, told("Base URL")] = ""
    api_key: Annotated[str, told("Sent as Authorization: Bearer and x-api-key; never the client's own key")] = ""
    models: Annotated[
        list[str], told("Its models; Addition: left out, they are read from its /v1/models and kept up to date")
    ] = []
    filters: Annotated[PeerFilters, told("Edits of request bodies")] = field(default_factory=PeerFilters)
    timeouts: Annotated[PeerTimeouts, told("Connection timeouts")] = field(default_factory=PeerTimeouts)


class Profile(Keys, frozen=True):
    """A set of names that mean other models while the profile is active."""

    description: Annotated[str, told("Display text")] = ""
    pins: Annotated[dict[str, str | None], told("Name to model, alias, peer model or selector; null: not found")] = {}


class SelectorSettings(Keys, frozen=True):
    spillover: Annotated[int, told("Requests at one target before the next is started"), Meta(ge=1)] = 1


class Selector(Keys, frozen=True):
    """A name that stands for several models."""

    strategy: Annotated[Literal["pin", "warm", "spillover"], told("How the target is chosen")] = "pin"
    targets: Annotated[list[str], told("Models, aliases or peer models")] = []
    settings: Annotated[SelectorSettings, told("Settings of the strategy")] = field(default_factory=SelectorSettings)
    name: Annotated[str, told("Display name")] = ""
    description: Annotated[str, told("Display text")] = ""


class StoreConfig(Keys, frozen=True):
    path: Annotated[str, told("SQLite file of the activity log")] = ""


class ActivityUi(Keys, frozen=True):
    session_id: Annotated[list[str], told("Request headers that name a client's session; [] is off")] = field(
        default_factory=lambda: ["X-Session-ID", "X-Litellm-Session-Id"]
    )


class Ui(Keys, frozen=True):
    activity: Annotated[ActivityUi, told("The activity page")] = field(default_factory=ActivityUi)


class Performance(Keys, frozen=True):
    disabled: Annotated[bool, told("Take no samples of the machine")] = False
    every: Annotated[str, told("Pause between samples, with a unit, as in 5s or 1m30s; at least 5s")] = "5s"


class OnStartup(Keys, frozen=True):
    preload: Annotated[list[str], told("Models loaded at the start, one after the other")] = []


class Hooks(Keys, frozen=True):
    on_startup: Annotated[OnStartup, told("At the start")] = field(default_factory=OnStartup)


class UpstreamConfig(Keys, frozen=True, rename="camel"):
    ignore_paths: Annotated[list[str], told("Regular expressions: /upstream/ paths that never start a model")] = field(
        default_factory=lambda: [r".*\.(js|json|css|png|gif|jpg|jpeg|ico|txt)$"]
    )


class Config(Keys, frozen=True, rename="camel"):
    """A whole configuration."""

    health_check_timeout: Annotated[int, told("Longest time a model may take to be ready; at least 15")] = 120
    log_requests: Annotated[bool, told("Accepted, unused")] = False
    log_level: Annotated[str, told("debug, info, warn or error")] = "info"
    log_time_format: Annotated[str, told("Time stamp of log lines; empty: none")] = ""
    log_to_stdout: Annotated[Literal["proxy", "upstream", "both", "none"], told("Which log goes to the console")] = (
        "proxy"
    )
    metrics_max_in_memory: Annotated[int, told("Activity rows kept without store.path")] = 1000
    capture_buffer: Annotated[int, told("MiB for captured requests and responses; 0 is off"), Meta(ge=0)] = 5
    store: Annotated[StoreConfig | None, told("Where the activity log is kept; absent: in memory")] = None
    ui: Annotated[Ui, told("The page")] = field(default_factory=Ui)
    performance: Annotated[Performance, told("Samples of the machine")] = field(default_factory=Performance)
    global_ttl: Annotated[int, told("ttl of models that have none; 0 never"), Meta(ge=0)] = field(
        default=0, name="globalTTL"
    )
    unload_timeout: Annotated[int, told("Time a model gets to stop before it is killed; 0 is 10"), Meta(ge=0)] = 10
    start_port: Annotated[int, told("First value of ${PORT}"), Meta(ge=1)] = 5800
    ollama_port: Annotated[
        int, told("Addition: also listen on this port of this machine, for clients of Ollama; 0: no"), Meta(ge=0)
    ] = 0
    send_loading_state: Annotated[bool, told("Tell streaming chat clients that the model loads")] = False
    include_aliases_in_list: Annotated[bool, told("Aliases are also entries of /v1/models")] = False
    macros: Annotated[dict[str, Scalars], told("Text blocks for ${NAME}; order matters")] = {}
    api_keys: Annotated[list[str], told("Let in only who has one of these")] = []
    models: Annotated[dict[str, ModelConfig], told("Id to model")] = {}
    groups: Annotated[dict[str, Group] | None, told("Old place of routing.router.settings.groups")] = None
    matrix: Annotated[MatrixConfig | None, told("Old place of routing.router.settings.matrix")] = None
    routing: Annotated[Routing, told("Which models run together, and which requests are served first")] = field(
        default_factory=Routing
    )
    hooks: Annotated[Hooks, told("What is done at events")] = field(default_factory=Hooks)
    peers: Annotated[dict[str, Peer], told("Other servers")] = {}
    profiles: Annotated[dict[str, Profile], told("Switchable sets of names")] = {}
    selectors: Annotated[dict[str, Selector], told("Names that stand for several models")] = {}
    upstream: Annotated[UpstreamConfig, told("The /upstream/ routes")] = field(default_factory=UpstreamConfig)
    models_max: Annotated[NonNegative | None, told("Addition: models loaded at once; 0 or absent: no limit")] = None
    memory: Annotated[
        Memory, told("Addition: what all loaded models together may take, by device; absent: what the machine has")
    ] = {}
    vram_policy: Annotated[
        Literal["yield", "keep"],
        told("Addition: when other programs take a GPU's memory: yield unloads idle models, keep changes nothing"),
    ] = "yield"
    patience: Annotated[
        int,
        told("Addition: seconds after which a waiting request stops new ones for the models in its way; -1 never"),
        Meta(ge=-1),
    ] = 10
    min_loaded_time: Annotated[
        int, told("Addition: a model stays loaded at least so long once it is ready"), Meta(ge=0)
    ] = 0
    queue_timeout: Annotated[int, told("Addition: a request waits at most so long for its model"), Meta(ge=1)] = 600
    queue_limit: Annotated[int, told("Addition: requests that may wait at once, of all models"), Meta(ge=1)] = 1000
    hangs: Annotated[HangsConfig, told("Addition: model processes that hang at work")] = field(
        default_factory=HangsConfig
    )
    auto_download: Annotated[
        AutoDownload,
        told("Addition: models that requests name are downloaded: allow, ask (the request agrees), off (not at all)"),
    ] = ""
    auto_download_from: Annotated[
        list[str], told("Addition: owners on the hub whose models autoDownload may fetch; empty: of anybody")
    ] = []
    auto_download_max: Annotated[
        str | int, told("Addition: the largest model that autoDownload fetches, as in 20GB; 0: any size")
    ] = 0
    loading_jokes: Annotated[bool, told("Addition: jokes while a model loads, as llama-swap tells them")] = False
    conversations: Annotated[ConversationsConfig, told("Addition: the conversations of the page")] = field(
        default_factory=ConversationsConfig
    )
    streams: Annotated[StreamsConfig, told("Addition: streams that survive a dropped connection")] = field(
        default_factory=StreamsConfig
    )
    runs: Annotated[RunsConfig, told("Addition: agent runs")] = field(default_factory=RunsConfig)
    mcp_server: Annotated[McpServerConfig, told("Addition: the program as an MCP server")] = field(
        default_factory=McpServerConfig
    )
    tools: Annotated[ToolsConfig, told("Addition: tools of this machine for clients and models")] = field(
        default_factory=ToolsConfig
    )
    mcp_servers: Annotated[
        dict[str, Json], told("Addition: MCP servers, as under mcpServers in the files of desktop clients")
    ] = field(default_factory=dict[str, Json], name="mcp_servers")
    plugins: Annotated[
        dict[str, PluginConfig] | None,
        told("Addition: plugins and what is put over their config.json; absent, as plugins_dir: no plugins"),
    ] = None
    plugins_dir: Annotated[str | list[str], told("Addition: folder of agent plugins, or a list of them")] = field(
        default="", name="plugins_dir"
    )
    server_pool: Annotated[ServerPool, told("Addition: Llama Smart Proxy's name for modelsMax")] = field(
        default_factory=ServerPool, name="server_pool"
    )
