"""A process of its own that asks drivers, because they may crash or hang the process that loads them: see
`features.engines.drivers`.

It answers each line of its input with one line of JSON, and ends with its input. To `LOOK`, with a `ProbeOrder` behind
it, it prints the name of each stage before it begins it, so that its parent knows where it died or hangs, and the
`MachineLook` at the end. It imports little, and knows no event loop; it imports the modules for its answers with the
first question, as the server imports the words below.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from appliance.core.machine_look import VISIBILITY, Gpu, MachineLook

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.features.engines.nvml import Nvml

LOOK, SAMPLES, PROCESSES = "look", "samples", "processes"  # questions; behind the last is a GPU's number
NO_DRIVER = 3  # exit status if the driver cannot be asked
NVML_STAGE = "nvml"
STAGES = ("system", NVML_STAGE, "nvidia", "amd", "intel", "apple", "loaders", "problems")
MISMATCH = "version mismatch"
"""NVML's words after an update of the driver until the machine is restarted; nvidia-smi says it in full."""


class ProbeOrder(Struct, frozen=True):
    """The look that is wanted. ``without`` names stages that are left out, as they ended the process before."""

    without: tuple[str, ...] = ()
    root: str = "/"


def main() -> None:
    """Answer until the input ends. The driver is opened with the first question to it."""
    from contextlib import ExitStack
    from datetime import UTC, datetime

    from appliance.features.engines.nvml import open_nvml

    nvml: Nvml | None = None
    with ExitStack() as opened:
        for line in sys.stdin:
            question, _, rest = line.strip().partition(" ")
            if question == LOOK:
                _print(see(msgspec.json.decode(rest, type=ProbeOrder)))
                continue
            if nvml is None:
                nvml = opened.enter_context(open_nvml(lambda why: print(why, file=sys.stderr)))
            if nvml is None:
                sys.exit(NO_DRIVER)
            _print(nvml.samples(datetime.now(UTC)) if question == SAMPLES else nvml.processes(int(rest)))


def see(order: ProbeOrder) -> MachineLook:
    """Look at everything."""
    import os
    import platform
    from pathlib import Path

    import psutil

    from appliance.platform.machine import here, this_platform

    root = Path(order.root)

    def doing(stage: str) -> bool:
        if stage in order.without:
            return False
        _print(stage)
        return True

    # A stage is announced before it begins, and the line is flushed. If a driver kills or hangs this process, the last
    # announced stage is to blame, and the parent starts anew without it.
    _print(STAGES[0])
    memory, (limit, left) = psutil.virtual_memory(), here.memory_limits(root)
    level, features = here.cpu_level(root)
    gpus: list[Gpu] = []
    problems: list[str] = []
    if doing(NVML_STAGE):
        gpus += _through_nvml(root, problems)
    # The files of the kernel's module are second best: they know neither memory nor compute capability.
    if not gpus and doing("nvidia"):
        gpus += here.gpus_of("nvidia", root)
    for vendor in STAGES[3:6]:
        if doing(vendor):
            gpus += here.gpus_of(vendor, root)
    loaders = here.loaders(root) if doing("loaders") else {}
    if doing("problems"):
        problems += here.problems(root)
    if any(gpu.vendor == "NVIDIA" for gpu in gpus) and not loaders.get("cuda", "?"):
        problems.append(
            "NVIDIA's driver runs, and its libcuda.so.1 is not here: install it, or start the container with --gpus all"
        )
    return MachineLook(
        platform=this_platform(),
        system=here.system(),
        environment=here.environment(root).kind,
        cpu=here.cpu_names(root).model or platform.machine(),
        cpu_level=level,
        cpu_features=features,
        cores=here.cores(root),
        memory_total=min(memory.total, limit),
        memory_available=min(memory.available, left),
        gpus=tuple(gpus),
        loaders=loaders,
        hidden={name: os.environ[name] for name in VISIBILITY if name in os.environ},
        problems=tuple(dict.fromkeys(problems)),
    )


def _through_nvml(root: Path, problems: list[str]) -> list[Gpu]:
    """NVIDIA's cards, where its library is installed; a library without its driver is a problem."""
    from appliance.features.engines.nvml import open_nvml
    from appliance.platform.libraries import NVML, find_library

    if not find_library(NVML, root):
        return []

    def refused(why: str) -> None:
        updated = "was updated and the old one runs (driver/library version mismatch): restart the machine"
        problems.append(f"NVIDIA's driver {updated if MISMATCH in why.lower() else f'does not answer: {why}'}")

    with open_nvml(refused) as nvml:
        return [] if nvml is None else nvml.gpus()


def _print(told: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
