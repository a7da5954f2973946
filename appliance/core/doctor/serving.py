"""The server, its models and the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from appliance.core.doctor.cards import hiding
from appliance.core.doctor.facts import DoctorFacts, Finding, Running, one_line, some
from appliance.core.engines.choice import best
from appliance.core.engines.listing import CPU

SERVE = "llama-appliance serve"


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


def failed_models(facts: DoctorFacts) -> Iterator[Finding]:
    for model in facts.server.running if facts.server is not None else ():
        if model.error and model.state not in ("loaded", "loading", "sleeping"):
            yield Finding(
                id="model-failed",
                severity="error",
                title=f"The model '{model.id}' failed",
                evidence=some(line for line in model.error.splitlines() if line.strip()) or ("it gave no reason",),
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
        yield Finding(
            id="model-on-processor",
            severity="note" if _reason(facts) is None else "warning",
            title=f"The model '{model.id}' runs on the processor although there is a graphics card",
            evidence=(
                f"it runs on {model.seat or one_line(' '.join(_devices(model.command)) or 'the processor alone')}",
                _reason(facts) or "the processor was faster in measurements, or was chosen by name",
            ),
            advice="Load the model again to use the engine that is best now.",
            commands=(f"llama-appliance unload {quote(model.id)}", f"llama-appliance load {quote(model.id)}"),
        )


def partly_on_card(facts: DoctorFacts) -> Iterator[Finding]:
    for model in facts.server.running if facts.server is not None else ():
        if model.layers is not None and 0 < model.layers[0] < model.layers[1]:
            yield Finding(
                id="layers-on-processor",
                severity="note",
                title=f"A part of the model '{model.id}' runs on the processor, which makes it slower",
                evidence=(f"{model.layers[0]} of {model.layers[1]} layers are on the graphics card",),
                advice="A smaller context (--ctx-size) or a file with fewer bits lets more layers fit.",
                commands=(f"llama-appliance logs {quote(model.id)}",),
            )


def _on_processor(facts: DoctorFacts, model: Running) -> bool:
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
    cards = [one for one in facts.ranked if one.seat.devices and not one.seat.on_cpu and not one.seat.software]
    first = best(facts.ranked)
    if hidden := hiding(facts):
        return "hidden from engines by " + ", ".join(f"{name}={value}" for name, value in hidden.items())
    if not cards:
        return "no installed engine lists the card"
    if first is not None and not first.seat.on_cpu:
        return f"{first.seat.id} is now the better choice"
    sick = next((one for one in cards if one.standing != "proven"), None)
    return None if sick is None else one_line(f"{sick.seat.id}: {sick.standing}, {sick.why}")


def _next(port: int) -> int:
    return port + 1 if port < 65535 else 8081
