"""Findings about graphics cards and their drivers: those that are not used, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from shlex import quote

from appliance.core.examination import Known, ServedModel
from appliance.core.findings import Finding, found, note, some, warning
from appliance.core.machine_look import NOTHING, Gpu
from appliance.core.versions import numbers_of
from appliance.features.engines.core.builds import CARD_BACKENDS, EngineOffer, Installed, runs_on, suited
from appliance.features.engines.core.choice import Ranked, best
from appliance.features.engines.core.listing import CPU
from appliance.features.engines.core.standing import ListedDevices

NONE_AT_ALL = ("", "-1", "none", "void", "nodevfiles")  # values of the variables that hide every card
SILENT = re.compile(r"does not answer|when asked for")
"""Words of those of `MachineLook.problems` after which the machine is to be restarted; others name their remedy."""
NOT_CARDS = ("ZES_ENABLE_SYSMAN",)
INSTALL = "llama-appliance engines install"


def no_build_for_the_card(
    known: Known, engines: Sequence[Installed], offers: Sequence[EngineOffer]
) -> Iterator[Finding]:
    offered = {offer.card: offer for offer in offers}
    installed = sorted({f"{one.backend}{' (damaged)' if one.damage else ''}" for one in engines})
    for gpu in {gpu.name: gpu for gpu in known.gpus}.values():
        if (offer := offered.get(gpu.name)) is None:
            continue
        size = f", {offer.size / 1e6:.0f} MB" if offer.size else ""
        yield found(
            "note" if gpu.integrated else "warning",
            "gpu-without-build",
            f"There is a {gpu.name}, and no engine build that can use it",
            (_card(gpu), f"installed engines: {', '.join(installed) or 'none'}", *some(offer.problems)),
            f"{offer.build} can use it{size}; --from installs it from a folder, without a network."
            if offer.word
            else f"No listed build for {' or '.join(suited(gpu))} runs here; 'python llama-builds/build.py' makes one, "
            f"and '{INSTALL} --from FOLDER' takes it.",
            *((f"{INSTALL} {offer.word}", "llama-appliance engines prove") if offer.word else ()),
        )


def too_old(known: Known, engines: Sequence[Installed]) -> Iterator[Finding]:
    for gpu, engine in product(known.gpus, engines):
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


def sick_driver(known: Known) -> Iterator[Finding]:
    for problem in known.look.problems if known.look is not None else ():
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


def card_without_driver(known: Known) -> Iterator[Finding]:
    driven = {gpu.pci for gpu in known.gpus}
    for card in known.checkup.cards:
        if card.pci in driven:
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


def no_vulkan(known: Known, engines: Sequence[Installed], lists: Sequence[ListedDevices]) -> Iterator[Finding]:
    build = next((one for one in engines if one.backend == "vulkan" and not one.damage), None)
    if build is None or known.look is None:
        return
    if known.look.loaders.get("vulkan") == "":
        yield warning(
            "no-vulkan-loader",
            "The Vulkan build cannot see any card: the system's Vulkan library is missing",
            f"{build.id} is installed; libvulkan was not found",
            "On Windows and with NVIDIA's driver it comes with the driver.",
            "sudo apt-get install libvulkan1 mesa-vulkan-drivers",
        )
        return
    listed = next((one for one in lists if one.digest == build.digest), None)
    if listed is not None and not listed.why and not listed.devices and known.gpus and not hiding(known):
        drivers = sorted(name.removeprefix("vulkan/") for name in known.look.loaders if name.startswith("vulkan/"))
        yield warning(
            "no-vulkan-driver",
            "The Vulkan build sees no card: the card has no Vulkan driver",
            (
                f"{build.id} lists no device; Vulkan drivers here: {', '.join(drivers) or 'none'}",
                *some(_card(gpu) for gpu in known.gpus),
            ),
            "Install the Vulkan part of the graphics driver.",
            "sudo apt-get install mesa-vulkan-drivers",
        )


def no_permission(known: Known) -> Iterator[Finding]:
    closed = [file for file in known.checkup.device_files if not file.usable]
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


def hidden_cards(known: Known) -> Iterator[Finding]:
    for name, value in hiding(known).items():
        everything = value.strip().lower() in NONE_AT_ALL
        yield found(
            "warning" if everything and known.gpus else "note",
            "hidden-cards",
            f"{name} hides {'every graphics card' if everything else 'some graphics cards'} from engines",
            f"{name}={value}",
            "Engines see only the cards that this variable allows; start the program without it to show all.",
            f"unset {name}",
        )


def weak_graphics(known: Known, ranked: Sequence[Ranked]) -> Iterator[Finding]:
    seats = [one.seat for one in ranked]
    drawn = [seat for seat in seats if seat.software]
    if drawn and not any(seat.devices and not seat.software and not seat.on_cpu for seat in seats):
        yield note(
            "software-renderer",
            "The only graphics device here is software that computes on the processor",
            some(f"{seat.id}: {device.description}" for seat in drawn for device in seat.devices),
            "It is slower than the processor itself and is not used. A card needs its own driver.",
            "llama-appliance engines ls",
        )
    gpus = known.gpus
    if gpus and all(gpu.integrated for gpu in gpus) and not any(gpu.vendor.lower() == "apple" for gpu in gpus):
        yield note(
            "integrated-only",
            "The graphics here is part of the processor and shares its memory",
            some(_card(gpu) for gpu in gpus),
            "It is used if measurements show that it is faster than the processor; often it is not.",
            "llama-appliance engines ls",
        )


def surroundings(known: Known) -> Iterator[Finding]:
    if known.look is None or known.gpus:
        return
    if known.look.environment == "wsl" and not any("dxg" in file.path for file in known.checkup.device_files):
        yield note(
            "wsl-without-gpu",
            "This WSL has no graphics card",
            "there is no /dev/dxg",
            "WSL 2 shows cards if Windows has a current driver (the Linux part needs none).",
            "wsl.exe --update",
        )
    if known.look.environment == "container" and not known.checkup.device_files:
        there = known.checkup.cards
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


def model_on_processor(known: Known, engines: Sequence[Installed], ranked: Sequence[Ranked]) -> Iterator[Finding]:
    """Report a loaded model on the processor although there is a card; the reason comes from the cards' seats."""
    first = best(ranked)
    cards = [one for one in ranked if one.seat.devices and not one.seat.on_cpu and not one.seat.software]
    why = _reason(known, first, cards)
    # The card may be the best place, and nobody has tried it: loading models again would change nothing.
    untried = first is not None and first.seat.on_cpu and any(one.standing == "untried" for one in cards)
    for model in known.running if known.gpus else ():
        if model.state not in ("loaded", "sleeping") or not _on_processor(engines, model):
            continue
        reload = (f"llama-appliance unload {quote(model.id)}", f"llama-appliance load {quote(model.id)}")
        yield found(
            "note" if why is None else "warning",
            "model-on-processor",
            f"The model '{model.id}' runs on the processor although there is a graphics card",
            (
                f"it runs on {model.seat or ' '.join(_devices(model.command)) or 'the processor alone'}",
                why or "the processor was faster in measurements, or was chosen by name",
            ),
            "The server tries the card once no request is under way, and moves the model there if that is faster."
            if untried
            else "Load the model again to use the engine that is best now.",
            *(("llama-appliance engines prove",) if untried else reload),
            model=model.id,
        )


def _on_processor(engines: Sequence[Installed], model: ServedModel) -> bool:
    if model.seat:
        return model.seat.rpartition(":")[2] == CPU
    if devices := _devices(model.command):
        return devices[1] == "none"
    if model.layers is not None:
        return model.layers[0] == 0
    program = (model.command[0] if model.command else "").replace("\\", "/")
    return any(engine.id in program for engine in engines if engine.backend == "cpu" and "/" in engine.id)


def _devices(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``--device`` with its value, if it is there."""
    at = command.index("--device") if "--device" in command else len(command)
    found = command[at : at + 2]
    return found if len(found) == 2 else ()


def _reason(known: Known, first: Ranked | None, cards: list[Ranked]) -> str | None:
    """Return why no card is used, as far as the user can correct it."""
    if hidden := hiding(known):
        return "hidden from engines by " + ", ".join(f"{name}={value}" for name, value in hidden.items())
    if not cards:
        return "no installed engine lists the card"
    if first is not None and not first.seat.on_cpu:
        return f"{first.seat.id} is now the better choice"
    sick = next((one for one in cards if one.standing != "proven"), None)
    return None if sick is None else f"{sick.seat.id}: {sick.standing}, {sick.why}"


def hiding(known: Known) -> dict[str, str]:
    """Return the variables that hide cards from engines."""
    hidden = known.look.hidden if known.look is not None else NOTHING
    return {name: value for name, value in hidden.items() if name not in NOT_CARDS}


def _card(gpu: Gpu) -> str:
    memory = f", {gpu.total / 2**30:.1f} GiB" if gpu.total else ""
    return f"{gpu.name}: driver {gpu.driver or '?'} {gpu.driver_version}".rstrip() + memory
