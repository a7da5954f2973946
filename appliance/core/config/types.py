"""The configuration as values: field names are the file's keys, defaults are the file's defaults.

This is the schema: the decoder, ``config show``, ``config schema`` and the tests of the documentation walk these types.
`Config` has the kernel's keys. `config_with` makes the type that the program reads, which has those of features too.
Keys and defaults are llama-swap's (0bdb3720), except those whose description begins with "Addition:". Times are whole
seconds unless a field says otherwise. A `Config` made by `core.config.load` is *normalised*: macros are expanded, ports
given, inherited values filled in, old spellings moved to their new place.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, ClassVar, Literal, TypeVar, cast

from msgspec import UNSET, Meta, UnsetType, defstruct, field, structs

from appliance.core.config.additions import (
    FeatureKeys,
    HangsConfig,
    Json,
    McpServerConfig,
    PluginConfig,
    RunsConfig,
    Section,
    ServerPool,
    ToolsConfig,
    doc,
)

K = TypeVar("K", bound=FeatureKeys)
Scalars = str | int | float | bool
NonNegative = Annotated[int, Meta(ge=0)]

DEFAULT_LIMIT = 10
"""Requests of one model at once where ``concurrencyLimit`` is 0."""
DEFAULT_GROUP = "(default)"
BEHIND_FEATURES = ("runs", "mcp_server", "tools", "mcp_servers", "plugins", "plugins_dir", "server_pool")
"""The kernel's keys that are shown behind those of features."""


class Timeouts(Section, frozen=True, rename="camel"):
    """Connection timeouts towards a model's server; 0 is none."""

    connect: Annotated[int, doc("TCP connect"), Meta(ge=0)] = 30
    keepalive: Annotated[int, doc("TCP keep-alive probes"), Meta(ge=0)] = 30
    response_header: Annotated[int, doc("Wait for the answer's head"), Meta(ge=0)] = 0
    tls_handshake: Annotated[int, doc("TLS handshake"), Meta(ge=0)] = 10
    expect_continue: Annotated[int, doc("Accepted, unused: no request waits for 100 Continue"), Meta(ge=0)] = 1
    idle_conn: Annotated[int, doc("Accepted, unused: connections are not kept"), Meta(ge=0)] = 90


class PeerTimeouts(Timeouts, frozen=True, rename="camel"):
    """The same towards a peer."""

    response_header: Annotated[int, doc("Wait for the answer's head"), Meta(ge=0)] = 60


class Filters(Section, frozen=True, rename="camel"):
    """Edits of JSON request bodies, in this order. Keys are dotted paths."""

    strip_params: Annotated[str, doc("Comma list of paths that are deleted; never `model`")] = ""
    set_params: Annotated[dict[str, Json], doc("Paths that are set, in sorted order; never `model`")] = {}
    set_params_by_id: Annotated[
        dict[str, dict[str, Json]], doc("The same by the name the client asked for; each key becomes an alias")
    ] = field(default={}, name="setParamsByID")


class PeerFilters(Filters, frozen=True, rename="camel"):
    set_params_by_id: Annotated[dict[str, dict[str, Json]], doc("The same by the name the client asked for")] = field(
        default={}, name="setParamsByID"
    )


class Compat(Section, frozen=True, rename="camel"):
    ignore_websockets: Annotated[
        bool, doc("Websockets of this model are outside scheduling: 409 unless it is ready, never a use")
    ] = False
    foreign_port: Annotated[
        bool, doc("The port is held by a process that cmd does not start itself: a container's, a service's")
    ] = False


Modality = Literal["text", "audio", "image"]


class Capabilities(Section, frozen=True):
    """The abilities of a model, for listings. All empty is the same as not configured."""

    inputs: Annotated[list[Modality], doc("Kinds of input")] = field(default_factory=list[Modality], name="in")
    outputs: Annotated[list[Modality], doc("Kinds of output")] = field(default_factory=list[Modality], name="out")
    tools: Annotated[bool, doc("It calls functions")] = False
    reranker: Annotated[bool, doc("It ranks documents")] = False
    context: Annotated[int, doc("Context length in tokens"), Meta(ge=0)] = 0


AutoDownload = Literal["", "ask", "allow", "off"]

KeepContext = Literal["ram", "disk", "off"]

Memory = dict[str, str | int]
"""Device (``ram``, ``gpu0``, ``gpu1`` ...) to bytes: a number, or text as in ``12GiB``, ``500MB``."""


class ModelConfig(Section, frozen=True, rename="camel"):
    """One model: a command that serves it and how requests reach it."""

    cmd: Annotated[str, doc("The command that starts the server; lines that begin with # are comments")] = ""
    cmd_stop: Annotated[str, doc("The command that stops it; ${PID} is its process id. Empty: the program ends it")] = (
        ""
    )
    proxy: Annotated[str, doc("Where the server listens")] = "http://localhost:${PORT}"
    aliases: Annotated[list[str], doc("Other names of the model")] = []
    env: Annotated[list[str], doc("NAME=value for the process, after the program's own environment")] = []
    check_endpoint: Annotated[str, doc("Path that answers 200 when the model is ready; none: ready at once")] = (
        "/health"
    )
    ttl: Annotated[int, doc("Unload after so long without a request; 0 never, -1 as globalTTL"), Meta(ge=-1)] = -1
    unload_timeout: Annotated[int, doc("Time to stop before it is killed; 0 as the global one"), Meta(ge=0)] = 0
    unlisted: Annotated[bool, doc("Not in /v1/models")] = False
    disabled: Annotated[bool, doc("Addition: not listed and not served, as if it were not in the file")] = False
    use_model_name: Annotated[str, doc("The model's name in requests to its server")] = ""
    name: Annotated[str, doc("Display name")] = ""
    description: Annotated[str, doc("Display text")] = ""
    concurrency_limit: Annotated[int, doc("Requests at once, queued ones included; 0 is 10")] = 0
    filters: Annotated[Filters, doc("Edits of request bodies")] = Filters()
    macros: Annotated[dict[str, Scalars], doc("Text blocks for this model; same names replace the global ones")] = {}
    metadata: Annotated[dict[str, Json], doc("Anything, shown in /v1/models under meta.llamaswap")] = {}
    send_loading_state: Annotated[
        bool | UnsetType, doc("Tell streaming chat clients that the model loads; absent: as the global one")
    ] = UNSET
    repair_messages: Annotated[
        bool | UnsetType, doc("Addition: as the global one, for this model; absent: as that")
    ] = UNSET
    timeouts: Annotated[Timeouts, doc("Connection timeouts")] = Timeouts()
    compat: Annotated[Compat, doc("Switches for odd clients")] = Compat()
    capabilities: Annotated[Capabilities, doc("Its abilities, for listings")] = Capabilities()
    health_check_timeout: Annotated[
        int, doc("Addition: as the global healthCheckTimeout, for this model; 0 inherits"), Meta(ge=0)
    ] = 0
    pinned: Annotated[bool, doc("Addition: never unloaded to make room, and not by ttl")] = False
    memory: Annotated[Memory, doc("Addition: what it takes, by device; absent: measured while it runs")] = {}
    patience: Annotated[
        int,
        doc("Addition: how long its requests let another model's keep it waiting; -1 as the global one"),
        Meta(ge=-1),
    ] = -1
    min_loaded_time: Annotated[
        int, doc("Addition: stays loaded at least so long once it is ready; -1 as the global one"), Meta(ge=-1)
    ] = -1
    engine: Annotated[
        str,
        doc("Addition: the engine that llama-server in cmd stands for: auto, vulkan ...; empty: cmd runs as it is"),
    ] = ""
    gpu: Annotated[
        str | list[str],
        doc("Addition: the graphics cards that it runs on, by name, as in RTX 4090; engine is then auto"),
    ] = ""
    rpc: Annotated[list[str], doc("Addition: workers (HOST:PORT) whose devices it also uses; engine is then auto")] = []
    argv: Annotated[list[str], doc("Addition: cmd split into words; shown, and ignored when read")] = []

    @property
    def cards(self) -> tuple[str, ...]:
        """The graphics cards that ``gpu`` names."""
        return tuple(filter(None, map(str.strip, [self.gpu] if isinstance(self.gpu, str) else self.gpu)))

    @property
    def limit(self) -> int:
        """Requests at once, queued ones included."""
        return self.concurrency_limit if self.concurrency_limit > 0 else DEFAULT_LIMIT


class Group(Section, frozen=True):
    swap: Annotated[bool, doc("Loading a member unloads the other members")] = True
    exclusive: Annotated[bool, doc("Loading a member unloads the members of other groups")] = True
    persistent: Annotated[bool, doc("Not unloaded for other groups")] = False
    members: Annotated[list[str], doc("Model ids")] = []


class MatrixConfig(Section, frozen=True):
    vars: Annotated[dict[str, str], doc("Short name to model id")] = {}
    evict_costs: Annotated[
        dict[str, Annotated[int, Meta(ge=1)]], doc("Short name or model id to the cost of unloading it; default 1")
    ] = {}
    sets: Annotated[dict[str, str], doc("Name to expression: which models may run together")] = {}


class RouterSettings(Section, frozen=True):
    groups: Annotated[dict[str, Group], doc("Groups of models")] = {}
    matrix: Annotated[MatrixConfig | None, doc("Which models may run together")] = None


class RouterConfig(Section, frozen=True):
    use: Annotated[Literal["group", "matrix"], doc("Which policy decides who runs beside whom")] = "group"
    settings: Annotated[RouterSettings, doc("The policies")] = RouterSettings()


class FifoSettings(Section, frozen=True):
    priority: Annotated[dict[str, int], doc("Model to priority; higher is served first, default 0")] = {}


class SchedulerSettings(Section, frozen=True):
    fifo: Annotated[FifoSettings, doc("The queue")] = FifoSettings()


class SchedulerConfig(Section, frozen=True):
    use: Annotated[Literal["fifo"], doc("The kind of queue")] = "fifo"
    settings: Annotated[SchedulerSettings, doc("Its settings")] = SchedulerSettings()


class Routing(Section, frozen=True):
    router: Annotated[RouterConfig, doc("Which models may run together")] = RouterConfig()
    scheduler: Annotated[SchedulerConfig, doc("Which requests are served first")] = SchedulerConfig()


class Peer(Section, frozen=True, rename="camel"):
    """Another server and the models it is asked for."""

    proxy: Annotated[str, doc("Base URL")] = ""
    api_key: Annotated[str, doc("Sent as Authorization: Bearer and x-api-key; never the client's own key")] = ""
    models: Annotated[
        list[str], doc("Its models; Addition: left out, they are read from its /v1/models and kept up to date")
    ] = []
    filters: Annotated[PeerFilters, doc("Edits of request bodies")] = PeerFilters()
    timeouts: Annotated[PeerTimeouts, doc("Connection timeouts")] = PeerTimeouts()


class Profile(Section, frozen=True):
    """A set of names that mean other models while the profile is active."""

    description: Annotated[str, doc("Display text")] = ""
    pins: Annotated[dict[str, str | None], doc("Name to model, alias, peer model or selector; null: not found")] = {}


class SelectorSettings(Section, frozen=True):
    spillover: Annotated[int, doc("Requests at one target before the next is started"), Meta(ge=1)] = 1


class Selector(Section, frozen=True):
    """A name that stands for several models."""

    strategy: Annotated[Literal["pin", "warm", "spillover", "meanwhile"], doc("How the target is chosen")] = "pin"
    targets: Annotated[list[str], doc("Models, aliases or peer models")] = []
    settings: Annotated[SelectorSettings, doc("Settings of the strategy")] = SelectorSettings()
    name: Annotated[str, doc("Display name")] = ""
    description: Annotated[str, doc("Display text")] = ""


class StoreConfig(Section, frozen=True):
    path: Annotated[str, doc("SQLite file of the activity log")] = ""


class ActivityUi(Section, frozen=True):
    session_id: Annotated[list[str], doc("Request headers that name a client's session; [] is off")] = field(
        default_factory=lambda: ["X-Session-ID", "X-Litellm-Session-Id"]
    )


class Ui(Section, frozen=True):
    activity: Annotated[ActivityUi, doc("The activity page")] = ActivityUi()


class PerformanceConfig(Section, frozen=True):
    disabled: Annotated[bool, doc("Take no samples of the machine")] = False
    every: Annotated[str, doc("Pause between samples, with a unit, as in 5s or 1m30s; at least 5s")] = "5s"


class OnStartup(Section, frozen=True):
    preload: Annotated[list[str], doc("Models loaded at the start, one after the other")] = []


class HooksConfig(Section, frozen=True):
    on_startup: Annotated[OnStartup, doc("At the start")] = OnStartup()


class UpstreamConfig(Section, frozen=True, rename="camel"):
    ignore_paths: Annotated[list[str], doc("Regular expressions: /upstream/ paths that never start a model")] = field(
        default_factory=lambda: [r".*\.(js|json|css|png|gif|jpg|jpeg|ico|txt)$"]
    )


class Config(Section, frozen=True, rename="camel"):
    """A whole configuration."""

    feature_keys: ClassVar[tuple[type[FeatureKeys], ...]] = ()
    health_check_timeout: Annotated[int, doc("Longest time a model may take to be ready; at least 15")] = 120
    log_requests: Annotated[bool, doc("Accepted, unused")] = False
    log_level: Annotated[str, doc("debug, info, warn or error")] = "info"
    log_time_format: Annotated[str, doc("Time stamp of log lines; empty: none")] = ""
    log_to_stdout: Annotated[Literal["proxy", "upstream", "both", "none"], doc("Which log goes to the console")] = (
        "proxy"
    )
    metrics_max_in_memory: Annotated[int, doc("Activity rows kept without store.path")] = 1000
    capture_buffer: Annotated[int, doc("MiB for captured requests and responses; 0 is off"), Meta(ge=0)] = 5
    store: Annotated[StoreConfig | None, doc("Where the activity log is kept; absent: in memory")] = None
    ui: Annotated[Ui, doc("The page")] = Ui()
    performance: Annotated[PerformanceConfig, doc("Samples of the machine")] = PerformanceConfig()
    global_ttl: Annotated[int, doc("ttl of models that have none; 0 never"), Meta(ge=0)] = field(
        default=0, name="globalTTL"
    )
    unload_timeout: Annotated[int, doc("Time a model gets to stop before it is killed; 0 is 10"), Meta(ge=0)] = 10
    start_port: Annotated[int, doc("First value of ${PORT}"), Meta(ge=1)] = 5800
    ollama_port: Annotated[
        int, doc("Addition: also listen on this port of this machine, for clients of Ollama; 0: no"), Meta(ge=0)
    ] = 0
    send_loading_state: Annotated[bool, doc("Tell streaming chat clients that the model loads")] = False
    include_aliases_in_list: Annotated[bool, doc("Aliases are also entries of /v1/models")] = False
    aliases: Annotated[dict[str, str], doc("Addition: another name to a model, also to one of the models folder")] = {}
    fallback_model: Annotated[str, doc("Addition: the model for chats that name an unknown one; empty: none")] = ""
    macros: Annotated[dict[str, Scalars], doc("Text blocks for ${NAME}; order matters")] = {}
    api_keys: Annotated[list[str], doc("Let in only who has one of these")] = []
    models: Annotated[dict[str, ModelConfig], doc("Id to model")] = {}
    groups: Annotated[dict[str, Group] | None, doc("Old place of routing.router.settings.groups")] = None
    matrix: Annotated[MatrixConfig | None, doc("Old place of routing.router.settings.matrix")] = None
    routing: Annotated[Routing, doc("Which models run together, and which requests are served first")] = Routing()
    hooks: Annotated[HooksConfig, doc("What is done at events")] = HooksConfig()
    peers: Annotated[dict[str, Peer], doc("Other servers")] = {}
    profiles: Annotated[dict[str, Profile], doc("Switchable sets of names")] = {}
    selectors: Annotated[dict[str, Selector], doc("Names that stand for several models")] = {}
    upstream: Annotated[UpstreamConfig, doc("The /upstream/ routes")] = UpstreamConfig()
    models_max: Annotated[NonNegative | None, doc("Addition: models loaded at once; 0 or absent: no limit")] = None
    memory: Annotated[
        Memory, doc("Addition: what all loaded models together may take, by device; absent: what the machine has")
    ] = {}
    allow_overcommit: Annotated[
        bool, doc("Addition: start models that the memory of this program's container or service cannot take")
    ] = False
    vram_policy: Annotated[
        Literal["yield", "keep"],
        doc("Addition: when other programs take a GPU's memory: yield unloads idle models, keep changes nothing"),
    ] = "yield"
    patience: Annotated[
        int,
        doc("Addition: seconds after which a waiting request stops new ones for the models in its way; -1 never"),
        Meta(ge=-1),
    ] = 10
    min_loaded_time: Annotated[
        int, doc("Addition: a model stays loaded at least so long once it is ready"), Meta(ge=0)
    ] = 0
    queue_timeout: Annotated[int, doc("Addition: a request waits at most so long for its model"), Meta(ge=1)] = 600
    queue_limit: Annotated[int, doc("Addition: requests that may wait at once, of all models"), Meta(ge=1)] = 1000
    hangs: Annotated[HangsConfig, doc("Addition: model processes that hang at work")] = HangsConfig()
    auto_download: Annotated[
        AutoDownload,
        doc("Addition: models that requests name are downloaded: allow, ask (the request agrees), off (not at all)"),
    ] = ""
    auto_download_from: Annotated[
        list[str], doc("Addition: owners on the hub whose models autoDownload may fetch; empty: of anybody")
    ] = []
    auto_download_max: Annotated[
        str | int, doc("Addition: the largest model that autoDownload fetches, as in 20GB; 0: any size")
    ] = 0
    keep_context: Annotated[
        KeepContext,
        doc("Addition: where contexts are kept for the next process of their model: ram, disk or off (not at all)"),
    ] = "ram"
    repair_messages: Annotated[
        bool, doc("Addition: chats that an engine refuses are changed so that it takes them; off: never")
    ] = True
    loading_jokes: Annotated[bool, doc("Addition: jokes while a model loads, as llama-swap tells them")] = False
    runs: Annotated[RunsConfig, doc("Addition: agent runs")] = RunsConfig()
    mcp_server: Annotated[McpServerConfig, doc("Addition: the program as an MCP server")] = McpServerConfig()
    tools: Annotated[ToolsConfig, doc("Addition: tools of this machine for clients and models")] = ToolsConfig()
    mcp_servers: Annotated[
        dict[str, Json], doc("Addition: MCP servers, as under mcpServers in the files of desktop clients")
    ] = field(default_factory=dict[str, Json], name="mcp_servers")
    plugins: Annotated[
        dict[str, PluginConfig] | None,
        doc("Addition: plugins and what is put over their config.json; absent, as plugins_dir: no plugins"),
    ] = None
    plugins_dir: Annotated[str | list[str], doc("Addition: folder of agent plugins, or a list of them")] = field(
        default="", name="plugins_dir"
    )
    server_pool: Annotated[ServerPool, doc("Addition: Llama Smart Proxy's name for modelsMax")] = field(
        default=ServerPool(), name="server_pool"
    )

    def keys_of(self, kind: type[K]) -> K:
        """Return the keys of a feature; with their defaults, where this type of configuration has not got them."""
        known = (name for name in kind.__struct_fields__ if name in self.__struct_fields__)
        return kind(**{name: getattr(self, name) for name in known})

    def by_feature(self) -> Iterator[FeatureKeys]:
        """Yield the keys of each feature."""
        return map(self.keys_of, self.feature_keys)


@cache
def config_with(feature_keys: tuple[type[FeatureKeys], ...]) -> type[Config]:
    """Return the type of a configuration that also has these keys. Each has a default."""
    fields = [(each.name, each.type, each.default) for kind in feature_keys for each in structs.fields(kind)]
    made = defstruct(
        Config.__name__,
        fields,
        bases=(Config,),
        namespace={"__doc__": Config.__doc__, "feature_keys": feature_keys},
        module=__name__,
        frozen=True,
        kw_only=True,
        rename="camel",
    )
    return cast("type[Config]", made)  # by its base
