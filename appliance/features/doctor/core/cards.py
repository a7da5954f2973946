"""Findings about graphics cards and their drivers: those that are not used, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.core.engines.builds import numbers_of, runs_on
from appliance.core.engines.offers import CARD_BACKENDS, EngineOffer, suited
from appliance.core.machine_look import Gpu
from appliance.features.doctor.core.facts import DoctorFacts
from appliance.features.doctor.core.findings import Finding, one_line, some

NONE_AT_ALL = ("", "-1", "none", "void", "nodevfiles")
"""Values of the variables that hide every card."""
SILENT = re.compile(r"does not answer|when asked for")
"""Words of those of `MachineLook.problems` after which the machine is to be restarted; others name their remedy."""
NOT_CARDS = ("ZES_ENABLE_SYSMAN",)
INSTALL = "llama-appliance engines install"


def no_build_for_the_card(facts: DoctorFacts) -> Iterator[Finding]:
    offered = {offer.card: offer for offer in facts.offers}
    for gpu in {gpu.name: gpu for gpu in _gpus(facts)}.values():
        if (offer := offered.get(gpu.name)) is None:
            continue
        installed = (
            ", ".join(sorted({f"{one.backend}{' (damaged)' if one.damage else ''}" for one in facts.engines})) or "none"
        )
        yield Finding(
            id="gpu-without-build",
            severity="note" if gpu.integrated else "warning",
            title=f"There is a {gpu.name}, and no engine build that can use it",
            evidence=(_card(gpu), f"installed engines: {installed}", *some(map(one_line, offer.problems))),
            advice=_advice(offer, suited(gpu)),
            commands=(f"{INSTALL} {offer.word}", "llama-appliance engines prove") if offer.word else (),
        )


def _advice(offer: EngineOffer, backends: tuple[str, ...]) -> str:
    if offer.word:
        size = f", {offer.size / 1e6:.0f} MB" if offer.size else ""
        return f"{offer.build} can use it{size}; --from installs it from a folder, without a network."
    return (
        f"No listed build for {' or '.join(backends)} runs here; 'python llama-builds/build.py' makes one, and "
        f"'{INSTALL} --from FOLDER' takes it."
    )


def driver_too_old(facts: DoctorFacts) -> Iterator[Finding]:
    for gpu in _gpus(facts):
        for engine in facts.engines:
            needed = engine.needs.driver
            if engine.backend not in CARD_BACKENDS.get(gpu.vendor.lower(), ()) or not needed or not gpu.driver_version:
                continue
            if numbers_of(gpu.driver_version) < numbers_of(needed):
                others = [name for name in suited(gpu) if name != engine.backend]
                yield Finding(
                    id="driver-too-old",
                    severity="warning",
                    title=f"The {gpu.driver} driver is too old for {engine.id}",
                    evidence=(f"driver {gpu.driver_version} of {gpu.name}; the build needs {needed} or later",),
                    advice="Update the graphics driver, or use a build with lower requirements.",
                    commands=tuple(f"{INSTALL} {name}" for name in others[:1]),
                )


def compute_too_low(facts: DoctorFacts) -> Iterator[Finding]:
    for gpu in _gpus(facts):
        for engine in facts.engines:
            able = engine.needs.compute
            if not gpu.compute or not able or not engine.backend.startswith("cuda"):
                continue
            if not any(runs_on(each, gpu.compute) for each in able):
                yield Finding(
                    id="card-too-old",
                    severity="warning",
                    title=f"{engine.id} was not made for a {gpu.name}",
                    evidence=(f"compute capability {gpu.compute}; the build has {', '.join(able)}",),
                    advice="The Vulkan build runs on older and newer cards alike.",
                    commands=(f"{INSTALL} vulkan",),
                )


def sick_driver(facts: DoctorFacts) -> Iterator[Finding]:
    for problem in facts.look.problems if facts.look is not None else ():
        if "mismatch" in problem.lower():
            yield Finding(
                id="driver-mismatch",
                severity="warning",
                title="The graphics driver was updated, but the system still runs the old one",
                evidence=(one_line(problem),),
                advice="Restart the machine: both halves of the driver must have the same version.",
                commands=("sudo reboot",),
            )
        elif SILENT.search(problem):
            yield Finding(
                id="driver-silent",
                severity="warning",
                title="A graphics driver is installed but does not answer",
                evidence=(one_line(problem),),
                advice="Restart the machine; if that does not help, install the driver again.",
            )
        else:
            yield Finding(
                id="card-unusable",
                severity="warning",
                title="Engines cannot use a graphics card as this system is",
                evidence=(one_line(problem) or "it gave no reason",),
                advice="The line above names what is missing; once it is here, look at the machine again.",
                commands=("llama-appliance engines probe",),
            )


def card_without_driver(facts: DoctorFacts) -> Iterator[Finding]:
    known = {gpu.pci for gpu in _gpus(facts)}
    for card in facts.checkup.cards:
        if card.pci in known:
            continue
        if card.driver == "nouveau":
            yield Finding(
                id="nouveau",
                severity="warning",
                title="The NVIDIA card uses the nouveau driver, which cannot compute",
                evidence=(f"{card.vendor} card at {card.pci}, driver nouveau",),
                advice="Install NVIDIA's own driver (your distribution's package), then restart the machine.",
                commands=("sudo apt-get install nvidia-driver",),
            )
        elif not card.driver and card.vendor in ("NVIDIA", "AMD", "Intel"):
            yield Finding(
                id="card-without-driver",
                severity="warning",
                title=f"There is a graphics card of {card.vendor}, but no driver for it",
                evidence=(f"{card.vendor} card at {card.pci}; no kernel driver uses it",),
                advice="Install the card's driver and restart the machine; in a container, on the host.",
            )


def no_vulkan(facts: DoctorFacts) -> Iterator[Finding]:
    build = next((one for one in facts.engines if one.backend == "vulkan" and not one.damage), None)
    if build is None or facts.look is None:
        return
    if facts.look.loaders.get("vulkan") == "":
        yield Finding(
            id="no-vulkan-loader",
            severity="warning",
            title="The Vulkan build cannot see any card: the system's Vulkan library is missing",
            evidence=(f"{build.id} is installed; libvulkan was not found",),
            advice="On Windows and with NVIDIA's driver it comes with the driver.",
            commands=("sudo apt-get install libvulkan1 mesa-vulkan-drivers",),
        )
        return
    listed = next((one for one in facts.state.listed if one.digest == build.digest), None)
    sees_none = listed is not None and not listed.why and not listed.devices
    if sees_none and _gpus(facts) and not hiding(facts):
        yield Finding(
            id="no-vulkan-driver",
            severity="warning",
            title="The Vulkan build sees no card: the card has no Vulkan driver",
            evidence=(
                f"{build.id} lists no device; Vulkan drivers here: {_vulkan_drivers(facts)}",
                *some(_card(gpu) for gpu in _gpus(facts)),
            ),
            advice="Install the Vulkan part of the graphics driver.",
            commands=("sudo apt-get install mesa-vulkan-drivers",),
        )


def no_permission(facts: DoctorFacts) -> Iterator[Finding]:
    closed = [file for file in facts.checkup.device_files if not file.usable]
    if not closed:
        return
    groups = sorted({file.group for file in closed if file.group and file.group != "root"}) or ["render", "video"]
    yield Finding(
        id="no-permission",
        severity="warning",
        title="This user may not use the graphics card",
        evidence=some(f"{file.path} belongs to the group {file.group or '?'}, and cannot be opened" for file in closed),
        advice="Join the group, then log in again (restart a service).",
        commands=(f"sudo usermod -aG {','.join(groups)} $USER",),
    )


def hidden_cards(facts: DoctorFacts) -> Iterator[Finding]:
    for name, value in hiding(facts).items():
        everything = value.strip().lower() in NONE_AT_ALL
        yield Finding(
            id="hidden-cards",
            severity="warning" if everything and _gpus(facts) else "note",
            title=f"{name} hides {'every graphics card' if everything else 'some graphics cards'} from engines",
            evidence=(f"{name}={one_line(value)}",),
            advice="Engines see only the cards that this variable allows; start the program without it to show all.",
            commands=(f"unset {name}",),
        )


def software_renderer(facts: DoctorFacts) -> Iterator[Finding]:
    seats = [one.seat for one in facts.ranked]
    drawn = [seat for seat in seats if seat.software]
    if drawn and not any(seat.devices and not seat.software and not seat.on_cpu for seat in seats):
        yield Finding(
            id="software-renderer",
            severity="note",
            title="The only graphics device here is software that computes on the processor",
            evidence=some(f"{seat.id}: {device.description}" for seat in drawn for device in seat.devices),
            advice="It is slower than the processor itself and is not used. A card needs its own driver.",
            commands=("llama-appliance engines ls",),
        )


def integrated_only(facts: DoctorFacts) -> Iterator[Finding]:
    gpus = _gpus(facts)
    if gpus and all(gpu.integrated for gpu in gpus) and not any(gpu.vendor.lower() == "apple" for gpu in gpus):
        yield Finding(
            id="integrated-only",
            severity="note",
            title="The graphics here is part of the processor and shares its memory",
            evidence=some(_card(gpu) for gpu in gpus),
            advice="It is used if measurements show that it is faster than the processor; often it is not.",
            commands=("llama-appliance engines ls",),
        )


def surroundings(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.look is None or _gpus(facts):
        return
    if facts.look.environment == "wsl" and not any("dxg" in file.path for file in facts.checkup.device_files):
        yield Finding(
            id="wsl-without-gpu",
            severity="note",
            title="This WSL has no graphics card",
            evidence=("there is no /dev/dxg",),
            advice="WSL 2 shows cards if Windows has a current driver (the Linux part needs none).",
            commands=("wsl.exe --update",),
        )
    if facts.look.environment == "container" and not facts.checkup.device_files:
        there = facts.checkup.cards
        yield Finding(
            id="container-without-gpu",
            severity="warning" if there else "note",
            title="This container has no access to the graphics card",
            evidence=(
                "there is neither /dev/dri nor /dev/kfd nor /dev/nvidia*",
                *some(f"on the bus: {card.vendor} card at {card.pci}" for card in there),
            ),
            advice="Start the container with the card: --gpus all for NVIDIA's (with nvidia-container-toolkit on the "
            "host), --device /dev/dri --device /dev/kfd for AMD's, --device /dev/dri for Intel's.",
        )


def hiding(facts: DoctorFacts) -> dict[str, str]:
    """Return the variables that hide cards from engines."""
    if facts.look is None:
        return {}
    return {name: value for name, value in facts.look.hidden.items() if name not in NOT_CARDS}


def _gpus(facts: DoctorFacts) -> tuple[Gpu, ...]:
    return facts.look.gpus if facts.look is not None else ()


def _vulkan_drivers(facts: DoctorFacts) -> str:
    names = [name for name in (facts.look.loaders if facts.look is not None else ()) if name.startswith("vulkan/")]
    return ", ".join(sorted(name.removeprefix("vulkan/") for name in names)) or "none"


def _card(gpu: Gpu) -> str:
    memory = f", {gpu.total / 2**30:.1f} GiB" if gpu.total else ""
    return f"{gpu.name}: driver {gpu.driver or '?'} {gpu.driver_version}".rstrip() + memory
