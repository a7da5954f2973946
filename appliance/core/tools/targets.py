"""The runtimes other than this machine in which tools may work: llama-server's ``--tools-runtime`` and
``x-tool-runtime`` (b11434).

Nothing here may become an option of the program that is started with it, and nothing falls back to this machine.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

Engine = Literal["docker", "podman"]
ENGINES: tuple[Engine, ...] = ("docker", "podman")
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SSH = re.compile(r"[A-Za-z0-9._@][A-Za-z0-9._@-]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_OUTSIDE = re.compile(r"['\\]")
_FORMS = "docker:<image>, podman:<image>, docker-container:<id>, podman-container:<id> and ssh:<target>"


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
    """Read a target. Raises BadToolTarget."""
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
    """Read a client's target. Raises BadToolTarget; a client may not start containers."""
    target = parse_target(text)
    if isinstance(target, ContainerImage):
        raise BadToolTarget(
            f"tool runtime must name a running container: {text!r}; write {target.engine}-container:<id>"
        )
    return target


def quoted(words: list[str]) -> str:
    """One word that a shell reads as these: a POSIX one, and fish, where a backslash means something within quotes."""
    return " ".join("'" + _OUTSIDE.sub(lambda found: f"'\\{found[0]}'", word) + "'" for word in words)
