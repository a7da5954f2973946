"""The places that tools reach: paths from outside, as text, and runtimes other than this machine.

`tools.files` finds out where a path leads on the disk, and holds on to that. Runtimes are llama-server's
``--tools-runtime`` and ``x-tool-runtime`` (b11434): nothing here may become an option of the program that is started
with it, and nothing falls back to this machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

MAX_PARTS = 256
"""Names in one path; each costs an open folder while it is walked."""
ENGINES: tuple[Engine, ...] = ("docker", "podman")
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SSH = re.compile(r"[A-Za-z0-9._@][A-Za-z0-9._@-]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_OUTSIDE = re.compile(r"['\\]")
_FORMS = "docker:<image>, podman:<image>, docker-container:<id>, podman-container:<id> and ssh:<target>"


class BadPath(ValueError):
    """A path cannot be used; the message says why, and names it."""


class Outside(BadPath):
    """A path leads out of the folder to which the tools are confined."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the path is outside the folder that the tools are confined to: {path}")


def check_path(path: str) -> None:
    """Raises BadPath for paths that no system call accepts."""
    if "\0" in path:
        raise BadPath("a path cannot hold a zero byte")
    if not path:
        raise BadPath("the path is empty")


def expanded(path: str, home: str) -> str:
    """Replace a leading ``~`` by the home folder; ``~user`` stays as it is."""
    if home and (path == "~" or path.startswith("~/")):
        return home + path[1:]
    return path


def parts_below(root: str, path: str) -> list[str]:
    """Return the names from ``root`` to a path, ``..`` as written. Raises Outside, and BadPath for too many names."""
    start, names = _names(root), _names(path)
    if names[: len(start)] != start:
        raise Outside(path)
    return checked_parts(names[len(start) :], path)


def checked_parts(names: Sequence[str], path: str) -> list[str]:
    if len(names) > MAX_PARTS:
        raise BadPath(f"the path has more than {MAX_PARTS} names in it: {path[:80]}...")
    return list(names)


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


Engine = Literal["docker", "podman"]


class RunningContainer(Struct, frozen=True):
    """A container that is already running."""

    engine: Engine
    id: str


class ContainerImage(Struct, frozen=True):
    """A container of this image, which starts for the tools and ends with the program."""

    engine: Engine
    name: str


class Ssh(Struct, frozen=True):
    """Another machine, as ssh knows it."""

    target: str


class BadToolTarget(ValueError):
    """An invalid target; says why, in words that llama-server's users know."""


def parse_target(text: str) -> RunningContainer | ContainerImage | Ssh:
    """Read a target. Raises BadTarget."""
    scheme, _, rest = text.partition(":")
    if scheme == "ssh":
        if not _SSH.fullmatch(rest):
            raise BadToolTarget(
                f"invalid ssh target: {rest!r}; it is a host or user@host, of letters, digits, '.', '_' '-'"
            )
        return Ssh(rest)
    for engine in ENGINES:
        if scheme == f"{engine}-container":
            if not _CONTAINER.fullmatch(rest):
                raise BadToolTarget(
                    f"invalid container id: {rest!r}; it is an id or a name of letters, digits, '.', '_', '-'"
                )
            return RunningContainer(engine, rest)
        if scheme == engine:
            if not _IMAGE.fullmatch(rest):
                raise BadToolTarget(f"invalid image name: {rest!r}; write it as in {engine}:busybox")
            return ContainerImage(engine, rest)
    raise BadToolTarget(f"unknown tool runtime: {text!r}; there are {_FORMS}")


def running_target(text: str) -> RunningContainer | Ssh:
    """Read a client's target. Raises BadTarget; a client may not start containers."""
    target = parse_target(text)
    if isinstance(target, ContainerImage):
        raise BadToolTarget(
            f"tool runtime must name a running container: {text!r}; write {target.engine}-container:<id>"
        )
    return target


def quoted(words: list[str]) -> str:
    """One word that a shell reads as these: a POSIX one, and fish, where a backslash means something within quotes."""
    return " ".join("'" + _OUTSIDE.sub(lambda found: f"'\\{found[0]}'", word) + "'" for word in words)
