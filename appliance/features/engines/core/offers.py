"""The builds that would use a graphics card which no engine here can use: what a person with that card is offered."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from appliance.core.machine_look import Gpu, MachineLook
from appliance.core.versions import numbers_of
from appliance.features.engines.core.builds import Catalogue, unmet

CARD_BACKENDS = {
    "nvidia": ("cuda13", "cuda12", "vulkan"),
    "amd": ("rocm", "vulkan"),
    "intel": ("sycl", "vulkan"),
    "apple": ("metal",),
}
"""The builds that compute on each vendor's cards, the usual one first."""
CUDA_DRIVERS = (("cuda13", "580.0"), ("cuda12", "525.60"))
"""The least NVIDIA driver of each generation of CUDA, by NVIDIA's compatibility tables."""


class EngineOffer(Struct, frozen=True, kw_only=True):
    """The best listed build for a card. ``size`` is in bytes, 0 if nobody has told it."""

    card: str
    word: str = ""
    """The argument of ``engines install``; empty: no listed build can use the card here."""
    build: str = ""
    size: int = 0
    problems: tuple[str, ...] = ()
    """Why better ones are not offered, one line each."""


def suited(gpu: Gpu) -> tuple[str, ...]:
    """Return backends for the card, by its driver; the best one first."""
    known = CARD_BACKENDS.get(gpu.vendor.lower(), ())
    floors = dict(CUDA_DRIVERS)
    have = numbers_of(gpu.driver_version)
    return tuple(name for name in known if name not in floors or not have or have >= numbers_of(floors[name]))


def offers(
    look: MachineLook, catalogue: Catalogue, present: Collection[str], *, libc: str = "", macos: str = ""
) -> tuple[EngineOffer, ...]:
    """Return an offer for each card that no build of the ``present`` backends can use. The rest is as in `unmet`."""
    found: dict[str, EngineOffer] = {}
    for gpu in look.gpus:
        backends = suited(gpu)
        if backends and gpu.name not in found and not any(backend in present for backend in backends):
            found[gpu.name] = _offer(gpu, backends, look, catalogue, libc=libc, macos=macos)
    return tuple(found.values())


def _offer(
    gpu: Gpu, backends: Collection[str], look: MachineLook, catalogue: Catalogue, *, libc: str, macos: str
) -> EngineOffer:
    problems: list[str] = []
    for backend in backends:
        listed = [one for one in catalogue.entries if (one.platform, one.backend) == (look.platform, backend)]
        lacks = {one.id: unmet(one.needs, backend, look.platform, look, libc=libc, macos=macos) for one in listed}
        best = catalogue.newest([one for one in listed if not lacks[one.id]])
        if best is not None:
            return EngineOffer(card=gpu.name, word=backend, build=best.id, size=best.size, problems=tuple(problems))
        newest = catalogue.newest(listed)
        problems += [f"{newest.id}: {problem}" for problem in lacks[newest.id]] if newest is not None else []
    return EngineOffer(card=gpu.name, problems=tuple(problems))
