"""Findings about graphics cards and their drivers: those that are not used, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from appliance.core.engines.builds import runs_on
from appliance.core.engines.offers import CARD_BACKENDS, EngineOffer, suited
from appliance.core.machine_look import NOTHING, Gpu
from appliance.core.versions import numbers_of
from appliance.features.doctor.core.facts import DoctorFacts
from appliance.features.doctor.core.findings import Finding, found, note, some, warning

NONE_AT_ALL = ("", "-1", "none", "void", "nodevfiles")  # values of the variables that hide every card
SILENT = re.compile(r"does not answer|when asked for")
"""Words of those of `MachineLook.problems` after which the machine is to be restarted; others name their remedy."""
NOT_CARDS = ("ZES_ENABLE_SYSMAN",)
INSTALL = "llama-appliance engines install"


def no_build_for_the_card(facts: DoctorFacts) -> Iterator[Finding]:
    offered = {offer.card: offer for offer in facts.offers}
    for gpu in {gpu.name: gpu for gpu in facts.gpus}.values():
        if (offer := offered.get(gpu.name)) is None:
            continue
        installed = sorted({f"{one.backend}{' (damaged)' if one.damage else ''}" for one in facts.engines})
        yield found(
            "note" if gpu.integrated else "warning",
            "gpu-without-build",
            f"There is a {gpu.name}, and no engine build that can use it",
            (_card(gpu), f"installed engines: {', '.join(installed) or 'none'}", *some(offer.problems)),
            _advice(offer, suited(gpu)),
            *((f"{INSTALL} {offer.word}", "llama-appliance engines prove") if offer.word else ()),
        )


def _advice(offer: EngineOffer, backends: tuple[str, ...]) -> str:
    if offer.word:
        size = f", {offer.size / 1e6:.0f} MB" if offer.size else ""
        return f"{offer.build} can use it{size}; --from installs it from a folder, without a network."
    return (
        f"No listed build for {' or '.join(backends)} runs here; 'python llama-builds/build.py' makes one, and "
        f"'{INSTALL} --from FOLDER' takes it."
    )


def too_old(facts: DoctorFacts) -> Iterator[Finding]:
    for gpu, engine in product(facts.gpus, facts.engines):
        needed, fits = engine.needs.driver, engine.backend in CARD_BACKENDS.get(gpu.vendor.lower(), ())
        if fits and needed and gpu.driver_version and numbers_of(gpu.driver_version) < numbers_of(needed):
            others = [name for name in suited(gpu) if name != engine.backend]
            yield warning(
                "driver-too-old",
                f"The {gpu.driver} driver is too old for {engine.id}",
                f"driver {gpu.driver_version} of {gpu.name}; the build needs {needed} or later",
                "Update the graphics driver, or use a build with lower requirements.",
                *(f"{INSTALL} {name}" for name in others[:1]),
            )
        able, compute = engine.needs.compute, gpu.compute
        if compute and able and engine.backend.startswith("cuda") and not any(runs_on(each, compute) for each in able):
            yield warning(
                "card-too-old",
                f"{engine.id} was not made for a {gpu.name}",
                f"compute capability {compute}; the build has {', '.join(able)}",
                "The Vulkan build runs on older and newer cards alike.",
                f"{INSTALL} vulkan",
            )


def sick_driver(facts: DoctorFacts) -> Iterator[Finding]:
    for problem in facts.look.problems if facts.look is not None else ():
        if "mismatch" in problem.lower():
            yield warning(
                "driver-mismatch",
                "The graphics driver was updated, but the system still runs the old one",
                problem,
                "Restart the machine: both halves of the driver must have the same version.",
                "sudo reboot",
            )
        elif SILENT.search(problem):
            yield warning(
                "driver-silent",
                "A graphics driver is installed but does not answer",
                problem,
                "Restart the machine; if that does not help, install the driver again.",
            )
        else:
            yield warning(
                "card-unusable",
                "Engines cannot use a graphics card as this system is",
                problem,
                "The line above names what is missing; once it is here, look at the machine again.",
                "llama-appliance engines probe",
            )


def card_without_driver(facts: DoctorFacts) -> Iterator[Finding]:
    known = {gpu.pci for gpu in facts.gpus}
    for card in facts.checkup.cards:
        if card.pci in known:
            continue
        if card.driver == "nouveau":
            yield warning(
                "nouveau",
                "The NVIDIA card uses the nouveau driver, which cannot compute",
                f"{card.vendor} card at {card.pci}, driver nouveau",
                "Install NVIDIA's own driver (your distribution's package), then restart the machine.",
                "sudo apt-get install nvidia-driver",
            )
        elif not card.driver and card.vendor in ("NVIDIA", "AMD", "Intel"):
            yield warning(
                "card-without-driver",
                f"There is a graphics card of {card.vendor}, but no driver for it",
                f"{card.vendor} card at {card.pci}; no kernel driver uses it",
                "Install the card's driver and restart the machine; in a container, on the host.",
            )


def no_vulkan(facts: DoctorFacts) -> Iterator[Finding]:
    build = next((one for one in facts.engines if one.backend == "vulkan" and not one.damage), None)
    if build is None or facts.look is None:
        return
    if facts.look.loaders.get("vulkan") == "":
        yield warning(
            "no-vulkan-loader",
            "The Vulkan build cannot see any card: the system's Vulkan library is missing",
            f"{build.id} is installed; libvulkan was not found",
            "On Windows and with NVIDIA's driver it comes with the driver.",
            "sudo apt-get install libvulkan1 mesa-vulkan-drivers",
        )
        return
    listed = next((one for one in facts.state.listed if one.digest == build.digest), None)
    if listed is not None and not listed.why and not listed.devices and facts.gpus and not hiding(facts):
        drivers = sorted(name.removeprefix("vulkan/") for name in facts.look.loaders if name.startswith("vulkan/"))
        yield warning(
            "no-vulkan-driver",
            "The Vulkan build sees no card: the card has no Vulkan driver",
            (
                f"{build.id} lists no device; Vulkan drivers here: {', '.join(drivers) or 'none'}",
                *some(_card(gpu) for gpu in facts.gpus),
            ),
            "Install the Vulkan part of the graphics driver.",
            "sudo apt-get install mesa-vulkan-drivers",
        )


def no_permission(facts: DoctorFacts) -> Iterator[Finding]:
    closed = [file for file in facts.checkup.device_files if not file.usable]
    if not closed:
        return
    groups = sorted({file.group for file in closed if file.group and file.group != "root"}) or ["render", "video"]
    yield warning(
        "no-permission",
        "This user may not use the graphics card",
        some(f"{file.path} belongs to the group {file.group or '?'}, and cannot be opened" for file in closed),
        "Join the group, then log in again (restart a service).",
        f"sudo usermod -aG {','.join(groups)} $USER",
    )


def hidden_cards(facts: DoctorFacts) -> Iterator[Finding]:
    for name, value in hiding(facts).items():
        everything = value.strip().lower() in NONE_AT_ALL
        yield found(
            "warning" if everything and facts.gpus else "note",
            "hidden-cards",
            f"{name} hides {'every graphics card' if everything else 'some graphics cards'} from engines",
            f"{name}={value}",
            "Engines see only the cards that this variable allows; start the program without it to show all.",
            f"unset {name}",
        )


def weak_graphics(facts: DoctorFacts) -> Iterator[Finding]:
    seats = [one.seat for one in facts.ranked]
    drawn = [seat for seat in seats if seat.software]
    if drawn and not any(seat.devices and not seat.software and not seat.on_cpu for seat in seats):
        yield note(
            "software-renderer",
            "The only graphics device here is software that computes on the processor",
            some(f"{seat.id}: {device.description}" for seat in drawn for device in seat.devices),
            "It is slower than the processor itself and is not used. A card needs its own driver.",
            "llama-appliance engines ls",
        )
    gpus = facts.gpus
    if gpus and all(gpu.integrated for gpu in gpus) and not any(gpu.vendor.lower() == "apple" for gpu in gpus):
        yield note(
            "integrated-only",
            "The graphics here is part of the processor and shares its memory",
            some(_card(gpu) for gpu in gpus),
            "It is used if measurements show that it is faster than the processor; often it is not.",
            "llama-appliance engines ls",
        )


def surroundings(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.look is None or facts.gpus:
        return
    if facts.look.environment == "wsl" and not any("dxg" in file.path for file in facts.checkup.device_files):
        yield note(
            "wsl-without-gpu",
            "This WSL has no graphics card",
            "there is no /dev/dxg",
            "WSL 2 shows cards if Windows has a current driver (the Linux part needs none).",
            "wsl.exe --update",
        )
    if facts.look.environment == "container" and not facts.checkup.device_files:
        there = facts.checkup.cards
        yield found(
            "warning" if there else "note",
            "container-without-gpu",
            "This container has no access to the graphics card",
            (
                "there is neither /dev/dri nor /dev/kfd nor /dev/nvidia*",
                *some(f"on the bus: {card.vendor} card at {card.pci}" for card in there),
            ),
            "Start the container with the card: --gpus all for NVIDIA's (with nvidia-container-toolkit on the "
            "host), --device /dev/dri --device /dev/kfd for AMD's, --device /dev/dri for Intel's.",
        )


def hiding(facts: DoctorFacts) -> dict[str, str]:
    """Return the variables that hide cards from engines."""
    hidden = facts.look.hidden if facts.look is not None else NOTHING
    return {name: value for name, value in hidden.items() if name not in NOT_CARDS}


def _card(gpu: Gpu) -> str:
    memory = f", {gpu.total / 2**30:.1f} GiB" if gpu.total else ""
    return f"{gpu.name}: driver {gpu.driver or '?'} {gpu.driver_version}".rstrip() + memory
