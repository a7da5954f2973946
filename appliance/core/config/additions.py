"""The sections of the configuration that llama-swap does not have. `core.config.types` has all others, and uses these.

The base of both is here: each type of the schema is made of `Section`, and `doc` describes one key.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

Json = object
"""Any JSON value; of mappings and lists, plain dicts and lists."""
Positive = Annotated[int, Meta(ge=1)]


def doc(text: str) -> Meta:
    return Meta(description=text)


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of one mapping in the file. An unknown one is a mistake."""


class ServerPool(Section, frozen=True):
    num_servers: Annotated[Positive | None, doc("Addition: models loaded at once, as modelsMax")] = None


class StreamsConfig(Section, frozen=True):
    """Generations that go on, and can be read again, when their client's connection is gone."""

    max_bytes: Annotated[int, doc("Addition: bytes kept of one stream, the newest"), Meta(ge=1)] = 4 << 20
    keep: Annotated[int, doc("Addition: a stream that has ended is kept for so long"), Meta(ge=0)] = 300
    max_total: Annotated[int, doc("Addition: bytes kept of all streams; the oldest go first"), Meta(ge=1)] = 256 << 20
    path: Annotated[str, doc("Addition: folder where streams survive a restart; empty: in memory alone")] = ""


class HangsConfig(Section, frozen=True):
    """When a model process that has work, sends nothing and answers no question is ended as one that has crashed."""

    after: Annotated[
        int, doc("Addition: seconds of silence until it is asked whether it lives; 0 never"), Meta(ge=0)
    ] = 60
    awaited: Annotated[int, doc("Addition: the same while another model waits for room"), Meta(ge=1)] = 20
    answer: Annotated[int, doc("Addition: seconds that it has to answer its check endpoint"), Meta(ge=1)] = 10
    floor: Annotated[int, doc("Addition: fewer bytes than these within that time are silence"), Meta(ge=1)] = 64


class TracingConfig(Section, frozen=True):
    """Finished requests, sent to a collector as OpenTelemetry traces."""

    endpoint: Annotated[
        str, doc("Addition: base URL of a collector that takes OTLP over HTTP; /v1/traces is put behind it")
    ] = "http://127.0.0.1:4318"
    headers: Annotated[dict[str, str], doc("Addition: headers that the collector wants, such as Authorization")] = {}
    service: Annotated[str, doc("Addition: service.name of the traces")] = "llama-appliance"
    sample: Annotated[
        float,
        doc("Addition: the share of requests that are traced, from 0 to 1; a client's traceparent decides for its own"),
        Meta(ge=0, le=1),
    ] = 1.0


class ConversationsConfig(Section, frozen=True):
    """The conversations of the page: their texts and files, which the program keeps so that every device has them."""

    enabled: Annotated[bool, doc("Addition: keep the page's conversations on this machine")] = True
    path: Annotated[str, doc("Addition: SQLite file of the conversations; empty: in the program's data folder")] = ""
    max_bytes: Annotated[int, doc("Addition: bytes that they may take together"), Meta(ge=1)] = 2 << 30


class McpServerConfig(Section, frozen=True):
    """The program as an MCP server, at ``/mcp``."""

    enabled: Annotated[bool, doc("Addition: offer the models to MCP clients, at /mcp; needs a key")] = False
    tools: Annotated[list[str], doc("Addition: which of the program's own tools they may also use")] = []


class RunsConfig(Section, frozen=True, rename="camel"):
    """Agent runs: how many at once, how long each step of one may take, and how long its result is kept."""

    slots: Annotated[int, doc("Addition: runs of one model at once"), Meta(ge=1)] = 2
    queue: Annotated[int, doc("Addition: runs of one model that may wait for a slot"), Meta(ge=0)] = 0
    connect: Annotated[int, doc("Addition: longest wait for a connection to the engine"), Meta(ge=1)] = 10
    headers: Annotated[int, doc("Addition: longest wait for the head of its answer"), Meta(ge=1)] = 600
    stall: Annotated[int, doc("Addition: longest silence within its answer"), Meta(ge=1)] = 120
    tool_timeout: Annotated[int, doc("Addition: longest time of one use of a tool"), Meta(ge=1)] = 120
    caller_timeout: Annotated[
        int, doc("Addition: longest wait for the results of tools that the caller executes"), Meta(ge=1)
    ] = 600
    keep: Annotated[int, doc("Addition: the result of a run that has ended is kept for so long"), Meta(ge=0)] = 3600
    keep_max: Annotated[int, doc("Addition: results kept; the oldest go first"), Meta(ge=1)] = 100
    event_bytes: Annotated[int, doc("Addition: bytes kept of one run's events, the newest"), Meta(ge=1024)] = 1 << 20
    max_restarts: Annotated[
        int, doc("Addition: restarts of a model within restartWindow; at one more its runs are refused"), Meta(ge=0)
    ] = 3
    max_faults: Annotated[
        int,
        doc("Addition: answers of a living engine that fail in a row before it is restarted; 0: any number"),
        Meta(ge=0),
    ] = 3
    restart_window: Annotated[int, doc("Addition: the time in which restarts are counted"), Meta(ge=1)] = 600


class ToolsConfig(Section, frozen=True):
    """Tools of this machine for clients and models; none unless they are named."""

    enable: Annotated[list[str], doc("Addition: names of built-in tools, or all")] = []
    runtime: Annotated[str, doc("Addition: where they run, as --tools-runtime; empty: on this machine")] = ""
    root: Annotated[str, doc("Addition: the folder of this machine that they cannot leave; empty: none")] = ""


class PluginConfig(Section, frozen=True):
    """Changes to the config.json of one plugin; absent members stay as that file has them."""

    enabled: Annotated[bool | UnsetType, doc("Addition: whether there is such a command")] = UNSET
    settings: Annotated[dict[str, Json], doc("Addition: settings of the plugin, each over the one of its file")] = {}
    timeout: Annotated[
        Annotated[int, Meta(ge=1)] | UnsetType,
        doc("Addition: seconds that one hook may take, of a stream between two events"),
    ] = UNSET
