"""Devices that an engine lists (``--list-devices``), and the card behind each of them.

Lines are `` NAME: DESCRIPTION (TOTAL MiB, FREE MiB free)``. With ``-lv 5`` the log says more: which Vulkan devices are
the processor itself or share its memory, and what CUDA and HIP cards can compute. Any text either is a list or yields a
fault; none raises.

Engines number devices in their own way: CUDA puts the fastest card first, Vulkan's loader has its own order, and
variables hide some. The machine's look (`MachineLook.gpus`) knows places, numbers and drivers. The two are matched by
vendor, name, target and memory; cards that agree in all of these are taken in the order of the bus, as CUDA and HIP do.
A doubtful place stays empty: no place is better than a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, structs

from appliance.core.engine_output import MAX_TEXT, lines_of, printable
from appliance.core.machine_look import Gpu, MachineLook
from appliance.core.sizes import MIB
from appliance.core.whole_numbers import whole_number

Fault = Literal["list", "load", "crash", "garbage", "hang", "memory", "damaged", "missing"]
"""The fault: listing its devices failed, the model did not load, it died at work, it gave a wrong answer, it did not
answer in time, it reported absurd memory or found none free, its files have changed, a library is missing.
"""

CPU = "CPU"  # the name of the device that every build has: the machine's processors and main memory

# Patterns are texts here: few starts need them, and `re` compiles each the first time.
SOFTWARE = r"(?i)llvmpipe|lavapipe|softpipe|swiftshader|basic render|\bwarp\b"
"""Names of graphics drivers that compute on the processor."""

MAX_DEVICES = 64
MOST_MEMORY = 64 << 40  # largest size of one device in bytes; more is a number that underflowed, or a lie

HEAD = "Available devices:"
LINE = r" +(\S{1,128}): (.*) \((-?[0-9]+) MiB, (-?[0-9]+) MiB free\)\s*"
LOST_LIBRARY = r"(?i)error while loading shared libraries|library not loaded|symbol lookup error|a DLL it needs"
VULKAN = r"ggml_vulkan: ([0-9]{1,3}) = (.*) \| uma: ([01]) "
VULKAN_CPU = "ggml_vulkan: Warning: Device type is CPU"
CUDA = r"\bDevice ([0-9]{1,3}): .*, (?:compute capability ([0-9]{1,3}\.[0-9]{1,3})|(gfx[0-9a-f]{3,6}))\b"
"""HIP's cards are announced in the same way; a build has one of both."""
EXCUSES = (
    r"(?i)failed to initialize|no devices found|invalid device index"
    r"|no \S+-capable device|no sycl device|failed to load"
)
"""Words of log lines that explain why there are no devices."""
HELPERS = frozenset({"BLAS", "AMX", "ZenDNN", "zDNN"})
"""Listed libraries that help the processor and are not devices. They report no memory."""
NAME = r"[A-Za-z0-9][A-Za-z0-9._:/()\[\]-]*"
"""Names of devices. They become arguments of engines, parts of seats' ids and cells of tables."""
NOT_NAMES = frozenset(("none", "auto", CPU.lower()))
"""Names that ``--device`` takes for something else, and the processor's name here."""
METAL = r"(Metal|MTL)[0-9]*"

NO_TARGETS: Mapping[str, str] = {}
MAKERS = {"CUDA": "NVIDIA", "ROCm": "AMD", "HIP": "AMD", "SYCL": "Intel", "Metal": "Apple", "MTL": "Apple"}
"""Backends that know cards of one maker only."""
WORDS = (
    ("NVIDIA", r"(?i)nvidia|geforce|quadro|tesla"),
    ("AMD", r"(?i)\bamd\b|radeon|\bradv\b|ryzen|instinct"),
    ("Intel", r"(?i)\bintel\b|\barc\b|\biris\b"),
    ("Apple", r"(?i)\bapple\b"),
)
NOISE = r"(?i)\((?:r|tm|c)\)|\b(?:nvidia|amd|ati|intel|corporation|graphics|gpu)\b|\s+|\([^()]*\)\s*$"
NUMBERED = r"(?i)(?:AMD|Intel|NVIDIA) GPU ?([0-9a-f]*)"  # the name of a card whose driver does not report one
ALIKE = 0.88
"""Two sizes are of one memory if the smaller is at least this part of the larger: drivers keep some back."""
SAME_NAME, LONGER_NAME, SHORTER_NAME, SAME_TARGET, SAME_MEMORY, ONLY_ONE = 12, 8, 7, 4, 2, 1
"""Points in favour of a pair; a part of a card (MIG) has a longer name than the card."""
HIDING = {"CUDA": ("CUDA_VISIBLE_DEVICES",), "ROCm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")}
"""Variables that hide cards by number or UUID and give the rest new numbers, by backend."""


class Device(Struct, frozen=True, kw_only=True):
    """One device, under one build's name. Sizes in bytes."""

    name: str  # ``CUDA0``, ``Vulkan1``, ``ROCm0``, ``Metal``, ``RPC0``: a value of ``--device``; or `CPU`
    description: str
    total: int
    free: int
    pci: str | None = None  # ``0000:01:00.0``, lower case: the same for one card in all backends
    uuid: str | None = None
    software: bool = False  # a renderer that computes on the processor: always slower than that
    integrated: bool | None = None  # True without memory of its own; None: unknown
    driver: str = ""  # the version of its driver; empty if unknown

    @property
    def id(self) -> str:
        """The part that survives renaming: the card's place or number, else its name."""
        return self.pci or self.uuid or self.description or self.name


class DeviceListing(Struct, frozen=True, kw_only=True):
    """The devices that a build can use, by its own account; none if it has a fault."""

    devices: tuple[Device, ...] = ()
    fault: Fault | None = None
    why: str = ""  # one line: the fault, or the build's remark about devices that it could not use
    targets: Mapping[str, str] = NO_TARGETS  # by name, of CUDA and HIP devices: ``8.9``, ``gfx1100``


def cpu_device(model: str, memory: int) -> Device:
    """Return the processors as a device; ``model`` is their name."""
    return Device(name=CPU, description=model or CPU, total=memory, free=memory)


def parse_listing(output: str, log: str = "") -> DeviceListing:
    """Read the output and the log of a build that ended well."""
    devices: dict[str, Device] = {}
    for line in lines_of(output[:MAX_TEXT].partition(HEAD)[2]):
        if (found := re.fullmatch(LINE, line)) is None or found[1] in HELPERS:
            continue
        name, description, total, free = found.groups()
        if not re.fullmatch(NAME, name) or name.lower() in NOT_NAMES:
            return DeviceListing(
                fault="list", why=f"it lists a device with the name '{printable(name, 60)}', which no device has"
            )
        if absurd := _absurd(name, total, free):
            return DeviceListing(fault="memory", why=absurd)
        if len(devices) == MAX_DEVICES:
            return DeviceListing(fault="memory", why=f"it lists more than {MAX_DEVICES} devices")
        first = Device(
            name=name,
            description=printable(description),
            total=int(total) * MIB,
            free=int(free) * MIB,
            software=re.search(SOFTWARE, description) is not None,
            integrated=True if re.fullmatch(METAL, name) and description.startswith("Apple") else None,
        )
        devices.setdefault(name, first)
    if HEAD not in output:
        said = next((line.strip() for line in output[:MAX_TEXT].splitlines() if line.strip()), "nothing")
        return DeviceListing(fault="list", why=f"it printed this instead of a list of devices: {printable(said)}")
    targets = _add_facts(devices, log[:MAX_TEXT])
    excuses = (printable(line) for line in lines_of(log[:MAX_TEXT]) if re.search(EXCUSES, line))
    return DeviceListing(devices=tuple(devices.values()), targets=targets, why="" if devices else next(excuses, ""))


def _absurd(name: str, total: str, free: str) -> str:
    """Return the mistake in these figures; empty: none."""
    figures = f"it says that {printable(name)} has {printable(total, 24)} MiB of memory, {printable(free, 24)} MiB free"
    if max(len(total), len(free)) > len(str(MOST_MEMORY)):
        return figures
    possible = 0 <= int(free) <= int(total) <= MOST_MEMORY // MIB and int(total) > 0
    return "" if possible else figures


def _add_facts(devices: dict[str, Device], log: str) -> Mapping[str, str]:
    """Add what the log says of Vulkan's devices; return compute capabilities of CUDA's and HIP's by name."""
    targets: dict[str, str] = {}
    last = ""
    for line in lines_of(log):
        if found := re.search(VULKAN, line):
            last = f"Vulkan{int(found[1])}"
            if (device := devices.get(last)) is not None:
                driver = printable(found[2].rpartition(" (")[2].removesuffix(")"), 100)
                shares = None if device.software else found[3] == "1"
                devices[last] = structs.replace(device, driver=driver, integrated=shares)
        elif VULKAN_CPU in line and last in devices:
            devices[last] = structs.replace(devices[last], software=True, integrated=None)
        elif (found := re.search(CUDA, line)) and len(targets) < MAX_DEVICES:
            targets[f"{'CUDA' if found[2] else 'ROCm'}{int(found[1])}"] = found[2] or found[3]
    return targets


def identify(
    devices: Sequence[Device], look: MachineLook, targets: Mapping[str, str] = NO_TARGETS
) -> tuple[Device, ...]:
    """Return the same devices with their cards' place, UUID and driver's version, and whether they are integrated.

    ``targets`` is `Listing.targets`. The look's software renderers are not cards, and devices of other machines (RPC)
    have no card here.
    """
    found: dict[str, Gpu] = {}
    for backend in dict.fromkeys(backend_of(device) for device in devices):
        ours = [device for device in devices if backend_of(device) == backend and not device.software]
        if backend != "RPC":
            found |= _matched(ours, _visible(look, backend), targets)
    return tuple(_beyond(device, found.get(device.name), look) for device in devices)


def drivers_of(look: MachineLook) -> str:
    """Return one word for all drivers of GPUs, whatever their order: it changes with any of their versions."""
    kernel = {f"{gpu.driver} {gpu.driver_version}".strip() for gpu in look.gpus if gpu.driver}
    vulkan = {f"{name} {told}" for name, told in look.loaders.items() if "/" in name}
    return "; ".join(sorted(kernel | vulkan))


def memory_names(devices: Sequence[Device], look: MachineLook | None) -> Mapping[str, str]:
    """Return the names of the devices' memory in budgets: ``gpu<i>`` by the card's place in the look, or ``ram``.

    A card that is missing from the look, because its driver reports nothing, goes by the number in the device's name.
    """
    names: dict[str, str] = {}
    for device in devices:
        gpus = look.gpus if look is not None else ()
        at = next((i for i, gpu in enumerate(gpus) if device.id in (gpu.pci, gpu.uuid)), None)
        number = "".join(c for c in device.name if c.isdecimal()) or "0"
        names[device.name] = "ram" if device.software or device.integrated else f"gpu{number if at is None else at}"
    return names


def backend_of(device: Device) -> str:
    """Return ``CUDA`` of ``CUDA0``; ``RPC`` of ``RPC0`` and of ``RPC[host:port]``."""
    return re.split(r"[0-9\[]", device.name, maxsplit=1)[0]


def maker_of(device: Device) -> str:
    """Return the card's maker, by the backend or by the device's name; empty: unknown."""
    told = MAKERS.get(backend_of(device))
    return told or next((maker for maker, words in WORDS if re.search(words, device.description)), "")


def _visible(look: MachineLook, backend: str) -> Sequence[Gpu]:
    """The cards that this backend may list, in the order of the bus.

    Numbers in a variable are the backend's own, which are known only where all its cards are equal.
    """
    cards = sorted(look.gpus, key=lambda gpu: gpu.pci or "~")
    maker = MAKERS.get(backend)
    if maker is None:
        return cards
    cards = [gpu for gpu in cards if gpu.vendor == maker]
    for variable in HIDING.get(backend, ()):
        if not (told := look.hidden.get(variable)):
            continue
        words = list(dict.fromkeys(word.strip() for word in told.split(",")))
        by_uuid = [gpu for word in words for gpu in cards if word and _has_uuid(gpu, word)]
        if by_uuid:
            cards = list(dict.fromkeys(by_uuid))
        elif len({plain(gpu.name) for gpu in cards}) == 1 and None not in (numbers := list(map(whole_number, words))):
            cards = [cards[number] for number in numbers if number is not None and number < len(cards)]
    return cards


def _has_uuid(gpu: Gpu, word: str) -> bool:
    """True if the word means this card: CUDA accepts the beginning of a UUID; HIP's are ``GPU-`` and a number."""
    uuid, wanted = (gpu.uuid or "").lower(), word.lower()
    return bool(uuid) and not word.isdecimal() and (uuid.startswith(wanted) or f"gpu-{uuid}" == wanted)


# Greedy, from the surest pair down. In each round ``mine`` are the cards that fit one device equally well, ``rivals``
# the devices that fit any of these as well as it does. If there are at least as many rivals as cards, the cards are
# interchangeable and are dealt out in the order of the bus. If there are fewer, nobody can say which cards the rivals
# are, and none of them gets one. Both leave the game in either case, so that a later, weaker pair cannot claim them.
def _matched(devices: Sequence[Device], cards: Sequence[Gpu], targets: Mapping[str, str]) -> dict[str, Gpu]:
    """Match cards by device name. The best pairs come first; of devices that fit several cards alike, all or none."""
    rest: list[Device] = list(devices)
    open_cards: list[int] = list(range(len(cards)))
    found: dict[str, Gpu] = {}
    while rest and open_cards:
        makers = [cards[card].vendor for card in open_cards]
        fits = {
            (at, card): _fit(rest[at], cards[card], targets.get(rest[at].name, ""), makers.count(cards[card].vendor))
            for at in range(len(rest))
            for card in open_cards
        }
        best = max(fits.values())
        if not best:
            break
        first = min(at for (at, _), fit in fits.items() if fit == best)
        mine = [card for card in open_cards if fits[first, card] == best]
        rivals = [at for at in range(len(rest)) if any(fits[at, card] == best for card in mine)]
        if len(mine) <= len(rivals):
            found |= {rest[at].name: cards[card] for at, card in zip(rivals, mine, strict=False)}
        open_cards = [card for card in open_cards if card not in mine]
        rest = [device for at, device in enumerate(rest) if at not in rivals]
    return found


# A driver that knows the card's name decides by the name, and memory and target only break ties. A driver that knows
# only a PCI number ("AMD GPU 744c") cannot: then the number within the device's description counts, or that the card is
# the only one of its maker, or the only integrated one.
def _fit(device: Device, card: Gpu, target: str, of_its_maker: int) -> int:
    """Return the points in favour of this card, of which its maker has so many that are free; 0: it is another one."""
    maker = maker_of(device)
    if (maker and maker != card.vendor) or (target and card.gfx and target != card.gfx):
        return 0
    same_memory = card.total is not None and (min(device.total, card.total) >= max(device.total, card.total) * ALIKE)
    told = target or device.description.lower()
    fit = (SAME_MEMORY if same_memory else 0) + (SAME_TARGET if card.gfx and card.gfx in told else 0)
    if (numbered := re.fullmatch(NUMBERED, card.name)) is None:
        named = _same_name(plain(device.description), plain(card.name))
        if named == SHORTER_NAME and card.total is not None and not same_memory:
            named = 0  # "AMD Radeon Graphics" is what every integrated one is called
        return fit + named if named or fit >= SAME_TARGET else 0
    if numbered[1] and f"0x{numbered[1].lower()}" in device.description.lower():
        return fit + SAME_NAME
    if device.integrated is not None and card.integrated is not None and device.integrated != card.integrated:
        return 0
    if device.integrated and card.integrated:
        return fit + ONLY_ONE
    other_memory = card.total is not None and not same_memory and not device.integrated
    return fit + ONLY_ONE if of_its_maker == 1 and not other_memory else fit


def _same_name(ours: str, theirs: str) -> int:
    if ours == theirs:
        return SAME_NAME
    if ours and theirs.startswith(ours):
        return SHORTER_NAME
    return LONGER_NAME if theirs and ours.startswith(theirs) else 0


def _beyond(device: Device, card: Gpu | None, look: MachineLook) -> Device:
    if card is None:
        versions = {gpu.driver_version for gpu in look.gpus if gpu.vendor == maker_of(device)}
        version = versions.pop() if len(versions) == 1 else ""
        return structs.replace(device, driver=_versioned(device.driver, version, look))
    return structs.replace(
        device,
        pci=device.pci or card.pci,
        uuid=device.uuid or card.uuid,
        driver=_versioned(device.driver, card.driver_version, look),
        integrated=device.integrated if card.integrated is None else card.integrated,
    )


def _versioned(driver: str, version: str, look: MachineLook) -> str:
    """Return the driver's version; for a Vulkan driver, whose kernel part says little, its name and Mesa's."""
    mesa = sorted({told for name, told in look.loaders.items() if "/" in name and told.startswith("Mesa")})
    if driver and "nvidia" not in driver.lower() and mesa:
        return " ".join(word for word in (driver, version, *mesa) if word)
    return version or driver


def plain(name: str) -> str:
    """Return a card's bare name: ``radeon rx 7900 xt`` of ``AMD Radeon ... (RADV NAVI31)``."""
    return " ".join(re.sub(NOISE, " ", re.sub(NOISE, " ", name)).lower().split())
