"""The memory of the machine as people see it: each device, the models on it, other programs, and what is free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from appliance.core.memory import DeviceUse, GpuMemory


class ModelMemory(Struct, frozen=True, kw_only=True):
    """One model process. Sizes in bytes by device."""

    model: str
    state: str
    taken: Mapping[str, int]
    """The sizes that count: measured, or expected."""
    planned: Mapping[str, DeviceUse]
    """The parts of it at its start; empty where nothing is known of them."""


class MemoryShare(Struct, frozen=True, kw_only=True):
    """The part of a device that one model takes, in bytes. ``rest`` is what no other part explains."""

    model: str
    state: str
    total: int
    weights: int = 0
    context: int = 0
    compute: int = 0
    rest: int = 0


class DeviceMemory(Struct, frozen=True, kw_only=True):
    """One device, in bytes. ``budget`` is the most that all models may take; None sets no limit."""

    device: str
    name: str
    total: int
    free: int
    other: int
    """Taken by other programs. In main memory a file's pages count as free, so weights may be counted twice there."""
    budget: int | None
    models: tuple[MemoryShare, ...]


class LoadForecast(Struct, frozen=True, kw_only=True):
    """The effect that a request for a model would have now. Sizes in bytes by device, times in seconds."""

    model: str
    state: str
    takes: Mapping[str, int]
    goes: tuple[str, ...]
    """Models that would be stopped for it."""
    held: tuple[str, ...]
    """The part of them that it waits for: they are in use, or were loaded just now."""
    before: tuple[str, ...]
    """Models that load before it."""
    expected: float | None
    """Seconds of loading until it can answer; None where one of these loads was never measured."""
    fits: str | None
    """``fits``, ``partly`` or ``no``, once those are gone; None where its file does not say enough."""
    why: str
    """The reason for that, or for the refusal."""
    refused: bool


class MemoryTable(Struct, frozen=True, kw_only=True):
    """The answer of ``GET /api/memory``. ``load`` is there if a model was named."""

    devices: tuple[DeviceMemory, ...]
    load: LoadForecast | None = None


def picture(
    devices: Mapping[str, GpuMemory],
    names: Mapping[str, str],
    budgets: Mapping[str, int],
    models: Iterable[ModelMemory],
) -> tuple[DeviceMemory, ...]:
    """Return each device with what lies on it; ``devices`` says what is used of them by anybody."""
    known = list(models)
    found: list[DeviceMemory] = []
    for device, memory in devices.items():
        shares = tuple(share for model in known if (share := _share(model, device)) is not None)
        ours = sum(share.total for share in shares)
        found.append(
            DeviceMemory(
                device=device,
                name=names.get(device, ""),
                total=memory.total,
                free=max(0, memory.total - memory.used),
                other=max(0, memory.used - ours),
                budget=budgets.get(device),
                models=shares,
            )
        )
    return tuple(found)


def _share(model: ModelMemory, device: str) -> MemoryShare | None:
    total = model.taken.get(device, 0)
    if not total:
        return None
    use = model.planned.get(device, DeviceUse())
    if use.total > total:  # it has not taken all of it yet: weights come first, then context
        use = _cut(use, total)
    return MemoryShare(
        model=model.model,
        state=model.state,
        total=total,
        weights=use.model,
        context=use.cache,
        compute=use.compute + use.output,
        rest=total - use.total,
    )


def _cut(use: DeviceUse, total: int) -> DeviceUse:
    weights = min(use.model, total)
    context = min(use.cache, total - weights)
    return DeviceUse(model=weights, cache=context, compute=total - weights - context)
