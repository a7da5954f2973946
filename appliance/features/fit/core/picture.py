"""The memory of the machine as people see it: each device, the models on it, other programs, and what is free."""

from __future__ import annotations

from msgspec import Struct

from appliance.core.memory import DeviceUse, Sizes


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
    other: int  # other programs. A file's pages count as free in main memory, so weights may be counted twice there
    budget: int | None
    models: tuple[MemoryShare, ...]


class LoadForecast(Struct, frozen=True, kw_only=True):
    """The effect that a request for a model would have now. Sizes in bytes by device, times in seconds."""

    model: str
    state: str
    takes: Sizes
    goes: tuple[str, ...]  # models that would be stopped for it
    held: tuple[str, ...]  # the part of them that it waits for: they are in use, or were loaded just now
    before: tuple[str, ...]  # models that load before it
    expected: float | None  # seconds of loading until it can answer; None where one of these loads was never measured
    fits: str | None  # ``fits``, ``partly`` or ``no``, once those are gone; None where its file does not say enough
    why: str  # the reason for that, or for the refusal
    refused: bool


class MemoryTable(Struct, frozen=True, kw_only=True):
    """The answer of ``GET /api/memory``. ``load`` is there if a model was named."""

    devices: tuple[DeviceMemory, ...]
    load: LoadForecast | None = None


def share_of(model: str, state: str, total: int, planned: DeviceUse) -> MemoryShare:
    """Return the part of a device that a model takes: ``total``, measured or expected, of which a part was planned.

    While it loads it has not taken all of it yet: weights come first, then context.
    """
    weights = min(planned.model, total)
    context = min(planned.cache, total - weights)
    compute = min(planned.compute + planned.output, total - weights - context)
    return MemoryShare(
        model=model,
        state=state,
        total=total,
        weights=weights,
        context=context,
        compute=compute,
        rest=total - weights - context - compute,
    )
