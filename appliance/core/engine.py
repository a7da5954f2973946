"""An engine, as everything but the finding and proving of engines knows it: a command that starts a llama-server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

EMBEDDED = "embedded"
"""The id of the engine that is inside the program."""
NO_GPUS: Mapping[str, str] = {}


class Manual(Struct, frozen=True, kw_only=True):
    """The part of a build's own ``--help`` that the program acts on."""

    options: str = ""
    """Every long option, separated by spaces: one word in the file of results, where a list would be 300 lines."""
    port: int | None = None
    """The port that it listens on unless told otherwise; None: it does not say."""

    def names(self, option: str) -> bool:
        """Return whether the build has this long option."""
        return option in self.options.split(" ")


class Engine(Struct, frozen=True, kw_only=True):
    """One way to start llama-server. ``command`` is the start of its argv; ``args`` and then flags are appended."""

    name: str
    backend: str
    """cpu, cuda12, vulkan, metal ... or ``unknown`` for a program the user named."""
    version: str | None
    command: tuple[str, ...]
    source: str
    """The place where it was found, in words for the user."""
    id: str = ""
    """`Build.id`, ``embedded``, or the path of a program that is not part of a build."""
    digest: str = ""
    """Changes when its files do; facts about it are remembered under this."""
    folder: str | None = None
    """The folder of a build; None for a program alone."""
    damage: str = ""
    """The fault of its files, in one line; empty if sizes and times show none."""
    rpc: str | None = None
    """Version of the RPC protocol that it speaks."""
    seat: str = ""
    """`Seat.id`, where its devices were chosen, too: ``args`` then name them."""
    args: tuple[str, ...] = ()
    manual: Manual | None = None
    """Its ``--help``, parsed; None: it was not asked yet."""
    gpus: Mapping[str, str] = NO_GPUS
    """Its devices' names to what their memory is called in budgets, ``{"CUDA1": "gpu0"}``; none on the processor."""
    lacks: tuple[str, ...] = ()
    """Options of llama-server that it cannot honour, and other builds can."""

    def in_words(self) -> str:
        """Describe the engine for people."""
        return f"{self.name} {self.version or ''}".rstrip() + f" ({self.backend}; {self.source})"


class EngineInside(Struct, frozen=True, kw_only=True):
    """The engine that is inside the program, as a feature brings it."""

    find: Callable[[], Engine | None]
    """None: a package that it needs is not installed here."""
    install: str
    """The command that installs that package."""


def same_start(one: Engine, other: Engine) -> bool:
    """True if a process is started alike on both; their known devices may differ."""
    return (one.command, one.digest, one.args) == (other.command, other.digest, other.args)
