"""A process of its own that asks NVIDIA's driver, for as long as it is asked: the other side of `platform.gpus`.

A driver's library may crash or hang whoever loads it, so the server does not. It answers one line of JSON to each line
of its input, and ends with it. It imports little, and knows no event loop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from appliance.platform.nvml import Nvml

WORD = "--gpu-process"
"""The argument that makes the frozen program this one."""
SAMPLES, ACCELERATORS, PROCESSES = "samples", "accelerators", "processes"
"""The questions; the last one comes with the number of the GPU behind it."""
NO_DRIVER = 3
"""Exit status if the driver cannot be asked."""


def command() -> list[str]:
    """The command that starts it: isolated, so that nothing in the working directory is taken for a module."""
    if getattr(sys, "frozen", False):
        return [sys.executable, WORD]
    return [sys.executable, "-I", "-m", "appliance.platform.gpu_process"]


def main() -> None:
    """Answer until the input ends."""
    from appliance.platform.nvml import find_library, open_nvml  # here alone: the server imports the words above

    with open_nvml(find_library(), _say) as nvml:
        if nvml is None:
            sys.exit(NO_DRIVER)
        for line in sys.stdin:
            sys.stdout.buffer.write(msgspec.json.encode(answer(nvml, line.split())) + b"\n")
            sys.stdout.buffer.flush()


def answer(nvml: Nvml, question: list[str]) -> object:
    """Return the driver's answer; None to anything but a question."""
    asked: dict[str, Callable[[], object]] = {
        SAMPLES: lambda: nvml.samples(datetime.now(UTC)),
        ACCELERATORS: nvml.accelerators,
        PROCESSES: lambda: nvml.processes(int(question[1])),
    }
    return asked[question[0]]() if question and question[0] in asked else None


def _say(why: str) -> None:
    sys.stderr.write(f"{why}\n")


if __name__ == "__main__":
    main()
