"""Commands of llama-server as they are started: on an engine of the program's own, with its devices, and with those of
the model's available workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.core.engines.workers import Worker, endpoints_of

NAMES = ("llama-server", "llama-server.exe")
"""The first word of a ``cmd`` that stands for an engine of the program's own."""
AUTO = "auto"
"""The engine that the program itself chooses."""
RPC = "--rpc"
DEVICE_FLAGS = ("-dev", "--device")
CPU_ALONE = "none"
"""The value of ``--device`` for the processor alone."""

NO_DEBUGGER = {"GGML_NO_BACKTRACE": "1"}
"""For a process that may abort, as it does when it loses a worker: ggml then attaches no debugger to it."""


def stands_for_engine(argv: Sequence[str]) -> bool:
    """True if a command begins with the bare name of llama-server."""
    return bool(argv) and argv[0] in NAMES


def workers_named(options: Sequence[str]) -> tuple[str, ...]:
    """Return the endpoints that options name with ``--rpc``; the last one counts. Raises UsageError."""
    values = _values(options, (RPC,))
    return endpoints_of(values[-1]) if values else ()


def command_on(
    command: Sequence[str], args: Sequence[str], options: Sequence[str], workers: Sequence[Worker] = ()
) -> tuple[str, ...]:
    """The argv of an engine, whose own ``args`` choose its devices, with a model's ``options`` and these workers alone.

    ``--rpc`` goes in front of all others, which see only the devices that are known by then. ``--device`` names
    everything that is used: the workers' devices are put where llama-server itself would put them, in front. A
    ``--device`` in ``options`` is the user's and counts alone, but for devices of workers that are not there. Where a
    worker did not tell its devices the engine's are not named either: then it uses all that there are.
    """
    count = sum(len(worker.devices) for worker in workers)
    own = _without(options, (RPC,))
    if _values(own, DEVICE_FLAGS):
        chosen = _devices(own, lambda names: [name for name in names if not _is_missing(name, count)])
    elif not all(worker.devices for worker in workers):
        chosen = (*_without(args, DEVICE_FLAGS), *own)
    else:
        chosen = (*_devices(args, lambda names: [*(f"RPC{n}" for n in range(count)), *names]), *own)
    told = (RPC, ",".join(worker.endpoint for worker in workers)) if workers else ()
    return (*command, *told, *chosen)


def _devices(words: Sequence[str], edit: Callable[[list[str]], list[str]]) -> tuple[str, ...]:
    """Edit the names behind ``--device``; if none is left it means the processor alone."""
    edited = list(words)
    for at, word in enumerate(words[:-1]):
        if word in DEVICE_FLAGS:
            names = [name for name in words[at + 1].split(",") if name != CPU_ALONE]
            edited[at + 1] = ",".join(edit(names)) or CPU_ALONE
    return tuple(edited)


def _is_missing(device: str, count: int) -> bool:
    number = device.removeprefix("RPC")
    return number != device and number.isdecimal() and int(number) >= count


def _without(options: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
    """Return the options without those that take a value and have such a spelling."""
    kept: list[str] = []
    words = iter(options)
    for word in words:
        if word in flags:
            next(words, None)
        else:
            kept.append(word)
    return tuple(kept)


def _values(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words[:-1]) if word in flags]
