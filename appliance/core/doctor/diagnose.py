"""From facts to findings: runs every topic, and puts the gravest findings first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from appliance.core.doctor import builds, cards, room, serving
from appliance.core.doctor.facts import DoctorFacts
from appliance.core.doctor.findings import SEVERITIES, Finding, tidied

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
