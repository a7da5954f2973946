"""Where the measuring model is: written into the user's cache when it is first asked for."""

from __future__ import annotations

import contextlib
from pathlib import Path

import platformdirs
from msgspec import Struct

from appliance.core.engines.ballast import LAYERS, PREFIX, SUFFIX, file_name, header, layers_for, weights_size
from appliance.store.sparse_file import write_sparse

APP_NAME = "llama-appliance"


class Ballast(Struct, frozen=True, kw_only=True):
    """A measuring model that is there. ``part``: how much of the whole one it is, 1.0 where memory is plenty."""

    path: Path
    part: float


def measuring_folder() -> Path:
    """Where it is kept."""
    return Path(platformdirs.user_cache_dir(APP_NAME, appauthor=False)) / "measuring"


def write_ballast(folder: Path, device_memory: int | None = None) -> Ballast:
    """The measuring model for the memory that is free now, on this machine and on the device. Raises OSError.

    Takes milliseconds, also the first time. Those of other versions are deleted.
    """
    import psutil  # seven milliseconds, which a program that measures no engine saves

    free = psutil.virtual_memory().available
    layers = layers_for(free if device_memory is None else min(free, device_memory))
    path = folder / file_name(layers)
    head = header(layers)
    size = len(head) + weights_size(layers)
    if not path.is_file() or path.stat().st_size != size:
        write_sparse(path, head, size - len(head))
    known = {file_name(count) for count in range(1, LAYERS + 1)}
    for other in folder.glob(f"{PREFIX}*{SUFFIX}"):
        if other.name not in known:
            with contextlib.suppress(OSError):  # somebody measures with it; the next time will do
                other.unlink()
    return Ballast(path=path, part=layers / LAYERS)
