"""Findings about engine builds: damaged, failed, waiting, pinned, and whether the best one serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote

from appliance.core.examination import Known, OwnFacts
from appliance.core.findings import Finding, Told, error, found, note, some, warning
from appliance.core.quantities import span
from appliance.core.reported import build_id, kept, seat_id
from appliance.features.engines.core import card_findings as cards
from appliance.features.engines.core.builds import EngineOffer, Installed
from appliance.features.engines.core.choice import Ranked, best
from appliance.features.engines.core.state import EngineState

LS = "llama-appliance engines ls"
AUTO = "llama-appliance engines use auto"
SET_BACK = 300.0  # seconds by which clocks of one machine may differ before it is worth a finding
# The fields of `Proof` and `Probation` that a support bundle may have.
PROOF, PROBATION = "fault prompt_speed generation_speed seconds at", "failures since until"


class EnginesExamined(OwnFacts, frozen=True, kw_only=True):
    """The facts about engines, with what is made of them. Sizes in bytes, times are Unix times."""

    ranked: tuple[Ranked, ...] = ()  # seats for an unknown model, best first; for the model that was asked about
    state: EngineState = EngineState()
    engines: tuple[Installed, ...] = ()
    offers: tuple[EngineOffer, ...] = ()  # builds for cards that none of the engines can use
    named_engine: str = ""  # the engine that the environment (or an option) names instead of a choice
    named_fault: str = ""  # the reason why no server starts with that

    def findings(self, known: Known) -> Sequence[Told]:
        return (
            ("missing", no_engine(self)),
            ("engines", unusable(self)),
            ("engines", failed_proof(known, self)),
            ("engines", on_probation(known, self)),
            ("engines", helpless_contexts(known, self)),
            ("engines", bad_choice(self)),
            ("engines", cards.sick_driver(known)),
            ("engines", cards.card_without_driver(known)),
            ("engines", cards.no_permission(known)),
            ("engines", cards.too_old(known, self.engines)),
            ("engines", cards.no_vulkan(known, self.engines, self.state.listed)),
            ("engines", cards.hidden_cards(known)),
            ("engines", cards.surroundings(known)),
            ("engines", cards.no_build_for_the_card(known, self.engines, self.offers)),
            ("engines", cards.model_on_processor(known, self.engines, self.ranked)),
            ("updates", went_back(self)),
            ("choice", refused_update(known, self)),
            ("choice", clock(known, self)),
            ("choice", named_engine(self)),
            ("choice", other_engine(known, self)),
            ("choice", untried(self)),
            ("choice", card_is_slower(self)),
            ("choice", cards.weak_graphics(known, self.ranked)),
        )

    def headlines(self, known: Known) -> Sequence[tuple[str, str]]:
        told, first = "no usable one", best(self.ranked)
        if self.named_engine:
            told = f"{self.named_engine}: named by the environment"
        elif first is not None:
            others = len([one for one in self.ranked if one.usable]) - 1
            beside = f"; {others} other{'s' * (others != 1)} could take over" if others else ""
            told = f"{first.seat.id}: {'chosen by you; ' if first.wanted else ''}{first.why}{beside}"
        return (("engine", told),)

    def reported(self) -> Mapping[str, object]:
        """The memory of engines; of choices only that there are some."""
        state, refused = self.state, self.state.refused
        return {
            "engines": [
                {"id": build_id(one.id), "damaged": bool(one.damage)}
                | kept(one, "backend digest")
                | kept(one.needs, "driver compute cpu")
                for one in self.engines
            ],
            "seats": [
                {"id": seat_id(one.seat.id)} | kept(one, "standing wanted seconds") | kept(one.seat, "spare software")
                for one in self.ranked
            ],
            "trials": {
                "chosen": bool(state.use),
                "pinned": state.pinned,
                "channel": state.channel,
                "proofs": [{"build": build_id(one.build)} | kept(one, PROOF) for one in state.proofs],
                "probations": [{"seat": seat_id(one.seat)} | kept(one, PROBATION) for one in state.probations],
                "withdrawn": [build_id(build) for build in state.withdrawn],
                "refused": refused
                and {"build": build_id(refused.build), "old": build_id(refused.old), "at": refused.at},
            },
        }


def no_engine(own: EnginesExamined) -> Iterator[Finding]:
    if not own.engines:
        yield error(
            "no-engine",
            "There is no engine, so no model can be started",
            "no build, no llama-server on PATH, and no embedded engine was found",
            "Install a build; 'cpu' runs everywhere.",
            "llama-appliance engines install cpu",
        )
    elif own.ranked and best(own.ranked) is None:
        yield error(
            "no-usable-engine",
            "None of the engines here can be used",
            some(_standing(one) for one in own.ranked),
            "Forget the results and try them again, or install another build.",
            "llama-appliance engines forget",
            "llama-appliance engines install cpu",
        )


def unusable(own: EnginesExamined) -> Iterator[Finding]:
    for engine in own.engines:
        if engine.damage:
            yield warning(
                "damaged-build",
                f"The engine {engine.id} is damaged and is not used",
                (engine.damage, f"found in: {engine.source}"),
                "An antivirus program is the usual cause of missing or changed files: restore them from its "
                "quarantine and exclude the folder, then install the build again.",
                f"llama-appliance engines install {quote(engine.backend)}",
            )
    for seat in {one.seat.build: one.seat for one in own.ranked if one.seat.fault}.values():
        yield warning(
            "engine-cannot-list",
            f"The engine {seat.build} cannot list its devices and is not used",
            seat.fault,
            "The driver or the build may be at fault; try it again after a change.",
            f"llama-appliance engines prove {quote(seat.build)}",
        )


def failed_proof(known: Known, own: EnginesExamined) -> Iterator[Finding]:
    here = {engine.digest for engine in own.engines}
    system = own.state.system
    for proof in own.state.proofs:
        if proof.ok or not proof.holds(known.now) or proof.key.digest not in here or proof.key.system != system:
            continue
        yield warning(
            "failed-proof",
            f"The engine {proof.build} failed its proof on {proof.device} ({proof.fault}), and is not used there",
            (proof.why.strip() or f"fault: {proof.fault}", f"tried {span(known.now - proof.at)} ago"),
            "The program tries it again after a day, and when the driver or the build changes.",
            f"llama-appliance engines prove {quote(proof.build)}",
        )


def on_probation(known: Known, own: EnginesExamined) -> Iterator[Finding]:
    for one in own.state.probations:
        if one.holds(known.now):
            yield warning(
                "probation",
                f"The engine {one.seat} failed with the model '{one.model}' and is set aside for it",
                (one.why, f"failures in a row: {one.failures}; tried again in {span(one.until - known.now)}"),
                "Another engine serves the model meanwhile.",
                f"llama-appliance engines forget {quote(one.seat.partition(':')[0])}",
                model=one.model,
            )


def helpless_contexts(known: Known, own: EnginesExamined) -> Iterator[Finding]:
    here = {engine.digest for engine in own.engines}
    for trial in own.state.contexts:
        if not trial.why or trial.digest not in here:
            continue
        yield note(
            "context-not-kept",
            f"What {trial.architecture} models have read is not kept: the engine {trial.build} reads it again",
            (trial.why, f"seen {span(known.now - trial.at)} ago"),
            "Each swap of such a model costs the reading of its prompt. Another build is tried anew.",
            f"llama-appliance engines forget {quote(trial.build)}",
        )


def went_back(own: EnginesExamined) -> Iterator[Finding]:
    """Report updates that were taken back, of engines that are still here."""
    here = {engine.id for engine in own.engines}
    for build, why in own.state.withdrawn.items():
        if build in here:
            yield note(
                "update-taken-back",
                f"The engine {build} was taken back after an update, and is used last",
                why,
                "A later build may be better. The second command trusts this one again.",
                "llama-appliance engines update",
                f"llama-appliance engines use {quote(build)}",
            )


def refused_update(known: Known, own: EnginesExamined) -> Iterator[Finding]:
    if refused := own.state.refused:
        yield note(
            "update-refused",
            f"The update to {refused.build} was not taken; {refused.old} stayed in use",
            (refused.why, f"tried {span(known.now - refused.at)} ago"),
            "A later build may be better. The first command tries again; the second forgets all results.",
            "llama-appliance engines update",
            "llama-appliance engines forget",
        )


def untried(own: EnginesExamined) -> Iterator[Finding]:
    waiting = [one for one in own.ranked if one.standing == "untried"]
    if waiting:
        yield note(
            "untried",
            "Not every engine has been tried here, so the choice is provisional",
            some(_standing(one) for one in waiting),
            "The server tries them on its own while no request is under way.",
            "llama-appliance engines prove",
        )


def bad_choice(own: EnginesExamined) -> Iterator[Finding]:
    """Check the user's choice and its effect."""
    word = own.state.use
    if not word or word == "auto" or not own.ranked:
        return
    wanted = [one for one in own.ranked if one.wanted]
    usable = [one for one in wanted if one.usable]
    kind = "pinned" if own.state.pinned else "chosen"
    if not usable:
        yield found(
            "error" if own.state.pinned else "warning",
            "bad-pin",
            f"The engine '{word}' is {kind}, and cannot be used",
            some(_standing(one) for one in wanted) or (f"no installed engine is called '{word}'",),
            "Nothing else is used while it is pinned." if own.state.pinned else "Another engine is used.",
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


def named_engine(own: EnginesExamined) -> Iterator[Finding]:
    if own.named_engine and own.named_fault:
        yield error(
            "named-engine",
            "The named engine is not here, so no server starts",
            (f"LLAMA_APPLIANCE_ENGINE={own.named_engine}", own.named_fault),
            "Correct the variable, or remove it: then the best proven engine is used.",
            "unset LLAMA_APPLIANCE_ENGINE",
            "llama-appliance engines ls",
        )
    elif own.named_engine:
        yield note(
            "named-engine",
            "An engine is named, so the program does not choose one",
            f"LLAMA_APPLIANCE_ENGINE={own.named_engine}",
            "Without the variable the best proven engine is used, and another one if it fails.",
            "unset LLAMA_APPLIANCE_ENGINE",
        )


def card_is_slower(own: EnginesExamined) -> Iterator[Finding]:
    """Explain with figures why the processor was chosen over a card that works."""
    first = best(own.ranked)
    if first is None or not first.seat.on_cpu or first.wanted:
        return
    cards = [one for one in own.ranked if one.standing == "proven" and not one.seat.on_cpu and not one.seat.software]
    if cards and first.standing == "proven":
        yield note(
            "card-is-slower",
            "The processor is used because measurements show that it is faster than the graphics card",
            (_standing(first), *some(_standing(one) for one in cards)),
            "Large models may be faster on the card; you can choose it.",
            f"llama-appliance engines use {quote(cards[0].seat.build)}",
        )


def other_engine(known: Known, own: EnginesExamined) -> Iterator[Finding]:
    """Report that the server's choice at its start is not today's."""
    first = best(own.ranked)
    server = known.server
    if first is None or server is None or server.answer != "answers":
        return
    here = {one.seat.id for one in own.ranked}  # it may look for engines elsewhere
    for model in server.running:
        chosen = own.state.models.get(model.id)
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


def clock(known: Known, own: EnginesExamined) -> Iterator[Finding]:
    ahead = [proof.at for proof in own.state.proofs] + [one.since for one in own.state.probations]
    latest = max(ahead, default=0.0)
    if latest > known.now + SET_BACK:
        yield warning(
            "clock-set-back",
            "The clock was set back, so results about engines seem to lie in the future",
            f"the newest result is {span(latest - known.now)} ahead of the clock",
            "Set the clock, or forget the results: engines are then tried again.",
            "llama-appliance engines forget",
        )


def _standing(one: Ranked) -> str:
    return f"{one.seat.id}: {one.standing}, {one.why}" if one.why else f"{one.seat.id}: {one.standing}"
