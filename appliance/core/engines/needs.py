"""Checks whether a build can run on this machine: its requirements against a look at the machine."""

from __future__ import annotations

from appliance.core.engines.builds import numbers_of
from appliance.core.engines.machine import Gpu, Look
from appliance.core.engines.manifest import Wants

VENDORS = {"cuda12": "nvidia", "cuda13": "nvidia", "rocm": "amd"}
"""Backends that run only on one vendor's cards."""
LOADERS = {"vulkan": "vulkan", "cuda12": "cuda", "cuda13": "cuda", "rocm": "rocm"}
"""The word in `Look.loaders` for each backend."""


def unmet(needs: Wants, backend: str, platform: str, look: Look, *, libc: str = "", macos: str = "") -> list[str]:
    """Return what is missing, one line each; empty: nothing known. ``libc`` and ``macos`` are this machine's."""
    if platform != look.platform:
        return [f"it is for {platform}, and this machine is {look.platform}"]
    return [
        *(_too_old("glibc", needs.libc, libc)),
        *(_too_old("macOS", needs.macos, macos)),
        *_cards(needs, backend, look),
        *_libraries(needs, backend, look),
        *_processor(needs, look),
    ]


def _too_old(what: str, least: str, has: str) -> list[str]:
    old = least and has and numbers_of(has) < numbers_of(least)
    return [f"it needs {what} {least} or newer; this system has {has}"] if old else []


def _cards(needs: Wants, backend: str, look: Look) -> list[str]:
    vendor = VENDORS.get(backend)
    if vendor is None:
        return []
    cards = [gpu for gpu in look.gpus if vendor in gpu.vendor.lower()]
    if not cards:
        seen = ", ".join(gpu.name for gpu in look.gpus) or "none"
        return [f"it needs a graphics card of {vendor.upper()}; this machine's are: {seen}"]
    problems = [] if any(_has_driver(gpu, needs.driver) for gpu in cards) else [_driver_problem(cards[0], needs.driver)]
    if needs.compute and not any(_has_compute(gpu, needs.compute) for gpu in cards):
        known = ", ".join(f"{gpu.name} ({gpu.compute})" for gpu in cards)
        problems.append(f"it was made for cards of compute capability {', '.join(needs.compute)}, not for {known}")
    if needs.targets and not any(gpu.gfx is None or gpu.gfx in needs.targets for gpu in cards):
        problems.append(f"it was not made for {', '.join(f'{gpu.name} ({gpu.gfx})' for gpu in cards)}")
    return problems


def _has_driver(gpu: Gpu, least: str) -> bool:
    """True for an unknown version as well: the proof will show."""
    return not least or not gpu.driver_version or numbers_of(gpu.driver_version) >= numbers_of(least)


def _driver_problem(gpu: Gpu, least: str) -> str:
    return f"it needs the driver {least} or newer; {gpu.name} has {gpu.driver_version}: update the driver"


def _has_compute(gpu: Gpu, made_for: tuple[str, ...]) -> bool:
    """True for an unknown capability as well."""
    if gpu.compute is None:
        return True
    return any(runs_on(one, gpu.compute) for one in made_for)


def runs_on(made_for: str, has: str) -> bool:
    """True for a later compute capability of the same major version, which runs builds for an earlier one."""
    made, card = numbers_of(made_for), numbers_of(has)
    return bool(made and card) and made[0] == card[0] and made <= card


def _libraries(needs: Wants, backend: str, look: Look) -> list[str]:
    problems: list[str] = []
    loader = LOADERS.get(backend)
    if loader is not None and look.loaders.get(loader) == "":
        problems.append(f"the system has no {loader} library, which comes with the card's driver")
    for library in needs.libraries:
        word = next((word for word in look.loaders if word in library.lower()), None)
        if word is not None and word != loader and not look.loaders[word]:
            problems.append(f"the system has no {library}")
    return problems


def _processor(needs: Wants, look: Look) -> list[str]:
    missing = [feature for feature in needs.cpu if look.cpu_features and feature not in look.cpu_features]
    return [f"it needs a processor with {', '.join(missing)}, which {look.cpu} lacks"] if missing else []
