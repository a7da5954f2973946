"""The embedded engine's process: llama-server's command line in, the wheel's C++ server running, its exit status out.

The HTTP server, the worker and the log are C++ threads; Python reads the command line, then only waits to be told to
stop. Exit status: 0 stopped on request, 1 the model or the port failed or the parent is gone, 2 a usage error.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType

from appliance.core.llama.flags import from_env, last, merge, split
from appliance.engines.embedded import WHEEL
from appliance.engines.embedded.params import fill
from appliance.engines.embedded.process import serve
from appliance.errors import EngineNotFound, UsageError

ANSWERED = ("--help", "--version", "--list-devices")


def main(argv: list[str]) -> int:
    """Run until told to stop; returns only where no server has been running."""
    try:
        options = merge(split(argv), from_env(os.environ))
        if asked := [flag for flag in ANSWERED if last(options, flag)]:
            return _answer(asked[0])
        if os.environ.get("LLAMA_SERVER_CHILD_MODE") == "download":
            raise UsageError("the embedded engine downloads nothing (LLAMA_SERVER_CHILD_MODE=download)")
        native = _native()
        return serve(native, fill(native, options))
    except UsageError as cause:
        print(f"error: {cause}", file=sys.stderr)
        return 2
    except EngineNotFound as cause:
        print(f"error: {cause}", file=sys.stderr)
        return 1


def _answer(flag: str) -> int:
    from appliance.engines.embedded.answers import devices, usage, version  # for those who do not wait for a model

    match flag:
        case "--help":
            print(usage())
        case "--version":
            print(version(_native()), file=sys.stderr)
        case _:
            print(devices(_native()))
    return 0


def _native() -> ModuleType:
    """The wheel's library. What its package imports beside that, for estimates, would take ten milliseconds."""
    package = find_spec(WHEEL)
    library = package and PathFinder.find_spec(f"{WHEEL}.{WHEEL}", package.submodule_search_locations)
    if library is None or library.loader is None:
        raise EngineNotFound([f"the Python package {WHEEL}"])
    native = module_from_spec(library)
    library.loader.exec_module(native)
    return native
