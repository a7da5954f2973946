"""A process that looks at the machine, and may be killed by a driver: the other side of `engines.looking`.

It reads one `Order` from standard input and prints JSON lines: the name of each stage before it begins it, so that
whoever finds it dead or stuck knows where, and the `Look` at the end.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from appliance.core.engines.builds import platform_of
from appliance.core.engines.machine import VISIBILITY, Gpu, Look
from appliance.engines.machine_words import NVML_STAGE, STAGES, Order, Seen, Stage, Told
from appliance.platform.cpu_level import cpu_level
from appliance.platform.libraries import NVML, find_library

if sys.platform == "darwin":
    from appliance.platform import hardware_macos as hardware
    from appliance.platform import look_macos as here
elif sys.platform == "win32":
    from appliance.platform import hardware_windows as hardware
    from appliance.platform import look_windows as here
else:
    from appliance.platform import hardware_linux as hardware
    from appliance.platform import look_linux as here

MISMATCH = "version mismatch"
"""What NVML says after an update of the driver until the machine is restarted; nvidia-smi says it in full."""

_ORDER = msgspec.json.Decoder(Order)


def main() -> None:
    order = _ORDER.decode(sys.stdin.buffer.read())
    look = see(order, lambda name: _tell(Stage(name)))
    _tell(Seen(look))


def see(order: Order, begin: Callable[[str], None] = lambda name: None) -> Look:
    """Look at everything; ``begin`` hears of each stage that is about to be done."""
    root = Path(order.root)

    def doing(stage: str) -> bool:
        if stage in order.without:
            return False
        begin(stage)
        return True

    begin(STAGES[0])
    total, available = here.memory(root)
    level, features = cpu_level(root)
    gpus: list[Gpu] = []
    problems: list[str] = []
    if doing(NVML_STAGE):
        gpus += _through_nvml(root, problems)
    if not gpus and doing("nvidia"):
        gpus += here.gpus_of("nvidia", root)
    for vendor in STAGES[3:6]:
        if doing(vendor):
            gpus += here.gpus_of(vendor, root)
    loaders = here.loaders(root) if doing("loaders") else {}
    if doing("problems"):
        problems += here.problems(root)
    if here.nvidia_is_loaded(root) and not loaders.get("cuda", "?"):
        problems.append(
            "NVIDIA's driver runs, and its libcuda.so.1 is not here: install it, or start the container with --gpus all"
        )
    return Look(
        platform=platform_of(sys.platform, platform.machine()),
        system=here.system(),
        environment=_environment(root),
        cpu=here.cpu(root),
        cpu_level=level,
        cpu_features=features,
        cores=here.cores(root),
        memory_total=total,
        memory_available=available,
        gpus=tuple(gpus),
        loaders=loaders,
        hidden=dict(_hidden()),
        problems=tuple(dict.fromkeys(problems)),
    )


def _through_nvml(root: Path, problems: list[str]) -> list[Gpu]:
    """NVIDIA's cards, where its library is installed; a library without its driver is a problem that is told."""
    if not find_library(NVML, root):
        return []
    from appliance.platform.nvml import find_library as load
    from appliance.platform.nvml import open_nvml

    def refused(why: str) -> None:
        problems.append(_in_words(why))

    with open_nvml(load(), refused) as nvml:
        return [] if nvml is None else nvml.gpus()


def _in_words(why: str) -> str:
    if MISMATCH in why.lower():
        return "NVIDIA's driver was updated and the old one runs (driver/library version mismatch): restart the machine"
    return f"NVIDIA's driver does not answer: {why}"


def _environment(root: Path) -> str:
    if sys.platform == "linux":
        return hardware.environment(root).kind
    return hardware.environment().kind


def _hidden() -> Iterator[tuple[str, str]]:
    return ((name, os.environ[name]) for name in VISIBILITY if name in os.environ)


def _tell(told: Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
