"""The embedded engine's process: llama-server's command line in, the wheel's C++ server running, its exit status out.

The HTTP server, the worker and the log are C++ threads; Python reads the command line, then only waits for the order to
stop. Exit status: 0 stopped on request, 1 the model or the port failed or the parent is gone, 2 a usage error.

Two habits of the wheel's server shape this file. Building it holds the interpreter lock until the model is loaded, so
no Python signal handler can run meanwhile: the signals keep their default action until then, which is also what
llama-server does. (A signal in the instant between the first 200 and the handler still kills; the exit line knows no
such instant, it waits in the pipe for the thread that reads it.) And destroying it waits for every open stream to
notice, up to 30 seconds with one client reading, so it is not destroyed: the process ends, and its sockets with it.
"""

from __future__ import annotations

import _thread  # `threading` takes a millisecond, in which a signal would find no handler
import os
import signal
import sys
import time
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import FrameType, ModuleType
from typing import NoReturn

from appliance.core.llama.flags import FLAGS, Kind, explained, from_env, last, merge, split
from appliance.errors import EngineNotFound, UsageError
from appliance.features.embedded import WHEEL
from appliance.features.embedded import version as wheel_version
from appliance.features.embedded.carriers import ParameterTarget
from appliance.features.embedded.params import REFUSED, fill
from appliance.features.embedded.special import accelerators

PORT = 9931
"""The port on which llama-server listens by default. The wheel itself has none."""
ANSWERED = ("--help", "--version", "--list-devices")
_MIB = 1024 * 1024
LAST_WORDS = 0.5
"""Seconds for the library's own thread to write the log, which nobody can ask it to finish."""
_EXIT = b"cmd_router_to_child:exit"
_STOPPING = ("SIGINT", "SIGTERM", "SIGBREAK")  # the last one is Windows' way to ask a process group to end


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
    except ImportError as cause:  # the system has not what the wheel's library is linked with
        mend = "; on Debian and Ubuntu 'apt-get install libgomp1' brings it" if "libgomp" in str(cause) else ""
        print(f"error: the embedded engine cannot be loaded: {cause}{mend}", file=sys.stderr)
        return 1


def _answer(flag: str) -> int:
    match flag:
        case "--help":
            print(usage())
        case "--version":
            print(version(_native()), file=sys.stderr)
        case _:
            print(devices(_native()))
    return 0


def _native() -> ModuleType:
    """The wheel's library. Its package imports more, for estimates, and that would take ten milliseconds."""
    package = find_spec(WHEEL)
    library = package and PathFinder.find_spec(f"{WHEEL}.{WHEEL}", package.submodule_search_locations)
    if library is None or library.loader is None:
        raise EngineNotFound([f"the Python package {WHEEL}"])
    native = module_from_spec(library)
    library.loader.exec_module(native)
    _number(native, (library.origin or "").rpartition(f"{os.sep}{WHEEL}{os.sep}")[0])
    return native


def _number(native: ModuleType, packages: str) -> None:
    """Tell llama.cpp its build, which the wheel was made without: it puts it into /props and every answer.

    The number is the last part of the wheel's version, and is kept in a variable that the library exports. The wheel
    for Windows exports none, and knows its build. `ctypes` itself would take eighteen milliseconds to import.
    """
    ends = f"{WHEEL}-", ".dist-info"
    found = os.listdir(packages or ".")  # noqa: PTH208  pathlib takes five milliseconds to import
    named = [name for name in found if name.startswith(ends[0]) and name.endswith(ends[1])]
    number = named[0].removesuffix(ends[1]).rpartition(".")[2] if len(named) == 1 else ""
    if sys.platform == "win32" or not number.isdecimal():
        return
    from _ctypes import _SimpleCData, dlopen, dlsym  # pyright: ignore[reportPrivateUsage]  as said above

    class NumberCell(_SimpleCData):  # pyright: ignore[reportMissingTypeArgument]  it takes none when it runs
        _type_ = "i"

    try:
        place = dlsym(dlopen(native.__file__ or "", os.RTLD_LAZY), "LLAMA_BUILD_NUMBER")
    except OSError:
        return
    NumberCell.from_address(place).value = int(number)


def usage() -> str:
    lines = ["usage: llama-server (embedded engine) --model FILE [options]", ""]
    lines += [explained(flag) for flag in FLAGS if flag.name not in REFUSED and flag.kind is not Kind.REMOVED]
    lines = [f"{line} (default: {PORT})" if line.startswith("--port ") else line for line in lines]
    lines += ["", "Options of llama-server that this engine refuses, with exit status 2:", ""]
    lines += [f"{', '.join(flag.spellings)}: {REFUSED[flag.name]}" for flag in FLAGS if flag.name in REFUSED]
    return "\n".join(lines)


def version(native: ModuleType) -> str:
    """llama.cpp's build number, which the wheel does not record, is the last part of the wheel's own version."""
    build: dict[str, object] = native.BUILD_INFO
    wheel = wheel_version()
    number = wheel.rpartition(".")[2]
    return (
        f"version: b{number} (build {number}, commit {build['commit']})\n"
        f"built with {build['compiler']} for {build['build_target']}\n"
        f"embedded: xllamacpp {wheel}"
    )


def devices(native: ModuleType) -> str:
    """The processor itself is never listed, as in llama-server."""
    names = [_device(device) for device in accelerators(native)]
    return "\n".join(["Available devices:", *(names or ["  (none)"])])


def _device(device: dict[str, object]) -> str:
    total, free = device["memory_total"], device["memory_free"]
    assert isinstance(total, int)
    assert isinstance(free, int)
    return f"  {device['name']}: {device['description']} ({total // _MIB} MiB, {free // _MIB} MiB free)"


def serve(native: ModuleType, target: ParameterTarget) -> int:
    """Load the model and serve it. The process ends from in here, with status 1 if it cannot be served."""
    commands = _take_stdin() if "LLAMA_SERVER_ROUTER_PORT" in os.environ else None
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        server = native.Server(target.params)
    except RuntimeError:
        # The library says "please check the input params" whatever happened; its log has said what did.
        time.sleep(LAST_WORDS)
        print("error: the server did not start; the log above says why", file=sys.stderr)
        _leave(1)
    if commands is not None:
        _thread.start_new_thread(_obey, (commands,))
    _wait_for_signal()
    del server  # not reached: it has to stay referenced to live
    return 1


def _leave(status: int) -> NoReturn:
    """End now: no destructor may wait for streams, and no static one may run under threads that still use it.

    On Windows `os._exit` runs the static destructors of libraries, which wait for threads that it has ended before.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if sys.platform == "win32":
        import _winapi  # `ctypes` takes milliseconds to import

        _winapi.TerminateProcess(_winapi.GetCurrentProcess(), status)
    os._exit(status)


def _wait_for_signal() -> NoReturn:
    """Wait on a pipe that the interpreter writes to from inside its signal handler.

    A signal between the last look at pending ones and a wait in `signal.pause()` would be noted and not wake it.
    """
    reader, writer = os.pipe()
    if sys.platform != "win32":
        os.set_blocking(writer, False)  # what `set_wakeup_fd` asks for, where there is such a thing for pipes
    signal.set_wakeup_fd(writer)
    for name in _STOPPING:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _noted)
    os.read(reader, 1)
    _leave(0)


def _noted(_number: int, _frame: FrameType | None) -> None:
    """The interpreter writes to the wakeup pipe only for signals that have a handler in Python."""


def _take_stdin() -> int:
    """Keep the real standard input for this file, and give the C++ side an empty one that never ends.

    The library would read the parent's commands itself, but it answers them without telling Python, and stays alive
    while a stream is open.
    """
    commands = os.dup(0)
    reader, writer = os.pipe()
    os.dup2(reader, 0)
    os.close(reader)
    os.set_inheritable(writer, False)  # kept open, and never written to, for as long as the process lives
    return commands


def _obey(commands: int) -> NoReturn:
    """Wait for the parent's word to end, or for the end of the parent."""
    for line in _lines(commands):
        if _EXIT in line:
            _leave(0)
    print("error: the parent process is gone (end of standard input)", file=sys.stderr)
    _leave(1)


def _lines(descriptor: int) -> Iterator[bytes]:
    with os.fdopen(descriptor, "rb") as stream:
        yield from stream
