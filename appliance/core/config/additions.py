"""The sections of the configuration that llama-swap does not have. `core.config.types` has all others, and uses these.

The base of both is here: each type of the schema is made of `Keys`, and `told` describes one key.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

Json = object
"""Any JSON value; of mappings and lists, plain dicts and lists."""
Positive = Annotated[int, Meta(ge=1)]


def told(text: str) -> Meta:
    return Meta(description=text)


class Keys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of one mapping in the file. An unknown one is a mistake."""


class ServerPool(Keys, frozen=True):
    num_servers: Annotated[Positive | None, told("Addition: models loaded at once, as modelsMax")] = None


class StreamsConfig(Keys, frozen=True):
    """Generations that go on, and can be read again, when their client's connection is gone."""

    max_bytes: Annotated[int, told("Addition: bytes kept of one stream, the newest"), Meta(ge=1)] = 4 << 20
    keep: Annotated[int, told("Addition: a stream that has ended is kept for so long"), Meta(ge=0)] = 300
    max_total: Annotated[int, told("Addition: bytes kept of all streams; the oldest go first"), Meta(ge=1)] = 256 << 20
    path: Annotated[str, told("Addition: folder where streams survive a restart; empty: in memory alone")] = ""


class HangsConfig(Keys, frozen=True):
    """When a model process that has work, sends nothing and answers no question is ended as one that has crashed."""

    after: Annotated[
        int, told("Addition: seconds of silence until it is asked whether it lives; 0 never"), Meta(ge=0)
    ] = 60
    awaited: Annotated[int, told("Addition: the same while another model waits for room"), Meta(ge=1)] = 20
    answer: Annotated[int, told("Addition: seconds that it has to answer its check endpoint"), Meta(ge=1)] = 10
    floor: Annotated[int, told("Addition: fewer bytes than these within that time are silence"), Meta(ge=1)] = 64


class ConversationsConfig(Keys, frozen=True):
    """The conversations of the page: their texts and files, which the program keeps so that every device has them."""

    enabled: Annotated[bool, told("Addition: keep the page's conversations on this machine")] = True
    path: Annotated[str, told("Addition: SQLite file of the conversations; empty: in the program's data folder")] = ""
    max_bytes: Annotated[int, told("Addition: bytes that they may take together"), Meta(ge=1)] = 2 << 30


class McpServerConfig(Keys, frozen=True):
    """The program as an MCP server, at ``/mcp``."""

    enabled: Annotated[bool, told("Addition: offer the models to MCP clients, at /mcp; needs a key")] = False
    tools: Annotated[list[str], told("Addition: which of the program's own tools they may also use")] = []


class RunsConfig(Keys, frozen=True, rename="camel"):
    """Agent runs: how many at once, how long each step of one may take, and how long its result is kept."""

    slots: Annotated[int, told("Addition: runs of one model at once"), Meta(ge=1)] = 2
    queue: Annotated[int, told("Addition: runs of one model that may wait for a slot"), Meta(ge=0)] = 0
    connect: Annotated[int, told("Addition: longest wait for a connection to the engine"), Meta(ge=1)] = 10
    headers: Annotated[int, told("Addition: longest wait for the head of its answer"), Meta(ge=1)] = 600
    stall: Annotated[int, told("Addition: longest silence within its answer"), Meta(ge=1)] = 120
    tool_timeout: Annotated[int, told("Addition: longest time of one use of a tool"), Meta(ge=1)] = 120
    caller_timeout: Annotated[
        int, told("Addition: longest wait for the results of tools that the caller executes"), Meta(ge=1)
    ] = 600
    keep: Annotated[int, told("Addition: the result of a run that has ended is kept for so long"), Meta(ge=0)] = 3600
    keep_max: Annotated[int, told("Addition: results kept; the oldest go first"), Meta(ge=1)] = 100
    event_bytes: Annotated[int, told("Addition: bytes kept of one run's events, the newest"), Meta(ge=1024)] = 1 << 20
    max_restarts: Annotated[
        int, told("Addition: restarts of a model within restartWindow; at one more its runs are refused"), Meta(ge=0)
    ] = 3
    max_faults: Annotated[
        int,
        told("Addition: answers of a living engine that fail in a row before it is restarted; 0: any number"),
        Meta(ge=0),
    ] = 3
    restart_window: Annotated[int, told("Addition: the time in which restarts are counted"), Meta(ge=1)] = 600


class ToolsConfig(Keys, frozen=True):
    """Tools of this machine for clients and models; none unless they are named."""

    enable: Annotated[list[str], told("Addition: names of built-in tools, or all")] = []
    runtime: Annotated[str, told("Addition: where they run, as --tools-runtime; empty: on this machine")] = ""
    root: Annotated[str, told("Addition: the folder of this machine that they cannot leave; empty: none")] = ""


class PluginConfig(Keys, frozen=True):
    """Changes to the config.json of one plugin; absent members stay as that file has them."""

    enabled: Annotated[bool | UnsetType, told("Addition: whether there is such a command")] = UNSET
    settings: Annotated[dict[str, Json], told("Addition: settings of the plugin, each over the one of its file")] = {}
    timeout: Annotated[
        Annotated[int, Meta(ge=1)] | UnsetType,
        told("Addition: seconds that one hook may take, of a stream between two events"),
    ] = UNSET
