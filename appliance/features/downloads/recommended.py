"""The models that the page recommends to somebody who has none, and which of them suit a machine.

Sizes and hashes are those of the files on the hub; a download of another file under the same name is refused. All are
their makers' own files, and may be used for any purpose under their licence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from appliance.core.memory import RAM, Verdict
from appliance.core.sizes import GIB, MIB

RESERVE = GIB
"""Bytes that stay free on each device, as a plan has it."""
RAM_SPEED, GPU_SPEED = 30 * GIB, 300 * GIB
"""Bytes a second that usual memory gives, of a machine and of its cards."""


class Foretold(Struct, frozen=True, kw_only=True):
    """The needs of a model that is not here yet, in bytes; ``free`` is the memory that it could have now."""

    verdict: Verdict
    needed: int
    free: int
    speed: Literal["fast", "medium", "slow"]
    """Faster than one reads, about as fast, slower."""


class Recommended(Struct, frozen=True, kw_only=True):
    """One file of the hub. ``purpose``: a sentence for people, by language."""

    name: str
    repository: str
    file: str
    sha256: str
    size: int
    licence: str
    purpose: Mapping[str, str]


def _qwen(parameters: str, quantisation: str, sha256: str, size: int, english: str, german: str) -> Recommended:
    name = f"Qwen3-{parameters}"
    return Recommended(
        name=name,
        repository=f"Qwen/{name}-GGUF",
        file=f"{name}-{quantisation}.gguf",
        sha256=sha256,
        size=size,
        licence="Apache-2.0",
        purpose={"en": english, "de": german},
    )


RECOMMENDED = (
    _qwen(
        "0.6B",
        "Q8_0",
        "9465e63a22add5354d9bb4b99e90117043c7124007664907259bd16d043bb031",
        639_446_688,
        "For short questions on a machine with little memory.",
        "Für kurze Fragen auf einem Rechner mit wenig Speicher.",
    ),
    _qwen(
        "1.7B",
        "Q8_0",
        "061b54daade076b5d3362dac252678d17da8c68f07560be70818cace6590cb1a",
        1_834_426_016,
        "Answers fast, and writes short texts well.",
        "Antwortet schnell und schreibt kurze Texte gut.",
    ),
    _qwen(
        "4B",
        "Q4_K_M",
        "7485fe6f11af29433bc51cab58009521f205840f5b4ae3a32fa7f92e8534fdf5",
        2_497_280_256,
        "A good all-rounder for texts, questions and simple programs.",
        "Ein guter Allrounder für Texte, Fragen und einfache Programme.",
    ),
    _qwen(
        "8B",
        "Q4_K_M",
        "d98cdcbd03e17ce47681435b5150e34c1417f50b5c0019dd560e4882c5745785",
        5_027_783_488,
        "Understands longer texts, reasons and programs better than smaller ones.",
        "Versteht längere Texte, denkt und programmiert besser als kleinere.",
    ),
    _qwen(
        "14B",
        "Q4_K_M",
        "500a8806e85ee9c83f3ae08420295592451379b4f8cf2d0f41c15dffeb6b81f0",
        9_001_752_960,
        "For demanding work, if the machine has the memory for it.",
        "Für anspruchsvolle Arbeit, wenn der Rechner den Speicher dafür hat.",
    ),
    _qwen(
        "32B",
        "Q4_K_M",
        "efd971561896866f0e910cce52761ca77b1b138090c7f15fe284676d57d1f689",
        19_762_149_024,
        "The largest of its family, for a machine with a large graphics card.",
        "Das größte seiner Familie, für einen Rechner mit großer Grafikkarte.",
    ),
)
"""The smallest first."""


class Recommendation(Struct, frozen=True, kw_only=True):
    """A model that suits this machine, for one of three wishes."""

    wish: Literal["fast", "balanced", "best"]
    model: Recommended
    fit: Foretold


def cards(room: Mapping[str, int], known: Sequence[Recommended] = RECOMMENDED) -> list[Recommendation]:
    """Choose up to three for this free memory; of those that do not fit, only the smallest, if none does."""
    judged = [(model, judged_by_size(model.size, room)) for model in known]
    fitting = [pair for pair in judged if pair[1].verdict != "no"]
    if not fitting:
        return [Recommendation(wish="fast", model=model, fit=fit) for model, fit in judged[:1]]
    best = len(fitting) - 1
    fast = max(0, min(1, best - 2))
    chosen: dict[int, Literal["fast", "balanced", "best"]] = {fast: "fast"}
    if best - fast > 1:
        chosen[(fast + best) // 2] = "balanced"
    if best > fast:
        chosen[best] = "best"
    return [Recommendation(wish=wish, model=fitting[at][0], fit=fitting[at][1]) for at, wish in chosen.items()]


def judged_by_size(size: int, room: Mapping[str, int]) -> Foretold:
    """Judge a model by the size of its files alone, less the reserve.

    A small context and the room to compute with take an eighth of the files at least. Every token reads them all once,
    so the speed of memory bounds the speed of answers.
    """
    needed = size + max(size // 8, 512 * MIB)
    gpus = sum(max(0, free - RESERVE) for device, free in room.items() if device != RAM)
    ram = max(0, room.get(RAM, 0) - RESERVE)
    whole = gpus >= needed if gpus else ram >= needed
    verdict: Verdict = "fits" if whole else "partly" if gpus + ram >= needed else "no"
    rate = (GPU_SPEED if gpus >= needed else RAM_SPEED) / max(size, 1)
    return Foretold(
        verdict=verdict,
        needed=needed,
        free=gpus if gpus >= needed else gpus + ram,
        speed="fast" if rate >= 15 else "medium" if rate >= 6 else "slow",
    )
