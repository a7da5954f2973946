"""The options of ``serve`` for applications that start the program as a part of themselves."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import TypeVar

import click
from msgspec import Struct

from appliance.core.settings import DEFAULT_HOST, Embedding, Listen
from appliance.errors import UsageError
from appliance.platform.console import say_as_json

T = TypeVar("T")

HOME = {
    "XDG_DATA_HOME": "data",
    "XDG_CACHE_HOME": "cache",
    "XDG_CONFIG_HOME": "config",
    "XDG_STATE_HOME": "state",
    "WIN_PD_OVERRIDE_LOCAL_APPDATA": "data",
    "HF_HOME": "huggingface",
    "CUDA_CACHE_PATH": "cache/cuda",
    "TMPDIR": "tmp",
    "TEMP": "tmp",
    "TMP": "tmp",
}
"""Variables that say where this program, and engines and drivers in its children, write; to their folders in --home."""


class EmbedOptions(Struct, frozen=True, kw_only=True):
    """The options given. Using them changes the environment: see `settle`."""

    port: int | None
    ready_file: Path | None
    parent_pid: int | None
    api_key_env: str | None
    home: Path | None
    log_json: bool

    def settle(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Move all files below ``--home``, and let messages be JSON. Raises UsageError, OSError.

        The environment is what children inherit: so that engines, too, write nothing elsewhere.
        """
        if self.log_json:
            say_as_json()
        if self.home is not None:
            for variable, name in HOME.items():
                folder = self.home.absolute() / name
                folder.mkdir(parents=True, exist_ok=True)
                environ[variable] = str(folder)
            tempfile.tempdir = None

    def listen(self, listen: tuple[Listen, ...]) -> tuple[Listen, ...]:
        """Return where to listen. Raises UsageError if both ways are used."""
        if self.port is None:
            return listen
        if listen:
            raise UsageError(f"--port {self.port} is short for --listen {DEFAULT_HOST}:{self.port}; give one of them")
        return ((DEFAULT_HOST, self.port),)

    def keys(self, keys: tuple[str, ...], environ: MutableMapping[str, str] = os.environ) -> tuple[str, ...]:
        """Return the keys, with the one from the environment, which no child inherits. Raises UsageError."""
        if self.api_key_env is None:
            return keys
        key = environ.pop(self.api_key_env, "")
        if not key:
            raise UsageError(f"--api-key-env {self.api_key_env}: this environment variable is not set, or is empty")
        return (*keys, key)

    @property
    def embedding(self) -> Embedding:
        ready = str(self.ready_file.absolute()) if self.ready_file is not None else None
        return Embedding(ready_file=ready, parent_pid=self.parent_pid, log_json=self.log_json)


def embed_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options; the command gets them as ``embed``."""

    @click.option("--port", type=click.IntRange(0, 65535), help=f"Short for --listen {DEFAULT_HOST}:PORT.")
    @click.option(
        "--ready-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the address to this file, as JSON, when the program listens.",
    )
    @click.option(
        "--parent-pid",
        type=click.IntRange(1, (1 << 31) - 1),
        metavar="PID",
        help="End in order when this process ends.",
    )
    @click.option("--api-key-env", metavar="NAME", help="Accept the key in this environment variable.")
    @click.option(
        "--home",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Write all files below this folder: models, engines, caches, temporary files.",
    )
    @click.option("--log-json", is_flag=True, help="Write messages as JSON, one object in a line.")
    @functools.wraps(command)
    def with_options(
        port: int | None,
        ready_file: Path | None,
        parent_pid: int | None,
        api_key_env: str | None,
        home: Path | None,
        log_json: bool,
        *args: object,
        **kwargs: object,
    ) -> T:
        options = EmbedOptions(
            port=port,
            ready_file=ready_file,
            parent_pid=parent_pid,
            api_key_env=api_key_env,
            home=home,
            log_json=log_json,
        )
        return command(*args, embed=options, **kwargs)

    return with_options
