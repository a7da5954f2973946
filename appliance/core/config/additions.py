"""The kernel's sections of the configuration that llama-swap does not have. `core.config.types` uses these.

The base of all is here: each type of the schema is made of `Section`, `doc` describes one key, and a feature gives its
keys as `FeatureKeys`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, ClassVar, Self

from msgspec import UNSET, Meta, Struct, UnsetType

Json = object
"""Any JSON value; of mappings and lists, plain dicts and lists."""
Positive = Annotated[int, Meta(ge=1)]


def doc(text: str) -> Meta:
    return Meta(description=text)


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of one mapping in the file. An unknown one is a mistake."""


class FeatureKeys(Section, frozen=True, rename="camel"):
    """The keys of one feature at the top of the file: its sections. Methods answer what the kernel asks of them.

    ``secrets`` are the places below which every value is a secret, ``over_http`` those that `config_editing` may change
    over HTTP, both in the words of the file.
    """

    secrets: ClassVar[Sequence[tuple[str, ...]]] = ()
    over_http: ClassVar[Sequence[tuple[str, ...]]] = ()

    def check(self, error: Callable[[str, str], None]) -> None:
        """Call ``error`` with place and message of each value that has the right type and cannot be used."""

    def urls(self) -> Iterable[tuple[str, str]]:
        """Return the addresses that the feature sends requests to, each behind the words for its setting."""
        return ()

    def for_trial(self, copied: Callable[[str, str], str]) -> Self:
        """Return the keys for a server on trial, which leaves the files of the real one as they are.

        ``copied`` copies a database, by its path and the name of the copy, and returns the path of the copy.
        """
        return self


class ServerPool(Section, frozen=True):
    num_servers: Annotated[Positive | None, doc("Addition: models loaded at once, as modelsMax")] = None


class HangsConfig(Section, frozen=True):
    """When a model process that has work, sends nothing and answers no question is ended as one that has crashed."""

    after: Annotated[
        int, doc("Addition: seconds of silence until it is asked whether it lives; 0 never"), Meta(ge=0)
    ] = 60
    awaited: Annotated[int, doc("Addition: the same while another model waits for room"), Meta(ge=1)] = 20
    answer: Annotated[int, doc("Addition: seconds that it has to answer its check endpoint"), Meta(ge=1)] = 10
    floor: Annotated[int, doc("Addition: fewer bytes than these within that time are silence"), Meta(ge=1)] = 64


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
