"""llama.cpp's server out of a wheel, run as a process of its own that a client cannot tell from `llama-server`.

Refuses to load the engine into the program's own process: other rooms get a command to run, never an import.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec


def available() -> bool:
    """Whether the wheel is installed here; it is looked for, not imported."""
    return find_spec("xllamacpp") is not None


def command() -> list[str]:
    """The words to put in front of llama-server's own flags.

    ``-P``: what lies in the folder that the program was started in is not imported.
    """
    return [sys.executable, "-P", "-m", "appliance.engines.embedded"]
