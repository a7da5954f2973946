"""From facts to a page: its head (machine, engine with its reason, models, server) and all findings, the gravest first.

Here are the topics of the server, its models, the configuration and the machine; those of engines are in `engines`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from shlex import quote

from appliance.core.engines.choice import Ranked, best
from appliance.core.engines.listing import CPU
from appliance.core.quantities import size
from appliance.features.doctor.core.cards import (
    card_without_driver,
    compute_too_low,
    driver_too_old,
    hidden_cards,
    hiding,
    integrated_only,
    no_build_for_the_card,
    no_permission,
    no_vulkan,
    sick_driver,
    software_renderer,
    surroundings,
)
from appliance.features.doctor.core.engines import (
    bad_choice,
    card_is_slower,
    clock,
    damaged,
    failed_proof,
    helpless_contexts,
    named_engine,
    no_engine,
    on_probation,
    other_engine,
    silent_build,
    untried,
    went_back,
)
from appliance.features.doctor.core.facts import DoctorFacts, ServedModel
from appliance.features.doctor.core.findings import SEVERITIES, Finding, one_line, some, tidied
from appliance.features.doctor.core.lately import crash_loops, failed_downloads, failing_requests, looping, no_room
from appliance.features.doctor.core.machine import (
    ends_together,
    examination,
    few_cores,
    few_files,
    full_disk,
    memory_limit,
    old_processor,
    swapping,
    too_large,
)

SERVE = "llama-appliance serve"
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
