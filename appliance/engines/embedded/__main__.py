"""The embedded engine's process: llama-server's command line in, the wheel's C++ server running, its exit status out.

The HTTP server, the worker and the log are C++ threads; Python reads the command line, then only waits to be told to
stop. Exit status: 0 stopped on request, 1 the model or the port failed or the parent is gone, 2 a usage error.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

from appliance.core.llama_flags import from_env, last, merge, split
from appliance.engines.embedded import available
from appliance.engines.embedded.answers import devices, usage, version
from appliance.engines.embedded.params import fill
from appliance.engines.embedded.process import serve
from appliance.errors import EngineNotFound, UsageError


def main(argv: list[str]) -> int:
    """Run until told to stop; returns only where no server has been running."""
    try:
        options = merge(split(argv), from_env(os.environ))
        if last(options, "--help"):
            print(usage())
            return 0
        native = _native()
        if last(options, "--version"):
            print(version(native), file=sys.stderr)
            return 0
        if last(options, "--list-devices"):
            print(devices(native))
            return 0
        if os.environ.get("LLAMA_SERVER_CHILD_MODE") == "download":
            raise UsageError("the embedded engine downloads nothing (LLAMA_SERVER_CHILD_MODE=download)")
        return serve(native, fill(native, options))
    except UsageError as cause:
        print(f"error: {cause}", file=sys.stderr)
        return 2
    except EngineNotFound as cause:
        print(f"error: {cause}", file=sys.stderr)
        return 1


def _native() -> ModuleType:
    if not available():
        raise EngineNotFound(["the Python package xllamacpp"])
    return import_module("xllamacpp")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
