"""Findings about engine builds and graphics cards.

Builds: damaged, failed, waiting, pinned, and whether the best one serves. Cards: those that are not used, and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from appliance.core.engines.choice import Ranked, best
from appliance.core.examination import DoctorFacts
from appliance.core.findings import Finding, error, found, note, some, warning
from appliance.core.quantities import span

LS = "llama-appliance engines ls"
AUTO = "llama-appliance engines use auto"
SET_BACK = 300.0  # seconds by which clocks of one machine may differ before it is worth a finding


def no_engine(facts: DoctorFacts) -> Iterator[Finding]:
    if not facts.engines:
        yield error(
            "no-engine",
            "There is no engine, so no model can be started",
            "no build, no llama-server on PATH, and no embedded engine was found",
            "Install a build; 'cpu' runs everywhere.",
            "llama-appliance engines install cpu",
        )
    elif facts.ranked and best(facts.ranked) is None:
        yield error(
            "no-usable-engine",
            "None of the engines here can be used",
            some(_standing(one) for one in facts.ranked),
            "Forget the results and try them again, or install another build.",
            "llama-appliance engines forget",
            "llama-appliance engines install cpu",
        )


def unusable(facts: DoctorFacts) -> Iterator[Finding]:
    for engine in facts.engines:
        if engine.damage:
            yield warning(
                "damaged-build",
                f"The engine {engine.id} is damaged and is not used",
                (engine.damage, f"found in: {engine.source}"),
                "An antivirus program is the usual cause of missing or changed files: restore them from its "
                "quarantine and exclude the folder, then install the build again.",
                f"llama-appliance engines install {quote(engine.backend)}",
            )
    for seat in {one.seat.build: one.seat for one in facts.ranked if one.seat.fault}.values():
        yield warning(
            "engine-cannot-list",
            f"The engine {seat.build} cannot list its devices and is not used",
            seat.fault,
            "The driver or the build may be at fault; try it again after a change.",
            f"llama-appliance engines prove {quote(seat.build)}",
        )


def failed_proof(facts: DoctorFacts) -> Iterator[Finding]:
    here = {engine.digest for engine in facts.engines}
    system = facts.state.system
    for proof in facts.state.proofs:
        if proof.ok or not proof.holds(facts.now) or proof.key.digest not in here or proof.key.system != system:
            continue
        yield warning(
            "failed-proof",
            f"The engine {proof.build} failed its proof on {proof.device} ({proof.fault}), and is not used there",
            (proof.why.strip() or f"fault: {proof.fault}", f"tried {span(facts.now - proof.at)} ago"),
            "The program tries it again after a day, and when the driver or the build changes.",
            f"llama-appliance engines prove {quote(proof.build)}",
        )


def on_probation(facts: DoctorFacts) -> Iterator[Finding]:
    for one in facts.state.probations:
        if one.holds(facts.now):
            yield warning(
                "probation",
                f"The engine {one.seat} failed with the model '{one.model}' and is set aside for it",
                (one.why, f"failures in a row: {one.failures}; tried again in {span(one.until - facts.now)}"),
                "Another engine serves the model meanwhile.",
                f"llama-appliance engines forget {quote(one.seat.partition(':')[0])}",
                model=one.model,
            )


def helpless_contexts(facts: DoctorFacts) -> Iterator[Finding]:
    here = {engine.digest for engine in facts.engines}
    for trial in facts.state.contexts:
        if not trial.why or trial.digest not in here:
            continue
        yield note(
            "context-not-kept",
            f"What {trial.architecture} models have read is not kept: the engine {trial.build} reads it again",
            (trial.why, f"seen {span(facts.now - trial.at)} ago"),
            "Each swap of such a model costs the reading of its prompt. Another build is tried anew.",
            f"llama-appliance engines forget {quote(trial.build)}",
        )


def went_back(facts: DoctorFacts) -> Iterator[Finding]:
    """Report updates that were taken back (of engines still here, of the program), and one that was refused."""
    here = {engine.id for engine in facts.engines}
    for build, why in facts.state.withdrawn.items():
        if build in here:
            yield note(
                "update-taken-back",
                f"The engine {build} was taken back after an update, and is used last",
                why,
                "A later build may be better. The second command trusts this one again.",
                "llama-appliance engines update",
                f"llama-appliance engines use {quote(build)}",
            )
    for version, why in facts.versions_back.items():
        yield note(
            "update-taken-back",
            f"The version {version.partition('/')[2] or version} of this program was taken back",
            why,
            "A later version may be better; this one is not taken again by itself.",
            "llama-appliance upgrade check",
        )
    if refused := facts.state.refused:
        yield note(
            "update-refused",
            f"The update to {refused.build} was not taken; {refused.old} stayed in use",
            (refused.why, f"tried {span(facts.now - refused.at)} ago"),
            "A later build may be better. The first command tries again; the second forgets all results.",
            "llama-appliance engines update",
            "llama-appliance engines forget",
        )


def untried(facts: DoctorFacts) -> Iterator[Finding]:
    waiting = [one for one in facts.ranked if one.standing == "untried"]
    if waiting:
        yield note(
            "untried",
            "Not every engine has been tried here, so the choice is provisional",
            some(_standing(one) for one in waiting),
            "The server tries them on its own while no request is under way.",
            "llama-appliance engines prove",
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
        yield found(
            "error" if facts.state.pinned else "warning",
            "bad-pin",
            f"The engine '{word}' is {kind}, and cannot be used",
            some(_standing(one) for one in wanted) or (f"no installed engine is called '{word}'",),
            "Nothing else is used while it is pinned." if facts.state.pinned else "Another engine is used.",
            AUTO,
            LS,
        )
    elif usable[0].standing == "probation" or usable[0].seat.software:
        yield warning(
            "bad-pin",
            f"The engine '{word}' is {kind}, though others work better here",
            _standing(usable[0]),
            "Without your choice the best proven engine is used.",
            AUTO,
        )


def named_engine(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.named_engine and facts.named_fault:
        yield error(
            "named-engine",
            "The named engine is not here, so no server starts",
            (f"LLAMA_APPLIANCE_ENGINE={facts.named_engine}", facts.named_fault),
            "Correct the variable, or remove it: then the best proven engine is used.",
            "unset LLAMA_APPLIANCE_ENGINE",
            "llama-appliance engines ls",
        )
    elif facts.named_engine:
        yield note(
            "named-engine",
            "An engine is named, so the program does not choose one",
            f"LLAMA_APPLIANCE_ENGINE={facts.named_engine}",
            "Without the variable the best proven engine is used, and another one if it fails.",
            "unset LLAMA_APPLIANCE_ENGINE",
        )


def card_is_slower(facts: DoctorFacts) -> Iterator[Finding]:
    """Explain with figures why the processor was chosen over a card that works."""
    first = best(facts.ranked)
    if first is None or not first.seat.on_cpu or first.wanted:
        return
    cards = [one for one in facts.ranked if one.standing == "proven" and not one.seat.on_cpu and not one.seat.software]
    if cards and first.standing == "proven":
        yield note(
            "card-is-slower",
            "The processor is used because measurements show that it is faster than the graphics card",
            (_standing(first), *some(_standing(one) for one in cards)),
            "Large models may be faster on the card; you can choose it.",
            f"llama-appliance engines use {quote(cards[0].seat.build)}",
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
            yield note(
                "other-engine",
                f"The model '{model.id}' runs on another engine than it would get now",
                (f"it runs on {model.seat}", f"it would get: {_standing(first)}"),
                "It gets the new engine when it is next loaded.",
                f"llama-appliance unload {quote(model.id)}",
                f"llama-appliance load {quote(model.id)}",
                model=model.id,
            )


def clock(facts: DoctorFacts) -> Iterator[Finding]:
    ahead = [proof.at for proof in facts.state.proofs] + [one.since for one in facts.state.probations]
    latest = max(ahead, default=0.0)
    if latest > facts.now + SET_BACK:
        yield warning(
            "clock-set-back",
            "The clock was set back, so results about engines seem to lie in the future",
            f"the newest result is {span(latest - facts.now)} ahead of the clock",
            "Set the clock, or forget the results: engines are then tried again.",
            "llama-appliance engines forget",
        )


def _standing(one: Ranked) -> str:
    return f"{one.seat.id}: {one.standing}, {one.why}" if one.why else f"{one.seat.id}: {one.standing}"
