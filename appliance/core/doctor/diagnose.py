"""From facts to a page: the head of it (the machine, the engine with its reason, the models, the server), and all
findings.

Every topic is run, and the gravest findings come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from appliance.core.doctor import builds, cards, room, serving
from appliance.core.doctor.facts import SEVERITIES, DoctorFacts, Finding, one_line, tidied
from appliance.core.doctor.room import size
from appliance.core.engines.choice import best

SHOWN_MODELS = 6


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
    builds.no_engine,
    serving.configuration,
    serving.server_state,
    serving.failed_models,
    builds.damaged,
    builds.silent_build,
    builds.failed_proof,
    builds.on_probation,
    builds.bad_choice,
    cards.sick_driver,
    cards.card_without_driver,
    cards.no_permission,
    cards.driver_too_old,
    cards.compute_too_low,
    cards.no_vulkan,
    cards.hidden_cards,
    cards.surroundings,
    cards.no_build_for_the_card,
    serving.model_on_processor,
    serving.partly_on_card,
    room.full_disk,
    room.too_large,
    room.swapping,
    room.few_files,
    room.examination,
    serving.no_models,
    serving.broken_models,
    serving.other_version,
    builds.clock,
    builds.named_engine,
    builds.other_engine,
    builds.untried,
    builds.card_is_slower,
    cards.software_renderer,
    cards.integrated_only,
    room.old_processor,
    room.few_cores,
    room.memory_limit,
)
"""The order of topics: causes before their effects."""


def diagnose(facts: DoctorFacts) -> list[Finding]:
    """Return every problem and everything worth knowing, the gravest first. Never raises, whatever the facts are."""
    found = [tidied(finding) for topic in TOPICS for finding in topic(facts)]
    unique = list(dict.fromkeys(found))
    return sorted(unique, key=lambda finding: SEVERITIES.index(finding.severity))
