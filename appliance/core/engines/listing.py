"""Devices, and reading a build's ``--list-devices``: `` NAME: DESCRIPTION (TOTAL MiB, FREE MiB free)`` on its output.

With ``-lv 5`` its log says more of them: which Vulkan devices are the processor itself or share its memory, and what
CUDA and HIP cards can compute. Any text either is a list or yields a fault; none raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct, structs

from appliance.core.engines.proofs import Fault
from appliance.core.parts import MIB

CPU = "CPU"
"""The name of the device that every build has: the machine's processors and main memory."""

SOFTWARE = re.compile(r"llvmpipe|lavapipe|softpipe|swiftshader|basic render|\bwarp\b", re.IGNORECASE)
"""Names of graphics drivers that compute on the processor."""

MAX_DEVICES = 64
MAX_TEXT = 1 << 20
"""Characters examined in either text."""
MAX_LINE = 1024
"""A longer line does not belong to a list."""
MOST_MEMORY = 64 << 40
"""Largest size of one device in bytes; more is a number that underflowed, or a lie."""

HEAD = "Available devices:"
LINE = re.compile(r" +(\S{1,128}): (.*) \((-?[0-9]+) MiB, (-?[0-9]+) MiB free\)\s*")
VULKAN = re.compile(r"ggml_vulkan: ([0-9]{1,3}) = (.*) \| uma: ([01]) ")
VULKAN_CPU = "ggml_vulkan: Warning: Device type is CPU"
CUDA = re.compile(r"\bDevice ([0-9]{1,3}): .*, (?:compute capability ([0-9]{1,3}\.[0-9]{1,3})|(gfx[0-9a-f]{3,6}))\b")
"""HIP's cards are announced in the same way; a build has one of both."""
STAMP = re.compile(r"^\s*[0-9]+(?:\.[0-9]{2,3}){3} [A-Z] ")
"""The beginning of llama.cpp's log lines."""
EXCUSES = re.compile(
    r"failed to initialize|no devices found|invalid device index|no \S+-capable device|no sycl device|failed to load",
    re.IGNORECASE,
)
"""Words of log lines that explain why there are no devices."""
HELPERS = frozenset({"BLAS", "AMX", "ZenDNN", "zDNN"})
"""Listed libraries that help the processor and are not devices. They report no memory."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/()\[\]-]*")
"""Names of devices. They become arguments of engines, parts of seats' ids and cells of tables."""
NOT_NAMES = frozenset(("none", "auto", CPU.lower()))
"""Names that ``--device`` takes for something else, and the processor's name here."""
METAL = re.compile(r"(Metal|MTL)[0-9]*")

NO_TARGETS: Mapping[str, str] = {}


class Device(Struct, frozen=True, kw_only=True):
    """One device, under one build's name. Sizes in bytes."""

    name: str
    """``CUDA0``, ``Vulkan1``, ``ROCm0``, ``Metal``, ``RPC0``: a value of ``--device``; or `CPU`."""
    description: str
    total: int
    free: int
    pci: str | None = None
    """``0000:01:00.0``, lower case: the same for one card in all backends."""
    uuid: str | None = None
    software: bool = False
    """True for a renderer that computes on the processor: always slower than the processor itself."""
    integrated: bool | None = None
    """True without memory of its own. None: unknown."""
    driver: str = ""
    """The version of its driver; empty if unknown."""

    @property
    def id(self) -> str:
        """The part that survives renaming: the card's place or number, else its name."""
        return self.pci or self.uuid or self.description or self.name


class Listing(Struct, frozen=True, kw_only=True):
    """The devices that a build can use, by its own account; none if it has a fault."""

    devices: tuple[Device, ...] = ()
    fault: Fault | None = None
    why: str = ""
    """One line: the fault, or the build's remark about devices that it could not use."""
    targets: Mapping[str, str] = NO_TARGETS
    """Compute capabilities of CUDA and HIP devices, ``8.9`` or ``gfx1100``, by name."""
    seconds: float = 0.0
    """Seconds that it took."""


def cpu_device(model: str, memory: int) -> Device:
    """Return the processors as a device; ``model`` is their name."""
    return Device(name=CPU, description=model or CPU, total=memory, free=memory)


def parse_listing(output: str, log: str = "") -> Listing:
    """Read the output and the log of a build that ended well."""
    devices: list[Device] = []
    for name, description, total, free in _listed(output[:MAX_TEXT]):
        if name in HELPERS:
            continue
        if not NAME.fullmatch(name) or name.lower() in NOT_NAMES:
            return Listing(
                fault="list", why=f"it lists a device with the name '{printable(name, 60)}', which no device has"
            )
        if absurd := _absurd(name, total, free):
            return Listing(fault="memory", why=absurd)
        if len(devices) == MAX_DEVICES:
            return Listing(fault="memory", why=f"it lists more than {MAX_DEVICES} devices")
        if all(device.name != name for device in devices):
            devices.append(
                Device(
                    name=name,
                    description=printable(description),
                    total=int(total) * MIB,
                    free=int(free) * MIB,
                    software=SOFTWARE.search(description) is not None,
                    integrated=True if METAL.fullmatch(name) and description.startswith("Apple") else None,
                )
            )
    if HEAD not in output:
        said = next((line.strip() for line in output[:MAX_TEXT].splitlines() if line.strip()), "nothing")
        return Listing(fault="list", why=f"it printed this instead of a list of devices: {printable(said)}")
    told, targets = _told(log[:MAX_TEXT])
    why = "" if devices else next((printable(line) for line in _lines(log[:MAX_TEXT]) if EXCUSES.search(line)), "")
    return Listing(devices=tuple(_with(device, told) for device in devices), targets=targets, why=why)


def printable(text: str, most: int = 300) -> str:
    """Return one line of a program's output for a message: bounded, without llama.cpp's time stamp and cursor
    movements.
    """
    said = STAMP.sub("", text[: most + 100]).strip()
    shown = "".join(char if char.isprintable() else "?" for char in said[:most])
    return shown if len(said) <= most else f"{shown}..."


class _Told(Struct, frozen=True):
    """The log's facts about one Vulkan device."""

    driver: str
    shares_memory: bool
    computes_on_cpu: bool = False


def _listed(output: str) -> Iterator[tuple[str, str, str, str]]:
    _, _, rest = output.partition(HEAD)
    for line in _lines(rest):
        if found := LINE.fullmatch(line):
            yield found[1], found[2], found[3], found[4]


def _absurd(name: str, total: str, free: str) -> str:
    """Return the mistake in these figures; empty: none."""
    figures = f"it says that {printable(name)} has {printable(total, 24)} MiB of memory, {printable(free, 24)} MiB free"
    if max(len(total), len(free)) > len(str(MOST_MEMORY)):
        return figures
    possible = 0 <= int(free) <= int(total) <= MOST_MEMORY // MIB and int(total) > 0
    return "" if possible else figures


def _told(log: str) -> tuple[dict[str, _Told], dict[str, str]]:
    """Return facts by device name: about Vulkan's devices, and compute capabilities of CUDA's and HIP's."""
    vulkan: dict[str, _Told] = {}
    targets: dict[str, str] = {}
    last = ""
    for line in _lines(log):
        if (found := VULKAN.search(line)) and len(vulkan) < MAX_DEVICES:
            last = f"Vulkan{int(found[1])}"
            vulkan[last] = _Told(found[2].rpartition(" (")[2].removesuffix(")"), found[3] == "1")
        elif VULKAN_CPU in line and last:
            vulkan[last] = structs.replace(vulkan[last], computes_on_cpu=True)
        elif (found := CUDA.search(line)) and len(targets) < MAX_DEVICES:
            targets[f"{'CUDA' if found[2] else 'ROCm'}{int(found[1])}"] = found[2] or found[3]
    return vulkan, targets


def _with(device: Device, told: Mapping[str, _Told]) -> Device:
    more = told.get(device.name)
    if more is None:
        return device
    software = device.software or more.computes_on_cpu
    return structs.replace(
        device,
        driver=printable(more.driver, 100),
        software=software,
        integrated=None if software else more.shares_memory,
    )


def _lines(text: str) -> Iterator[str]:
    return (line.rstrip("\r") for line in text.split("\n") if len(line) <= MAX_LINE)
