"""From facts to a page: its head (machine, engine with its reason, models, server) and all findings, the gravest first.

Here are the topics of the server, its models, the configuration and the machine; features have their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from appliance.core.examination import Known, PortOwner
from appliance.core.findings import Finding, Told, error, in_order, note, one_line, some, warning
from appliance.core.quantities import size
from appliance.features.doctor.core import lately, machine
from appliance.features.doctor.core.facts import Facts

SERVE = "llama-appliance serve"
CHECK = "llama-appliance config check"
SHOWN_MODELS = 6


def models_here(known: Known) -> Iterator[Finding]:
    if not known.running and all(model.error for model in known.models):
        yield warning(
            "no-models",
            "There are no usable models",
            (f"models folder: {known.models_dir or 'none'}", f"models found: {len(known.models)}"),
            "Put a .gguf file into the models folder, or download a model.",
            "llama-appliance pull ORG/REPO:QUANT",
        )
    if broken := [model for model in known.models if model.error]:
        yield warning(
            "broken-models",
            f"{'A model' if len(broken) == 1 else f'{len(broken)} models'} cannot be used",
            some(f"{model.id}: {model.error}" + (f" ({model.path})" if model.path else "") for model in broken),
            "The usual cause is a truncated file: download it again, or remove it.",
            "llama-appliance ls",
        )
    if known.notes:
        yield note(
            "models-skipped",
            "Some files or settings of models are not used",
            some(known.notes),
            "Each line names the reason. What is not meant for this program does no harm.",
            "llama-appliance ls",
        )
    for model in known.running:
        if model.unheeded:
            yield note(
                "option-without-effect",
                f"Some options of the model '{model.id}' have no effect",
                some(model.unheeded),
                "Remove them where the model or the server is configured.",
                f"llama-appliance logs {quote(model.id)}",
                model=model.id,
            )


def configuration(known: Known) -> Iterator[Finding]:
    config = known.config
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


def server_state(known: Known) -> Iterator[Finding]:
    server, port = known.server, known.port
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


def other_version(known: Known) -> Iterator[Finding]:
    server = known.server
    if server is not None and server.answer == "answers" and server.version not in ("", known.version):
        yield warning(
            "other-version",
            "The running server and this command have different versions",
            f"server: {server.version}; this command: {known.version}",
            "Restart the server, so that it is the installed version.",
            SERVE,
        )


def failed_models(known: Known) -> Iterator[Finding]:
    for model in known.running:
        if (
            model.error
            and model.state not in ("loaded", "loading", "sleeping")
            and model.id not in lately.looping(known)
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


def headlines(facts: Facts) -> list[tuple[str, str]]:
    """Names and states, one line each."""
    known = facts.known
    of_features = [line for own in facts.own for line in own.headlines(known)]
    lines = [*_machine(known), *of_features, ("models", _models(known)), ("server", _server(known))]
    return [(name, one_line(state)) for name, state in lines]


def _machine(known: Known) -> list[tuple[str, str]]:
    seen = known.look
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


def _models(known: Known) -> str:
    good = [model.id for model in known.models if not model.error]
    more = f" and {len(good) - SHOWN_MODELS} more" if len(good) > SHOWN_MODELS else ""
    return f"{', '.join(good[:SHOWN_MODELS])}{more}" or "none"


def _server(known: Known) -> str:
    server = known.server
    if server is None:
        return "was not asked"
    if server.answer != "answers":
        return f"{server.url}: {server.why or server.answer}"
    running = [f"{one.id} {one.state}" for one in server.running if one.state not in ("unloaded", "downloaded")]
    return f"{server.url}, version {server.version}; {', '.join(running) or 'no model is loaded'}"


def told(facts: Facts) -> Iterator[Told]:
    """Return the findings of the kernel, then those of features (`OwnFacts.findings`)."""
    known = facts.known
    yield "start", configuration(known)
    yield "start", server_state(known)
    yield "failures", failed_models(known)
    yield "failures", lately.crash_loops(known)
    yield "failures", lately.failing_requests(known)
    yield "failures", lately.queue_full(known)
    yield "room", machine.full_disk(known)
    yield "machine", machine.swapping(known)
    yield "machine", machine.few_files(known)
    yield "machine", machine.examination(known)
    yield "machine", models_here(known)
    yield "server", other_version(known)
    yield "limits", machine.limits(known)
    for own in facts.own:
        yield from own.findings(known)


def diagnose(facts: Facts) -> list[Finding]:
    """Return every problem and everything worth knowing, the gravest first. Never raises, whatever the facts are."""
    return in_order(told(facts))
