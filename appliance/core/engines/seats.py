"""The seats that an engine offers: which of its devices work together, and the flags for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from appliance.core.engines.choice import Seat
from appliance.core.engines.devices import CPU, Device

NO_CARDS = ("cpu", "unknown")
"""Backends of builds that are not made for graphics cards, as far as known."""


class Offer(Struct, frozen=True, kw_only=True):
    """An engine as far as its seats need it."""

    build: str
    backend: str
    digest: str
    place: int
    damage: str = ""
    devices: tuple[Device, ...] | None = None
    """Its devices; None: it has not been asked yet."""
    fault: str = ""
    """The reason why it could not list its devices."""


def seats_of(offer: Offer, cpu: Device, failed: Collection[str] = ()) -> list[Seat]:
    """Return its seats, the best one first. Cards of one kind (with or without memory of their own) work together.

    A device in ``failed`` (by id) and a software renderer have seats of their own, so that they can be shown and
    requested without spoiling the others.
    """
    if offer.fault:
        return [_seat(offer, (), fault=offer.fault)]
    if offer.devices is None:
        return [_seat(offer, (cpu,) if offer.backend == CPU.lower() else ())]
    good = [device for device in offer.devices if not device.software and device.id not in failed]
    groups = [[d for d in good if not d.integrated], [d for d in good if d.integrated]]
    alone = [[device] for device in offer.devices if device not in good]
    seats = [_seat(offer, tuple(group)) for group in (*groups, *alone) if group]
    return [*seats, _seat(offer, (cpu,), spare=bool(offer.devices) or offer.backend not in NO_CARDS)]


def device_flags(seat: Seat, listed: Sequence[Device]) -> tuple[str, ...]:
    """Return the engine's flags for its devices; none if it has no choice, or if no choice is known."""
    if not seat.devices or not listed:
        return ()
    names = "none" if seat.on_cpu else ",".join(device.name for device in seat.devices)
    return ("--device", names)


def _seat(offer: Offer, devices: tuple[Device, ...], *, fault: str = "", spare: bool = False) -> Seat:
    return Seat(
        build=offer.build,
        backend=offer.backend,
        digest=offer.digest,
        place=offer.place,
        devices=devices,
        damage=offer.damage,
        fault=fault,
        spare=spare,
    )
