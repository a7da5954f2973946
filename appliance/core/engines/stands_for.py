"""Commands of llama-server as they are started: the program's own engine in the place of its name, its devices, and
those of the model's workers that are there."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.core.engines.workers import Worker, endpoints_of

NAMES = ("llama-server", "llama-server.exe")
"""The first word of a ``cmd`` that stands for an engine of the program's own."""
AUTO = "auto"
"""The engine that the program itself chooses."""
RPC = "--rpc"
DEVICE_FLAGS = ("-dev", "--device")
CPU_ALONE = "none"
"""What ``--device`` says for the processor alone."""

RPC_ENVIRONMENT = {"GGML_NO_BACKTRACE": "1"}
"""For a process with workers, which aborts when it loses one: no debugger is attached to it then."""


def stands_for_engine(argv: Sequence[str]) -> bool:
    """Whether a command begins with the bare name of llama-server."""
    return bool(argv) and argv[0] in NAMES


def workers_named(argv: Sequence[str]) -> tuple[str, ...]:
    """The endpoints that a command names with ``--rpc``; the last one counts. Raises UsageError."""
    values = _values(argv, (RPC,))
    return endpoints_of(values[-1]) if values else ()


def command_on(argv: Sequence[str], engine_command: Sequence[str], engine_args: Sequence[str]) -> tuple[str, ...]:
    """A command that `stands_for_engine` on this engine; its own ``--device`` wins over that of ``engine_args``."""
    own = argv[1:]
    args = () if _values(own, DEVICE_FLAGS) else engine_args
    return (*engine_command, *args, *own)


def with_workers(argv: Sequence[str], workers: Sequence[Worker], *, own_devices: bool = False) -> tuple[str, ...]:
    """A command of llama-server with these workers, and no other.

    ``--rpc`` goes in front of every other option, since the others see only the devices that are known by then. A
    ``--device`` names all that is used: the workers' devices are put in front of the others, where llama-server itself
    would put them, unless the user chose the devices (``own_devices``). Without workers, ``--rpc`` and the devices
    that only workers have are taken out.
    """
    program, options = _parted(_without(argv, RPC))
    count = sum(len(worker.devices) for worker in workers)
    if not own_devices or not count:
        options = _on_devices(options, count)
    told = (RPC, ",".join(worker.endpoint for worker in workers)) if workers else ()
    return (*program, *told, *options)


def _on_devices(options: Sequence[str], count: int) -> tuple[str, ...]:
    """The options with ``--device`` naming so many devices of workers, and its own others."""
    changed = list(options)
    for at, word in enumerate(options[:-1]):
        if word in DEVICE_FLAGS:
            own = [name for name in options[at + 1].split(",") if name != CPU_ALONE and not _is_workers(name)]
            changed[at + 1] = ",".join((*(f"RPC{number}" for number in range(count)), *own)) or CPU_ALONE
    return tuple(changed)


def _is_workers(device: str) -> bool:
    return device.startswith("RPC") and device[3:].isdecimal()


def _parted(argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The program, which may be several words, and its options: from the first word with two dashes on, or of ``-dev``."""
    at = next((n for n, word in enumerate(argv) if n and _is_option(argv, n)), len(argv))
    return tuple(argv[:at]), tuple(argv[at:])


def _is_option(argv: Sequence[str], at: int) -> bool:
    return argv[at].startswith("-")


def _without(argv: Sequence[str], flag: str) -> tuple[str, ...]:
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word == flag:
            next(words, None)
        else:
            kept.append(word)
    return tuple(kept)


def _values(argv: Sequence[str], flags: Sequence[str]) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv[:-1]) if word in flags]
