"""Findings about models that have no room, or only a part of it on the graphics card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from appliance.core.examination import Known, OwnFacts
from appliance.core.findings import Finding, Told, note, some, warning
from appliance.core.quantities import size


class FitExamined(OwnFacts, frozen=True, kw_only=True):
    """Its facts are `ModelFact.fit` and `ServedModel.layers`."""

    def findings(self, known: Known) -> Sequence[Told]:
        return (("engines", partly_on_card(known)), ("room", too_large(known)))


def partly_on_card(known: Known) -> Iterator[Finding]:
    for model in known.running:
        if model.layers is not None and 0 < model.layers[0] < model.layers[1]:
            yield note(
                "layers-on-processor",
                f"A part of the model '{model.id}' runs on the processor, which makes it slower",
                f"{model.layers[0]} of {model.layers[1]} layers are on the graphics card",
                "A smaller context (--ctx-size) or a file with fewer bits lets more layers fit.",
                f"llama-appliance logs {quote(model.id)}",
                model=model.id,
            )


def too_large(known: Known) -> Iterator[Finding]:
    """Report models that do not fit: by the plan if there is one, else by the size of their file."""
    misfits = [model for model in known.models if model.fit == "will not fit"]
    partly = [model for model in known.models if model.fit.startswith("partly")]
    seen = known.look
    if seen is not None and seen.memory_total > 0:
        room = seen.memory_total + sum(gpu.total or 0 for gpu in seen.gpus if not gpu.integrated)
        misfits += [model for model in known.models if not model.fit and not model.error and model.size > room]
    if misfits:
        yield warning(
            "model-too-large",
            "Some models are too large for this machine",
            some(f"{one.id}: {one.why or size(one.size)}" for one in misfits),
            "Choose a smaller model, or the same one with fewer bits; a smaller context also needs less.",
            "llama-appliance ls",
        )
    if partly:
        yield note(
            "model-partly-on-gpu",
            "Some models fit only partly on the graphics card",
            some(f"{one.id}: {one.why or 'partly'}" for one in partly),
            "The processor computes the rest. A smaller context or fewer bits lets more layers fit.",
            "llama-appliance ls",
        )
