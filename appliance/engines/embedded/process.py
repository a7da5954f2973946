"""The running server's lifetime: start it, wait for a signal or the parent's word, and end the process.

The wheel's server is C++ threads throughout. Two of its habits shape this file. Building it holds the interpreter
lock until the model is loaded, so no Python signal handler can run meanwhile: the signals keep their default action
until then, which is also what llama-server does. (A signal in the instant between the first 200 and the handler still
kills; the exit line knows no such instant, it waits in the pipe for the thread that reads it.) And destroying it waits
for every open stream to notice, up to 30 seconds with one client reading, so it is not destroyed: the process ends,
and its sockets with it.
"""

from __future__ import annotations

import _thread  # `threading` takes a millisecond, in which a signal would find no handler
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import NoReturn

from appliance.engines.embedded.carriers import Target

_EXIT = b"cmd_router_to_child:exit"
_STOPPING = ("SIGINT", "SIGTERM", "SIGBREAK")  # the last one is Windows' way to ask a process group to end


def serve(native: ModuleType, target: Target) -> int:
    """Load the model and serve it. Returns 1 if that failed; once it serves, the process ends from in here."""
    commands = _take_stdin() if "LLAMA_SERVER_ROUTER_PORT" in os.environ else None
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        server = native.Server(target.params)
    except RuntimeError:
        # The library says "please check the input params" whatever happened; its log has said what did.
        print("error: the server did not start; the log above says why", file=sys.stderr)
        return 1
    if commands is not None:
        _thread.start_new_thread(_obey, (commands,))
    _wait_for_signal()
    del server  # not reached: it has to stay referenced to live
    return 1


def _leave(status: int) -> NoReturn:
    """End now: no destructor may wait for streams, and no static one may run under threads that still use it."""
    sys.stdout.flush()
    sys.stderr.flush()
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
