"""From facts to a page: its head (machine, engine with its reason, models, server) and all findings, the gravest first.

Here are the topics of the server, its models, the configuration and the machine; those of engines are in `engines`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from shlex import quote

from appliance.core.engines.choice import Ranked, best
from appliance.core.engines.listing import CPU
from appliance.core.quantities import size
from appliance.core.sizes import GIB
from appliance.features.doctor.core.engines import (
    bad_choice,
    card_is_slower,
    card_without_driver,
    clock,
    compute_too_low,
    damaged,
    driver_too_old,
    failed_proof,
    helpless_contexts,
    hidden_cards,
    hiding,
    integrated_only,
    named_engine,
    no_build_for_the_card,
    no_engine,
    no_permission,
    no_vulkan,
    on_probation,
    other_engine,
    sick_driver,
    silent_build,
    software_renderer,
    surroundings,
    untried,
    went_back,
)
from appliance.features.doctor.core.facts import DoctorFacts, ServedModel
from appliance.features.doctor.core.findings import SEVERITIES, Finding, one_line, some, tidied
from appliance.features.doctor.core.lately import crash_loops, failed_downloads, failing_requests, looping, no_room

SERVE = "llama-appliance serve"
FULL, TIGHT = 256 << 20, 2 * GIB
"""Free bytes below which writing will soon fail, and below which no model can be downloaded."""
SWAPPED = 512 << 20
FEW_FILES = 1024
SHOWN_MODELS = 6


def no_models(facts: DoctorFacts) -> Iterator[Finding]:
    usable = [model for model in facts.models if not model.error]
    if not usable and not (facts.server is not None and facts.server.running):
        yield Finding(
            id="no-models",
            severity="warning",
            title="There are no usable models",
            evidence=(f"models folder: {facts.models_dir or 'none'}", f"models found: {len(facts.models)}"),
            advice="Put a .gguf file into the models folder, or download a model.",
            commands=("llama-appliance pull ORG/REPO:QUANT",),
        )


def broken_models(facts: DoctorFacts) -> Iterator[Finding]:
    broken = [model for model in facts.models if model.error]
    if broken:
        yield Finding(
            id="broken-models",
            severity="warning",
            title=f"{'A model' if len(broken) == 1 else f'{len(broken)} models'} cannot be used",
            evidence=some(
                f"{model.id}: {model.error}" + (f" ({model.path})" if model.path else "") for model in broken
            ),
            advice="The usual cause is a truncated file: download it again, or remove it.",
            commands=("llama-appliance ls",),
        )


def skipped(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.notes:
        yield Finding(
            id="models-skipped",
            severity="note",
            title="Some files or settings of models are not used",
            evidence=some(facts.notes),
            advice="Each line names the reason. What is not meant for this program does no harm.",
            commands=("llama-appliance ls",),
        )


def unheeded(facts: DoctorFacts) -> Iterator[Finding]:
    for model in facts.server.running if facts.server is not None else ():
        if model.unheeded:
            yield Finding(
                id="option-without-effect",
                severity="note",
                title=f"Some options of the model '{model.id}' have no effect",
                model=model.id,
                evidence=some(model.unheeded),
                advice="Remove them where the model or the server is configured.",
                commands=(f"llama-appliance logs {quote(model.id)}",),
            )


def configuration(facts: DoctorFacts) -> Iterator[Finding]:
    config = facts.config
    if config is None:
        return
    if config.unreadable:
        yield Finding(
            id="config-unreadable",
            severity="error",
            title="The configuration cannot be read",
            evidence=(one_line(config.unreadable),),
            advice="Check the path of the configuration.",
        )
    named = f" --config {quote(config.files[0])}" if config.files else ""
    errors = [problem for problem in config.problems if problem.level == "error"]
    warnings = [problem for problem in config.problems if problem.level == "warning"]
    for problems, level in ((errors, "error"), (warnings, "warning")):
        if problems:
            yield Finding(
                id=f"config-{level}s",
                severity="error" if level == "error" else "warning",
                title="The configuration has mistakes, so the server does not start with it"
                if level == "error"
                else "Parts of the configuration have no effect, or an unexpected one",
                evidence=some(str(problem) for problem in problems),
                advice="Each line names the place and the fix.",
                commands=(f"llama-appliance config check{named}",),
            )


def server_state(facts: DoctorFacts) -> Iterator[Finding]:
    server, port = facts.server, facts.port
    if server is None or server.answer == "answers":
        return
    if server.answer == "refused":
        yield Finding(
            id="server-wants-key",
            severity="warning",
            title="A server is running, but it rejected the doctor",
            evidence=(f"{server.url}: {one_line(server.why)}",),
            advice="Give its key, so that the doctor can ask about its models.",
            commands=("llama-appliance doctor --api-key KEY",),
        )
    elif server.answer == "absent" and port is None:
        yield Finding(
            id="server-not-running",
            severity="note",
            title="No server is running",
            evidence=(f"{server.url}: {one_line(server.why)}",),
            advice="If it listens elsewhere, name its address with --url.",
            commands=(SERVE,),
        )
    else:
        who = "something" if port is None or not port.name else f"{port.name} (process {port.pid})"
        yield Finding(
            id="port-taken" if server.answer != "failed" else "server-failed",
            severity="error",
            title=f"The server's address is taken by {who}"
            if server.answer != "failed"
            else "A server is running, but it does not answer as it should",
            evidence=(f"{server.url}: {one_line(server.why) or server.answer}",)
            + ((f"process {port.pid} listens on port {port.port}",) if port is not None and port.pid else ()),
            advice="End that program, or let the server listen elsewhere.",
            commands=(f"{SERVE} --listen 127.0.0.1:{_next(port.port if port is not None else 8080)}",),
        )


def other_version(facts: DoctorFacts) -> Iterator[Finding]:
    server = facts.server
    if server is not None and server.answer == "answers" and server.version not in ("", facts.version):
        yield Finding(
            id="other-version",
            severity="warning",
            title="The running server and this command have different versions",
            evidence=(f"server: {server.version}; this command: {facts.version}",),
            advice="Restart the server, so that it is the installed version.",
            commands=(SERVE,),
        )


def lost_traces(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.server is not None and facts.server.traces:
        yield Finding(
            id="traces-not-taken",
            severity="warning",
            title="The collector does not take the traces of requests",
            evidence=(one_line(facts.server.traces),),
            advice="Start the collector, correct 'tracing' in the configuration, or take that section out.",
        )


def pool_problems(facts: DoctorFacts) -> Iterator[Finding]:
    for problem in facts.server.pool if facts.server is not None else ():
        yield Finding(
            id="pool",
            severity="warning",
            title="Something is wrong with this box's place in its pool",
            evidence=(one_line(problem.text),),
            advice=f"{problem.fix[:1].upper()}{problem.fix[1:]}.",
        )


def failed_models(facts: DoctorFacts) -> Iterator[Finding]:
    for model in facts.server.running if facts.server is not None else ():
        if model.error and model.state not in ("loaded", "loading", "sleeping") and model.id not in looping(facts):
            yield Finding(
                id="model-failed",
                severity="error",
                title=f"The model '{model.id}' failed",
                evidence=some(line for line in model.error.splitlines() if line.strip()) or ("it gave no reason",),
                model=model.id,
                advice="The log of the model has the rest.",
                commands=(f"llama-appliance logs {quote(model.id)}", f"llama-appliance load {quote(model.id)}"),
            )


def model_on_processor(facts: DoctorFacts) -> Iterator[Finding]:
    """Report a loaded model on the processor although there is a card; the reason comes from the cards' seats."""
    if facts.server is None or facts.look is None or not facts.look.gpus:
        return
    for model in facts.server.running:
        if model.state not in ("loaded", "sleeping") or not _on_processor(facts, model):
            continue
        reload = (f"llama-appliance unload {quote(model.id)}", f"llama-appliance load {quote(model.id)}")
        yield Finding(
            id="model-on-processor",
            severity="note" if _reason(facts) is None else "warning",
            title=f"The model '{model.id}' runs on the processor although there is a graphics card",
            model=model.id,
            evidence=(
                f"it runs on {model.seat or one_line(' '.join(_devices(model.command)) or 'the processor alone')}",
                _reason(facts) or "the processor was faster in measurements, or was chosen by name",
            ),
            advice=(
                "The server tries the card once no request is under way, and moves the model there if that is faster."
                if _is_card_untried(facts)
                else "Load the model again to use the engine that is best now."
            ),
            commands=("llama-appliance engines prove",) if _is_card_untried(facts) else reload,
        )


def partly_on_card(facts: DoctorFacts) -> Iterator[Finding]:
    for model in facts.server.running if facts.server is not None else ():
        if model.layers is not None and 0 < model.layers[0] < model.layers[1]:
            yield Finding(
                id="layers-on-processor",
                severity="note",
                title=f"A part of the model '{model.id}' runs on the processor, which makes it slower",
                model=model.id,
                evidence=(f"{model.layers[0]} of {model.layers[1]} layers are on the graphics card",),
                advice="A smaller context (--ctx-size) or a file with fewer bits lets more layers fit.",
                commands=(f"llama-appliance logs {quote(model.id)}",),
            )


def _on_processor(facts: DoctorFacts, model: ServedModel) -> bool:
    if model.seat:
        return model.seat.rpartition(":")[2] == CPU
    devices = _devices(model.command)
    if devices:
        return devices[1] == "none"
    if model.layers is not None:
        return model.layers[0] == 0
    program = (model.command[0] if model.command else "").replace("\\", "/")
    return any(engine.id in program for engine in facts.engines if engine.backend == "cpu" and "/" in engine.id)


def _devices(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``--device`` with its value, if it is there."""
    at = command.index("--device") if "--device" in command else len(command)
    found = command[at : at + 2]
    return found if len(found) == 2 else ()


def _reason(facts: DoctorFacts) -> str | None:
    """Return why no card is used, as far as the user can correct it."""
    cards = _on_cards(facts)
    first = best(facts.ranked)
    if hidden := hiding(facts):
        return "hidden from engines by " + ", ".join(f"{name}={value}" for name, value in hidden.items())
    if not cards:
        return "no installed engine lists the card"
    if first is not None and not first.seat.on_cpu:
        return f"{first.seat.id} is now the better choice"
    sick = next((one for one in cards if one.standing != "proven"), None)
    return None if sick is None else one_line(f"{sick.seat.id}: {sick.standing}, {sick.why}")


def _is_card_untried(facts: DoctorFacts) -> bool:
    """True if a card may be the best place for models, and nobody has tried it: loading them again changes nothing."""
    first = best(facts.ranked)
    untried = any(one.standing == "untried" for one in _on_cards(facts))
    return untried and first is not None and first.seat.on_cpu


def _on_cards(facts: DoctorFacts) -> list[Ranked]:
    return [one for one in facts.ranked if one.seat.devices and not one.seat.on_cpu and not one.seat.software]


def _next(port: int) -> int:
    return port + 1 if port < 65535 else 8081


def examination(facts: DoctorFacts) -> Iterator[Finding]:
    for part, why in facts.trouble.items():
        yield Finding(
            id="not-examined",
            severity="warning",
            title=f"The doctor could not look at {part}",
            evidence=(why or "it gave no reason",),
            advice="Its results are missing from this page.",
            commands=("llama-appliance doctor --json",),
        )


def old_processor(facts: DoctorFacts) -> Iterator[Finding]:
    seen = facts.look
    if seen is None or not seen.cpu_features or not seen.cpu_level.startswith("x86"):
        return
    if "avx2" not in seen.cpu_features:
        yield Finding(
            id="no-avx2",
            severity="note",
            title="This processor has no AVX2, so models run several times slower on it",
            evidence=(f"{seen.cpu or 'the processor'}: {seen.cpu_level}",),
            advice="In a virtual machine, pass the host's processor through (host CPU model). Else small models, with "
            "few parameters and 4-bit weights, are what it is good for.",
        )


def few_cores(facts: DoctorFacts) -> Iterator[Finding]:
    seen, of_machine = facts.look, facts.checkup.cores
    if seen is None or not 0 < seen.cores < of_machine:
        return
    yield Finding(
        id="few-cores",
        severity="note",
        title=f"Only {seen.cores} of the machine's {of_machine} processor threads may be used",
        evidence=(f"affinity and the group's quota leave {seen.cores}",),
        advice="Give the container or service more (docker run --cpus, CPUQuota= of the service) where it is slow.",
    )


def memory_limit(facts: DoctorFacts) -> Iterator[Finding]:
    seen, of_machine = facts.look, facts.checkup.memory
    if seen is None or not 0 < seen.memory_total < of_machine * 0.95:
        return
    yield Finding(
        id="memory-limit",
        severity="note",
        title=f"Only {size(seen.memory_total)} of the machine's {size(of_machine)} of memory may be used",
        evidence=(f"the group's limit is {size(seen.memory_total)}; {size(seen.memory_available)} are free",),
        advice="Raise the limit (docker run --memory, MemoryMax= of the service) if models do not fit.",
    )


def ends_together(facts: DoctorFacts) -> Iterator[Finding]:
    if not facts.checkup.ends_together:
        return
    yield Finding(
        id="ends-together",
        severity="note",
        title="A model that runs out of memory takes the whole server along here",
        evidence=("memory.oom.group is 1 for the group of this process",),
        advice="Kubernetes sets it (kubelet's singleProcessOOMKill: true ends that), and OOMPolicy=kill of a service. "
        "Raise the limit, or choose models that fit well within it.",
    )


def too_large(facts: DoctorFacts) -> Iterator[Finding]:
    """Report models that do not fit: by the plan if there is one, else by the size of their file."""
    misfits = [model for model in facts.models if model.fit == "will not fit"]
    partly = [model for model in facts.models if model.fit.startswith("partly")]
    seen = facts.look
    if seen is not None and seen.memory_total > 0:
        room = seen.memory_total + sum(gpu.total or 0 for gpu in seen.gpus if not gpu.integrated)
        misfits += [model for model in facts.models if not model.fit and not model.error and model.size > room]
    if misfits:
        yield Finding(
            id="model-too-large",
            severity="warning",
            title="Some models are too large for this machine",
            evidence=some(f"{one.id}: {one.why or size(one.size)}" for one in misfits),
            advice="Choose a smaller model, or the same one with fewer bits; a smaller context also needs less.",
            commands=("llama-appliance ls",),
        )
    if partly:
        yield Finding(
            id="model-partly-on-gpu",
            severity="note",
            title="Some models fit only partly on the graphics card",
            evidence=some(f"{one.id}: {one.why or 'partly'}" for one in partly),
            advice="The processor computes the rest. A smaller context or fewer bits lets more layers fit.",
            commands=("llama-appliance ls",),
        )


def swapping(facts: DoctorFacts) -> Iterator[Finding]:
    checkup, seen = facts.checkup, facts.look
    if checkup.swap_used < SWAPPED or seen is None:
        return
    tight = seen.memory_available < seen.memory_total // 10
    yield Finding(
        id="swap",
        severity="warning" if tight else "note",
        title="The machine has moved memory to the disk" + (", and has hardly any left" if tight else ""),
        evidence=(
            f"swap: {size(checkup.swap_used)} of {size(checkup.swap_total)} in use",
            f"memory: {size(seen.memory_available)} of {size(seen.memory_total)} free",
        ),
        advice="A model in swap answers at the disk's speed: unload models, or close other programs.",
        commands=("llama-appliance ps",),
    )


def full_disk(facts: DoctorFacts) -> Iterator[Finding]:
    for disk in facts.checkup.disks:
        if disk.free >= TIGHT:
            continue
        full = disk.free < FULL
        yield Finding(
            id="disk-full",
            severity="error" if full else "warning",
            title=f"The disk of the {disk.what} is {'full' if full else 'almost full'}",
            evidence=(f"{disk.path}: {size(disk.free)} of {size(disk.total)} free",),
            advice="Remove models that nobody uses, or name a folder on another disk with --models-dir.",
            commands=("llama-appliance ls", "llama-appliance rm MODEL"),
        )


def few_files(facts: DoctorFacts) -> Iterator[Finding]:
    allowed = facts.checkup.open_files
    if allowed is not None and allowed < FEW_FILES:
        yield Finding(
            id="few-open-files",
            severity="warning",
            title="The server may have few files and connections open",
            evidence=(f"at most {allowed} for this user",),
            advice="Raise the limit with LimitNOFILE=65536 for the service, or in the shell that starts the server.",
            commands=("ulimit -Hn",),
        )


def headlines(facts: DoctorFacts) -> list[tuple[str, str]]:
    """Names and states, one line each."""
    return [
        *_machine(facts),
        ("engine", _engine(facts)),
        ("models", _models(facts)),
        ("server", _server(facts)),
    ]


def _machine(facts: DoctorFacts) -> list[tuple[str, str]]:
    seen = facts.look
    if seen is None:
        return [("machine", "could not be looked at")]
    level = f" ({seen.cpu_level})" if seen.cpu_level else ""
    threads = f"{seen.cores} thread{'s' * (seen.cores != 1)}"
    gpus = [f"{gpu.name}{f', {size(gpu.total)}' if gpu.total else ''}" for gpu in seen.gpus]
    return [
        ("machine", one_line(f"{seen.system}, {seen.environment}; {seen.cpu or seen.platform}{level}, {threads}")),
        ("memory", f"{size(seen.memory_available)} of {size(seen.memory_total)} free"),
        ("graphics", one_line("; ".join(gpus)) or "none"),
    ]


def _engine(facts: DoctorFacts) -> str:
    if facts.named_engine:
        return one_line(f"{facts.named_engine}: named by the environment")
    first = best(facts.ranked)
    if first is None:
        return "no usable one"
    others = len([one for one in facts.ranked if one.usable]) - 1
    beside = f"; {others} other{'s' * (others != 1)} could take over" if others else ""
    return one_line(f"{first.seat.id}: {'chosen by you; ' if first.wanted else ''}{first.why}{beside}")


def _models(facts: DoctorFacts) -> str:
    good = [model.id for model in facts.models if not model.error]
    if not good:
        return "none"
    more = f" and {len(good) - SHOWN_MODELS} more" if len(good) > SHOWN_MODELS else ""
    return one_line(f"{', '.join(good[:SHOWN_MODELS])}{more}")


def _server(facts: DoctorFacts) -> str:
    server = facts.server
    if server is None:
        return "was not asked"
    if server.answer != "answers":
        return one_line(f"{server.url}: {server.why or server.answer}")
    running = [f"{one.id} {one.state}" for one in server.running if one.state not in ("unloaded", "downloaded")]
    return one_line(f"{server.url}, version {server.version}; {', '.join(running) or 'no model is loaded'}")


TOPICS: tuple[Callable[[DoctorFacts], Iterator[Finding]], ...] = (
    no_engine,
    configuration,
    server_state,
    failed_models,
    crash_loops,
    failing_requests,
    no_room,
    failed_downloads,
    damaged,
    silent_build,
    failed_proof,
    on_probation,
    helpless_contexts,
    bad_choice,
    sick_driver,
    card_without_driver,
    no_permission,
    driver_too_old,
    compute_too_low,
    no_vulkan,
    hidden_cards,
    surroundings,
    no_build_for_the_card,
    model_on_processor,
    partly_on_card,
    full_disk,
    too_large,
    swapping,
    few_files,
    examination,
    no_models,
    broken_models,
    skipped,
    unheeded,
    went_back,
    other_version,
    lost_traces,
    pool_problems,
    clock,
    named_engine,
    other_engine,
    untried,
    card_is_slower,
    software_renderer,
    integrated_only,
    old_processor,
    few_cores,
    memory_limit,
    ends_together,
)
"""The order of topics: causes before their effects."""


def diagnose(facts: DoctorFacts) -> list[Finding]:
    """Return every problem and everything worth knowing, the gravest first. Never raises, whatever the facts are."""
    found = [tidied(finding) for topic in TOPICS for finding in topic(facts)]
    unique = list(dict.fromkeys(found))
    return sorted(unique, key=lambda finding: SEVERITIES.index(finding.severity))
