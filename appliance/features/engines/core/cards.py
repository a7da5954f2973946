"""Graphics cards by name: the devices that a model's ``gpu`` means, and the seats that consist of them.

A name may be a device's own (``CUDA1``), a card's place on the bus or its number (UUID), or words of its description:
``RTX 4090`` is ``NVIDIA GeForce RTX 4090`` under every backend. Of descriptions the closest decides: the same words,
then those that end with them, then those that have them anywhere. So ``RTX 4070`` does not mean an ``RTX 4070 Ti``
where both are there. Cards of one name are all meant; ``RTX 4090:2`` is the second of them in the order of the bus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import structs

from appliance.core.machine_look import normal_pci
from appliance.features.engines.core.listing import CPU, Device, maker_of, plain
from appliance.features.engines.core.standing import Seat

NUMBERED = re.compile(r"(.*?)\s*:\s*([0-9]{1,3})\s*")


def meant_by(word: str, devices: Sequence[Device]) -> list[Device]:
    """Return the devices of one build that the word means, in their own order; none if it means none."""
    numbered = NUMBERED.fullmatch(word)
    if numbered is None:
        return _named(word.strip(), devices)
    on_bus = sorted(_named(numbered[1].strip(), devices), key=lambda device: device.pci or "~")
    at = int(numbered[2])
    return on_bus[at - 1 : at] if at else []


def seats_on(seats: Iterable[Seat], words: Sequence[str]) -> list[Seat]:
    """Return the seats whose devices are among them all that the words mean, with these devices alone.

    A build that lacks one of the cards has none. Without words every seat is as it was.
    """
    found = list(seats)
    if not words:
        return found
    narrowed: list[Seat] = []
    for seat in found:
        its_build = [one for one in found if (one.build, one.digest) == (seat.build, seat.digest)]
        devices = {device.name: device for one in its_build for device in one.devices}
        meant = [meant_by(word, list(devices.values())) for word in words]
        names = {device.name for some in meant for device in some}
        kept = tuple(device for device in seat.devices if device.name in names)
        if all(meant) and len(kept) == len(names):
            narrowed.append(structs.replace(seat, devices=kept))
    return narrowed


def why_none(seats: Iterable[Seat], words: Sequence[str]) -> str:
    """Return the reason why no seat uses these cards, with the cards that engines list; empty where a seat does."""
    there = list(seats)
    if seats_on(there, words):
        return ""
    unknown = [word for word in words if not seats_on(there, [word])]
    if not unknown:
        return f"no engine uses {' and '.join(words)} together; name cards that one engine lists side by side"
    cards = _cards(there)
    listed = f"the engines list {cards}" if cards else "no engine lists a graphics card here"
    return f"there is no graphics card '{unknown[0]}': {listed}"


def _named(word: str, devices: Sequence[Device]) -> list[Device]:
    folded, place, words = word.lower(), normal_pci(word), plain(word)
    own = [
        d for d in devices if folded == d.name.lower() or (place and place == d.pci) or folded == (d.uuid or "").lower()
    ]
    if own or not folded:
        return own if folded else []
    if not words:
        return [device for device in devices if maker_of(device).lower() == folded]
    close = {device.name: _closeness(words, plain(device.description)) for device in devices}
    closest = max(close.values(), default=0)
    return [device for device in devices if closest and close[device.name] == closest]


def _closeness(words: str, description: str) -> int:
    """0: the words are not in it."""
    if words == description:
        return 3
    return 2 if description.endswith(f" {words}") else int(f" {words} " in f" {description} ")


def _cards(seats: Iterable[Seat]) -> str:
    """The cards as people know them, each with its names."""
    names: dict[str, dict[str, str]] = {}
    for device in (device for seat in seats for device in seat.devices if device.name != CPU):
        names.setdefault(device.id, {}).setdefault(device.name, device.description)
    return ", ".join(f"{next(iter(known.values()))} ({', '.join(known)})" for known in names.values())
