"""Reads the log of a test run: the reason of a failure, and the device that computed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from appliance.core.engines.proofs import Fault

STAMP = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} (?P<level>[EWID]) ")
"""llama-server's time and level; lines that backends print themselves have none."""
LOST_LIBRARY = re.compile(
    r"error while loading shared libraries|library not loaded|symbol lookup error|a DLL it needs", re.IGNORECASE
)
NO_MEMORY = re.compile(
    r"out of memory|OutOfDeviceMemory|OutOfHostMemory|failed to allocate|unable to allocate|failed to fit params",
    re.IGNORECASE,
)
BLAME = re.compile(r"error|fail|cannot|couldn't|abort|assert|invalid|unsupported|not supported|lost", re.IGNORECASE)
EMPTY_BLAME = re.compile(r"failed to load model|exiting due to|error loading model$", re.IGNORECASE)
"""Lines that only repeat that it failed."""
PORT_TAKEN = re.compile(r"couldn't bind|address already in use", re.IGNORECASE)
USING = re.compile(
    r"using device (?P<name>\S+) \(.*\) \((?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\)", re.IGNORECASE
)
BUFFER = re.compile(r": +(?P<place>\S+) +model buffer size = ")
LONGEST = 300
"""Longest line that is shown, in characters."""


def explanation(lines: Sequence[str]) -> str:
    """Return the line that explains the end best: the last one that blames something, else the last. Empty without
    lines.
    """
    told = [line for line in lines if line.strip()]
    blaming = [line for line in told if _blames(line)]
    telling = [line for line in blaming if not EMPTY_BLAME.search(line)]
    best = (telling or blaming or told or [""])[-1]
    shown = STAMP.sub("", best).strip()
    return "".join(letter if letter.isprintable() else "?" for letter in shown)[:LONGEST]


def fault_of_start(status: str, executed: bool, lines: Sequence[str]) -> Fault:
    """Return the kind of failure of an engine that ended before it was ready; ``status`` in words."""
    text = "\n".join((*lines, status))
    if LOST_LIBRARY.search(text):
        return "missing"
    if not executed:
        return "damaged"
    return "memory" if NO_MEMORY.search(text) else "load"


def fault_of_death(lines: Sequence[str]) -> Fault:
    """Return the kind of failure of an engine that ended at work."""
    return "memory" if NO_MEMORY.search("\n".join(lines)) else "crash"


def lost_its_port(lines: Iterable[str]) -> bool:
    """True if another program took its port first: start it again on another port."""
    return any(PORT_TAKEN.search(line) for line in lines)


def pci_of(name: str, lines: Iterable[str]) -> str | None:
    """Return the place of the card that it uses as ``name``, lower case; None if it does not report it."""
    found = (USING.search(line) for line in lines)
    return next((match["pci"].lower() for match in found if match is not None and match["name"] == name), None)


def only_on_processor(lines: Iterable[str]) -> bool:
    """True if the log says that every weight is in main memory, although a device was requested."""
    places = [match["place"] for line in lines if (match := BUFFER.search(line)) is not None]
    return bool(places) and all(place.startswith("CPU") for place in places)


def _blames(line: str) -> bool:
    level = STAMP.match(line)
    if level is not None and level["level"] in "ID":
        return False
    return (level is not None and level["level"] == "E") or BLAME.search(line) is not None
