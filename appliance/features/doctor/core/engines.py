"""Findings about engine builds and graphics cards.

Builds: damaged, failed, waiting, pinned, and whether the best one serves. Cards: those that are not used, and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from appliance.core.engines.builds import numbers_of, runs_on
from appliance.core.engines.choice import Ranked, best
from appliance.core.engines.offers import CARD_BACKENDS, EngineOffer, suited
from appliance.core.machine_look import Gpu
from appliance.core.quantities import span
from appliance.features.doctor.core.facts import DoctorFacts
from appliance.features.doctor.core.findings import Finding, one_line, some

LS = "llama-appliance engines ls"
AUTO = "llama-appliance engines use auto"
SET_BACK = 300.0
"""Seconds by which clocks of one machine may differ before it is worth a finding."""
NONE_AT_ALL = ("", "-1", "none", "void", "nodevfiles")
"""Values of the variables that hide every card."""
SILENT = re.compile(r"does not answer|when asked for")
"""Words of those of `MachineLook.problems` after which the machine is to be restarted; others name their remedy."""
NOT_CARDS = ("ZES_ENABLE_SYSMAN",)
INSTALL = "llama-appliance engines install"


def no_engine(facts: DoctorFacts) -> Iterator[Finding]:
    if not facts.engines:
        yield Finding(
            id="no-engine",
            severity="error",
            title="There is no engine, so no model can be started",
            evidence=("no build, no llama-server on PATH, and no embedded engine was found",),
            advice="Install a build; 'cpu' runs everywhere.",
            commands=("llama-appliance engines install cpu",),
        )
    elif facts.ranked and best(facts.ranked) is None:
        yield Finding(
            id="no-usable-engine",
            severity="error",
            title="None of the engines here can be used",
            evidence=some(_standing(one) for one in facts.ranked),
            advice="Forget the results and try them again, or install another build.",
            commands=("llama-appliance engines forget", "llama-appliance engines install cpu"),
        )


def damaged(facts: DoctorFacts) -> Iterator[Finding]:
    for engine in facts.engines:
        if engine.damage:
            yield Finding(
                id="damaged-build",
                severity="warning",
                title=f"The engine {engine.id} is damaged and is not used",
                evidence=(one_line(engine.damage), f"found in: {engine.source}"),
                advice="An antivirus program is the usual cause of missing or changed files: restore them from its "
                "quarantine and exclude the folder, then install the build again.",
                commands=(f"llama-appliance engines install {quote(engine.backend)}",),
            )


def silent_build(facts: DoctorFacts) -> Iterator[Finding]:
    for seat in {one.seat.build: one.seat for one in facts.ranked if one.seat.fault}.values():
        yield Finding(
            id="engine-cannot-list",
            severity="warning",
            title=f"The engine {seat.build} cannot list its devices and is not used",
            evidence=(one_line(seat.fault),),
            advice="The driver or the build may be at fault; try it again after a change.",
            commands=(f"llama-appliance engines prove {quote(seat.build)}",),
        )


def failed_proof(facts: DoctorFacts) -> Iterator[Finding]:
    here = {engine.digest for engine in facts.engines}
    system = facts.state.system
    for proof in facts.state.proofs:
        if proof.ok or not proof.holds(facts.now) or proof.key.digest not in here or proof.key.system != system:
            continue
        yield Finding(
            id="failed-proof",
            severity="warning",
            title=f"The engine {proof.build} failed its proof on {proof.device} ({proof.fault}), and is not used there",
            evidence=(one_line(proof.why) or f"fault: {proof.fault}", f"tried {span(facts.now - proof.at)} ago"),
            advice="The program tries it again after a day, and when the driver or the build changes.",
            commands=(f"llama-appliance engines prove {quote(proof.build)}",),
        )


def on_probation(facts: DoctorFacts) -> Iterator[Finding]:
    for one in facts.state.probations:
        if not one.holds(facts.now):
            continue
        build = one.seat.partition(":")[0]
        yield Finding(
            id="probation",
            severity="warning",
            title=f"The engine {one.seat} failed with the model '{one.model}' and is set aside for it",
            model=one.model,
            evidence=(
                one_line(one.why),
                f"failures in a row: {one.failures}; tried again in {span(one.until - facts.now)}",
            ),
            advice="Another engine serves the model meanwhile.",
            commands=(f"llama-appliance engines forget {quote(build)}",),
        )


def helpless_contexts(facts: DoctorFacts) -> Iterator[Finding]:
    here = {engine.digest for engine in facts.engines}
    for trial in facts.state.contexts:
        if not trial.why or trial.digest not in here:
            continue
        yield Finding(
            id="context-not-kept",
            severity="note",
            title=f"What {trial.architecture} models have read is not kept: the engine {trial.build} reads it again",
            evidence=(one_line(trial.why), f"seen {span(facts.now - trial.at)} ago"),
            advice="Each swap of such a model costs the reading of its prompt. Another build is tried anew.",
            commands=(f"llama-appliance engines forget {quote(trial.build)}",),
        )


def went_back(facts: DoctorFacts) -> Iterator[Finding]:
    """Report updates that were taken back (of engines still here, of the program), and one that was refused."""
    here = {engine.id for engine in facts.engines}
    for build, why in facts.state.withdrawn.items():
        if build in here:
            yield Finding(
                id="update-taken-back",
                severity="note",
                title=f"The engine {build} was taken back after an update, and is used last",
                evidence=(one_line(why) or "it gave no reason",),
                advice="A later build may be better. The second command trusts this one again.",
                commands=("llama-appliance engines update", f"llama-appliance engines use {quote(build)}"),
            )
    for version, why in facts.versions_back.items():
        yield Finding(
            id="update-taken-back",
            severity="note",
            title=f"The version {version.partition('/')[2] or version} of this program was taken back",
            evidence=(one_line(why) or "it gave no reason",),
            advice="A later version may be better; this one is not taken again by itself.",
            commands=("llama-appliance upgrade check",),
        )
    if refused := facts.state.refused:
        yield Finding(
            id="update-refused",
            severity="note",
            title=f"The update to {refused.build} was not taken; {refused.old} stayed in use",
            evidence=(one_line(refused.why), f"tried {span(facts.now - refused.at)} ago"),
            advice="A later build may be better. The first command tries again; the second forgets all results.",
            commands=("llama-appliance engines update", "llama-appliance engines forget"),
        )


def untried(facts: DoctorFacts) -> Iterator[Finding]:
    waiting = [one for one in facts.ranked if one.standing == "untried"]
    if waiting:
        yield Finding(
            id="untried",
            severity="note",
            title="Not every engine has been tried here, so the choice is provisional",
            evidence=some(_standing(one) for one in waiting),
            advice="The server tries them on its own while no request is under way.",
            commands=("llama-appliance engines prove",),
        )


def bad_choice(facts: DoctorFacts) -> Iterator[Finding]:
    """Check the user's choice and its effect."""
    word = facts.state.use
    if not word or word == "auto" or not facts.ranked:
        return
    wanted = [one for one in facts.ranked if one.wanted]
    usable = [one for one in wanted if one.usable]
    kind = "pinned" if facts.state.pinned else "chosen"
    if not usable:
        yield Finding(
            id="bad-pin",
            severity="error" if facts.state.pinned else "warning",
            title=f"The engine '{word}' is {kind}, and cannot be used",
            evidence=some(_standing(one) for one in wanted) or (f"no installed engine is called '{word}'",),
            advice="Nothing else is used while it is pinned." if facts.state.pinned else "Another engine is used.",
            commands=(AUTO, LS),
        )
    elif usable[0].standing == "probation" or usable[0].seat.software:
        yield Finding(
            id="bad-pin",
            severity="warning",
            title=f"The engine '{word}' is {kind}, though others work better here",
            evidence=(_standing(usable[0]),),
            advice="Without your choice the best proven engine is used.",
            commands=(AUTO,),
        )


def named_engine(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.named_engine and facts.named_fault:
        yield Finding(
            id="named-engine",
            severity="error",
            title="The named engine is not here, so no server starts",
            evidence=(f"LLAMA_APPLIANCE_ENGINE={one_line(facts.named_engine)}", one_line(facts.named_fault)),
            advice="Correct the variable, or remove it: then the best proven engine is used.",
            commands=("unset LLAMA_APPLIANCE_ENGINE", "llama-appliance engines ls"),
        )
    elif facts.named_engine:
        yield Finding(
            id="named-engine",
            severity="note",
            title="An engine is named, so the program does not choose one",
            evidence=(f"LLAMA_APPLIANCE_ENGINE={one_line(facts.named_engine)}",),
            advice="Without the variable the best proven engine is used, and another one if it fails.",
            commands=("unset LLAMA_APPLIANCE_ENGINE",),
        )


def card_is_slower(facts: DoctorFacts) -> Iterator[Finding]:
    """Explain with figures why the processor was chosen over a card that works."""
    first = best(facts.ranked)
    if first is None or not first.seat.on_cpu or first.wanted:
        return
    cards = [one for one in facts.ranked if one.standing == "proven" and not one.seat.on_cpu and not one.seat.software]
    if cards and first.standing == "proven":
        yield Finding(
            id="card-is-slower",
            severity="note",
            title="The processor is used because measurements show that it is faster than the graphics card",
            evidence=(_standing(first), *some(_standing(one) for one in cards)),
            advice="Large models may be faster on the card; you can choose it.",
            commands=(f"llama-appliance engines use {quote(cards[0].seat.build)}",),
        )


def other_engine(facts: DoctorFacts) -> Iterator[Finding]:
    """Report that the server's choice at its start is not today's."""
    first = best(facts.ranked)
    server = facts.server
    if first is None or server is None or server.answer != "answers":
        return
    here = {one.seat.id for one in facts.ranked}  # it may look for engines elsewhere
    for model in server.running:
        chosen = facts.state.models.get(model.id)
        if model.seat in here and model.seat != first.seat.id and not chosen:
            yield Finding(
                id="other-engine",
                severity="note",
                title=f"The model '{model.id}' runs on another engine than it would get now",
                model=model.id,
                evidence=(f"it runs on {model.seat}", f"it would get: {_standing(first)}"),
                advice="It gets the new engine when it is next loaded.",
                commands=(f"llama-appliance unload {quote(model.id)}", f"llama-appliance load {quote(model.id)}"),
            )


def clock(facts: DoctorFacts) -> Iterator[Finding]:
    ahead = [proof.at for proof in facts.state.proofs] + [one.since for one in facts.state.probations]
    latest = max(ahead, default=0.0)
    if latest > facts.now + SET_BACK:
        yield Finding(
            id="clock-set-back",
            severity="warning",
            title="The clock was set back, so results about engines seem to lie in the future",
            evidence=(f"the newest result is {span(latest - facts.now)} ahead of the clock",),
            advice="Set the clock, or forget the results: engines are then tried again.",
            commands=("llama-appliance engines forget",),
        )


def _standing(one: Ranked) -> str:
    return one_line(f"{one.seat.id}: {one.standing}, {one.why}" if one.why else f"{one.seat.id}: {one.standing}")


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
