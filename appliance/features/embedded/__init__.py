"""llama.cpp's server out of a wheel, run as a process of its own that a client cannot tell from `llama-server`.

Refuses to load the engine into the program's own process: the kernel gets a command to run. See README.md.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

WHEEL = "xllamacpp"
LACKS = (
    *("--override-kv", "--control-vector", "--control-vector-scaled", "--control-vector-layer-range", "--top-n-sigma"),
    *("--dry-sequence-breaker", "--logit-bias", "--spm-infill", "--log-file", "--log-jsonl"),
)
"""Options that the wheel gives no way to set, and a build has."""


def available() -> bool:
    """True if the wheel is installed here; it is looked for, not imported."""
    return find_spec(WHEEL) is not None


def version() -> str:
    """Return the version of the wheel, which must be installed.

    The name of the folder of its metadata says it. The standard library's way to ask is thirty modules and twelve
    milliseconds, in which the program would not listen yet; it is taken where there is not just that one folder.
    """
    from pathlib import Path  # five milliseconds, which the engine's own process does without

    spec = find_spec(WHEEL)
    if spec is not None and spec.origin is not None:
        found = list(Path(spec.origin).parents[1].glob(f"{WHEEL}-*.dist-info"))
        if len(found) == 1:
            return found[0].name.removeprefix(f"{WHEEL}-").removesuffix(".dist-info")
    from importlib import metadata

    return metadata.version(WHEEL)


def command() -> list[str]:
    """The words to put in front of llama-server's own flags. ``-P``: nothing is imported from the working folder.

    The file is named, since Python would look for a module by importing the list of all features.
    """
    return [sys.executable, "-P", os.path.join(__path__[0], "__main__.py")]  # noqa: PTH118  pathlib takes milliseconds
