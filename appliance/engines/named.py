"""The engine that somebody names: by ``--engine``, else by `ENGINE_VARIABLE`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from appliance.core.builds import MANIFEST
from appliance.core.engine import EMBEDDED, Engine, EngineInside
from appliance.engines.builds import EXECUTABLE, engine_of_build, engine_of_program, is_executable, read_build
from appliance.errors import UsageError
from appliance.platform.console import is_frozen
from appliance.platform.home import expanded
from appliance.platform.machine import this_platform

ENGINE_VARIABLE = "LLAMA_APPLIANCE_ENGINE"
LARGEST_SCRIPT = 1 << 20
"""Bytes of a command that Python's package managers write; a build of llama-server has more."""
ENGINE_HELP = (
    f"llama-server program, folder with {MANIFEST}, build such as 'linux-x64-vulkan/b11434', backend such as 'vulkan', "
    f"or '{EMBEDDED}' (or {ENGINE_VARIABLE})."
)
"""The values of ``--engine``, for the help of every verb that has it."""


def engine_at(value: str, option: str, inside: EngineInside | None, others: Callable[[], str] = lambda: "") -> Engine:
    """Return the engine at a path, or the one inside the program, where ``value`` names that.

    Raises UsageError, which names the option. ``others`` says what else could be named, for one that is not there.
    """
    if value == EMBEDDED:
        if inside is None:
            raise UsageError(f"{option} {value}: this program has none; name another with --engine PATH")
        if (engine := inside.find()) is None:
            raise UsageError(f"{option} {value}: it is not installed here; '{inside.install}' adds it")
        return structs.replace(engine, source=option)
    path = expanded(value)
    if path.is_dir():
        if (path / MANIFEST).exists():
            return whole(_named_build(path, option), option, value)
        if is_executable(path / EXECUTABLE):
            return engine_of_program(path / EXECUTABLE, option)
        raise UsageError(f"{option} {value}: this folder holds neither {MANIFEST} nor {EXECUTABLE}")
    if not path.exists():
        raise UsageError(
            f"{option} {value}: no such file or folder; name a llama-server executable, a folder with {MANIFEST}"
            f"{others()}"
        )
    if not is_executable(path):
        raise UsageError(f"{option} {value}: this file is not executable; name a llama-server program")
    return engine_of_program(path, option)


def whole(engine: Engine, option: str, value: str) -> Engine:
    """Return the engine. Raises UsageError for one that is damaged."""
    if engine.damage:
        raise UsageError(
            f"{option} {value}: {engine.damage} in {engine.folder}, so it is not started; an antivirus program's "
            "quarantine is the usual cause: restore the file there, or install or make the build again"
        )
    return engine


def _named_build(folder: Path, source: str) -> Engine:
    try:
        build = read_build(folder)
        if build.platform in ("", this_platform()):
            return engine_of_build(folder, build, source)
    except (OSError, ValueError) as cause:
        raise UsageError(f"{folder / MANIFEST} cannot be used: {cause}") from None
    raise UsageError(f"{folder} cannot be used: it is for {build.platform}, and this machine is {this_platform()}")


def is_this_program(program: Path) -> bool:
    """True for this program's own second name, which would start itself for ever.

    Frozen, it lies beside the program; installed by a package manager of Python, it is a small file that names the
    function to call, at its end on Windows.
    """
    if is_frozen() and program.resolve().parent == Path(sys.executable).resolve().parent:
        return True
    try:
        return program.stat().st_size < LARGEST_SCRIPT and b"appliance.__main__" in program.read_bytes()
    except OSError:
        return False
