"""From facts to a page: its head (machine, engine with its reason, models, server) and all findings, the gravest first.

Here are the topics of the server, its models, the configuration and the machine; those of engines are in `engines`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from shlex import quote

from appliance.core.engines import card_findings as cards
from appliance.core.engines import findings as engines
from appliance.core.engines.choice import Ranked, best
from appliance.core.engines.listing import CPU
from appliance.core.examination import DoctorFacts, PortOwner, ServedModel
from appliance.core.findings import SEVERITIES, Finding, error, found, note, one_line, some, warning
from appliance.core.quantities import size
from appliance.features.doctor.core import lately, machine

SERVE = "llama-appliance serve"
CHECK = "llama-appliance config check"
SHOWN_MODELS = 6


def models_here(facts: DoctorFacts) -> Iterator[Finding]:
    if not facts.running and all(model.error for model in facts.models):
        yield warning(
            "no-models",
            "There are no usable models",
            (f"models folder: {facts.models_dir or 'none'}", f"models found: {len(facts.models)}"),
            "Put a .gguf file into the models folder, or download a model.",
            "llama-appliance pull ORG/REPO:QUANT",
        )
    if broken := [model for model in facts.models if model.error]:
        yield warning(
            "broken-models",
            f"{'A model' if len(broken) == 1 else f'{len(broken)} models'} cannot be used",
            some(f"{model.id}: {model.error}" + (f" ({model.path})" if model.path else "") for model in broken),
            "The usual cause is a truncated file: download it again, or remove it.",
            "llama-appliance ls",
        )
    if facts.notes:
        yield note(
            "models-skipped",
            "Some files or settings of models are not used",
            some(facts.notes),
            "Each line names the reason. What is not meant for this program does no harm.",
            "llama-appliance ls",
        )
    for model in facts.running:
        if model.unheeded:
            yield note(
                "option-without-effect",
                f"Some options of the model '{model.id}' have no effect",
                some(model.unheeded),
                "Remove them where the model or the server is configured.",
                f"llama-appliance logs {quote(model.id)}",
                model=model.id,
            )


def configuration(facts: DoctorFacts) -> Iterator[Finding]:
    config = facts.config
    if config is None:
        return
    if config.unreadable:
        yield error(
            "config-unreadable",
            "The configuration cannot be read",
            config.unreadable,
            "Check the path of the configuration.",
        )
    named = f" --config {quote(config.files[0])}" if config.files else ""
    for make, level, title in (
        (error, "error", "The configuration has mistakes, so the server does not start with it"),
        (warning, "warning", "Parts of the configuration have no effect, or an unexpected one"),
    ):
        if problems := [str(problem) for problem in config.problems if problem.level == level]:
            advice = "Each line names the place and the fix."
            yield make(f"config-{level}s", title, some(problems), advice, f"{CHECK}{named}")


def server_state(facts: DoctorFacts) -> Iterator[Finding]:
    server, port = facts.server, facts.port
    if server is None or server.answer == "answers":
        return
    told = f"{server.url}: {one_line(server.why)}"
    if server.answer == "refused":
        yield warning(
            "server-wants-key",
            "A server is running, but it rejected the doctor",
            told,
            "Give its key, so that the doctor can ask about its models.",
            "llama-appliance doctor --api-key KEY",
        )
    elif server.answer == "absent" and port is None:
        yield note(
            "server-not-running",
            "No server is running",
            told,
            "If it listens elsewhere, name its address with --url.",
            SERVE,
        )
    else:
        at = port or PortOwner(port=8080)
        who = f"{at.name} (process {at.pid})" if at.name else "something"
        yield error(
            "port-taken" if server.answer != "failed" else "server-failed",
            f"The server's address is taken by {who}"
            if server.answer != "failed"
            else "A server is running, but it does not answer as it should",
            (
                f"{server.url}: {one_line(server.why) or server.answer}",
                f"process {at.pid} listens on port {at.port}" if at.pid else "",
            ),
            "End that program, or let the server listen elsewhere.",
            f"{SERVE} --listen 127.0.0.1:{at.port + 1 if at.port < 65535 else 8081}",
        )


def words_of_server(facts: DoctorFacts) -> Iterator[Finding]:
    """Report what a server says of itself: its version, its collector, its pool."""
    if (server := facts.server) is None:
        return
    if server.answer == "answers" and server.version not in ("", facts.version):
        yield warning(
            "other-version",
            "The running server and this command have different versions",
            f"server: {server.version}; this command: {facts.version}",
            "Restart the server, so that it is the installed version.",
            SERVE,
        )
    if server.traces:
        yield warning(
            "traces-not-taken",
            "The collector does not take the traces of requests",
            server.traces,
            "Start the collector, correct 'tracing' in the configuration, or take that section out.",
        )
    for problem in server.pool:
        fix = f"{problem.fix[:1].upper()}{problem.fix[1:]}."
        yield warning("pool", "Something is wrong with this box's place in its pool", problem.text, fix)


def failed_models(facts: DoctorFacts) -> Iterator[Finding]:
    for model in facts.running:
        if (
            model.error
            and model.state not in ("loaded", "loading", "sleeping")
            and model.id not in lately.looping(facts)
        ):
            yield error(
                "model-failed",
                f"The model '{model.id}' failed",
                some(line for line in model.error.splitlines() if line.strip()),
                "The log of the model has the rest.",
                f"llama-appliance logs {quote(model.id)}",
                f"llama-appliance load {quote(model.id)}",
                model=model.id,
            )


def model_on_processor(facts: DoctorFacts) -> Iterator[Finding]:
    """Report a loaded model on the processor although there is a card; the reason comes from the cards' seats."""
    why, untried = _reason(facts), _is_card_untried(facts)
    for model in facts.running if facts.gpus else ():
        if model.state not in ("loaded", "sleeping") or not _on_processor(facts, model):
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


def partly_on_card(facts: DoctorFacts) -> Iterator[Finding]:
    for model in facts.running:
        if model.layers is not None and 0 < model.layers[0] < model.layers[1]:
            yield note(
                "layers-on-processor",
                f"A part of the model '{model.id}' runs on the processor, which makes it slower",
                f"{model.layers[0]} of {model.layers[1]} layers are on the graphics card",
                "A smaller context (--ctx-size) or a file with fewer bits lets more layers fit.",
                f"llama-appliance logs {quote(model.id)}",
                model=model.id,
            )


def _on_processor(facts: DoctorFacts, model: ServedModel) -> bool:
    if model.seat:
        return model.seat.rpartition(":")[2] == CPU
    if devices := _devices(model.command):
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
    first = best(facts.ranked)
    if hidden := cards.hiding(facts):
        return "hidden from engines by " + ", ".join(f"{name}={value}" for name, value in hidden.items())
    if not _on_cards(facts):
        return "no installed engine lists the card"
    if first is not None and not first.seat.on_cpu:
        return f"{first.seat.id} is now the better choice"
    sick = next((one for one in _on_cards(facts) if one.standing != "proven"), None)
    return None if sick is None else f"{sick.seat.id}: {sick.standing}, {sick.why}"


def _is_card_untried(facts: DoctorFacts) -> bool:
    """True if a card may be the best place for models, and nobody has tried it: loading them again changes nothing."""
    first = best(facts.ranked)
    untried = any(one.standing == "untried" for one in _on_cards(facts))
    return untried and first is not None and first.seat.on_cpu


def _on_cards(facts: DoctorFacts) -> list[Ranked]:
    return [one for one in facts.ranked if one.seat.devices and not one.seat.on_cpu and not one.seat.software]


def headlines(facts: DoctorFacts) -> list[tuple[str, str]]:
    """Names and states, one line each."""
    lines = [*_machine(facts), ("engine", _engine(facts)), ("models", _models(facts)), ("server", _server(facts))]
    return [(name, one_line(state)) for name, state in lines]


def _machine(facts: DoctorFacts) -> list[tuple[str, str]]:
    seen = facts.look
    if seen is None:
        return [("machine", "could not be looked at")]
    level = f" ({seen.cpu_level})" if seen.cpu_level else ""
    threads = f"{seen.cores} thread{'s' * (seen.cores != 1)}"
    gpus = [f"{gpu.name}{f', {size(gpu.total)}' if gpu.total else ''}" for gpu in seen.gpus]
    return [
        ("machine", f"{seen.system}, {seen.environment}; {seen.cpu or seen.platform}{level}, {threads}"),
        ("memory", f"{size(seen.memory_available)} of {size(seen.memory_total)} free"),
        ("graphics", "; ".join(gpus) or "none"),
    ]


def _engine(facts: DoctorFacts) -> str:
    if facts.named_engine:
        return f"{facts.named_engine}: named by the environment"
    first = best(facts.ranked)
    if first is None:
        return "no usable one"
    others = len([one for one in facts.ranked if one.usable]) - 1
    beside = f"; {others} other{'s' * (others != 1)} could take over" if others else ""
    return f"{first.seat.id}: {'chosen by you; ' if first.wanted else ''}{first.why}{beside}"


def _models(facts: DoctorFacts) -> str:
    good = [model.id for model in facts.models if not model.error]
    more = f" and {len(good) - SHOWN_MODELS} more" if len(good) > SHOWN_MODELS else ""
    return f"{', '.join(good[:SHOWN_MODELS])}{more}" or "none"


def _server(facts: DoctorFacts) -> str:
    server = facts.server
    if server is None:
        return "was not asked"
    if server.answer != "answers":
        return f"{server.url}: {server.why or server.answer}"
    running = [f"{one.id} {one.state}" for one in server.running if one.state not in ("unloaded", "downloaded")]
    return f"{server.url}, version {server.version}; {', '.join(running) or 'no model is loaded'}"


TOPICS: tuple[Callable[[DoctorFacts], Iterator[Finding]], ...] = (
    engines.no_engine, configuration, server_state, failed_models, lately.crash_loops, lately.failing_requests,
    lately.refused_and_lost, engines.unusable, engines.failed_proof, engines.on_probation, engines.helpless_contexts,
    engines.bad_choice, cards.sick_driver, cards.card_without_driver, cards.no_permission, cards.too_old,
    cards.no_vulkan, cards.hidden_cards, cards.surroundings, cards.no_build_for_the_card, model_on_processor,
    partly_on_card, machine.full_disk, machine.too_large, machine.swapping, machine.few_files, machine.examination,
    models_here, engines.went_back, words_of_server, engines.clock, engines.named_engine, engines.other_engine,
    engines.untried, engines.card_is_slower, cards.weak_graphics, machine.limits,
)  # fmt: skip
"""The order of topics: causes before their effects."""


def diagnose(facts: DoctorFacts) -> list[Finding]:
    """Return every problem and everything worth knowing, the gravest first. Never raises, whatever the facts are."""
    unique = dict.fromkeys(finding for topic in TOPICS for finding in topic(facts))
    return sorted(unique, key=lambda finding: SEVERITIES.index(finding.severity))
